"""Federated scikit-learn: an `SGDClassifier`, whose model is two NumPy arrays.

Needs scikit-learn (`pip install -e ".[digits]"`).

    python examples/scikit_learn.py
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

import offbeat as ob

PIXELS, DIGITS = load_digits(return_X_y=True)
PIXELS = PIXELS / 16
SHARES = np.array_split(np.arange(1400), [100, 300, 600, 1000])  # rows of five clients; the rest is for tests


def train(task: ob.ClientTask) -> None:
    """One task of one client."""
    x, y = PIXELS[SHARES[task.client]], DIGITS[SHARES[task.client]]
    lr = 0.01 * task.lr_factor
    classifier = SGDClassifier(
        loss="log_loss", learning_rate="constant", eta0=lr, random_state=int(task.rng.integers(2**31))
    )
    classifier.partial_fit(x[:1], y[:1], classes=np.arange(10))  # makes the arrays

    def write(arrays: dict[str, np.ndarray]) -> None:
        classifier.coef_, classifier.intercept_ = (
            arrays["coef"].astype(float),
            arrays["intercept"].astype(float),
        )

    task.bind(lambda: {"coef": classifier.coef_, "intercept": classifier.intercept_}, write)
    for rows in task.steps(task.batches()):
        classifier.partial_fit(x[rows.numpy()], y[rows.numpy()])
    task.submit(samples=len(x), lr=lr)


def evaluate(model: ob.Model) -> dict[str, float]:
    """Accuracy on the common test set."""
    arrays = model.arrays()
    scores = PIXELS[1400:] @ arrays["coef"].T + arrays["intercept"]
    return {"accuracy": float((scores.argmax(1) == DIGITS[1400:]).mean())}


def main() -> None:
    """Run FedCompass, and FedASMU, whose fresh models are merged into the classifier's arrays."""
    initial = {"coef": np.zeros((10, 64)), "intercept": np.zeros(10)}
    learner = ob.LoopLearner(train, initial, [len(s) for s in SHARES], batch_size=20, evaluate=evaluate)
    world = ob.World([0.1, 0.15, 0.2, 0.3, 0.5])
    for algorithm in (ob.fedcompass(q_min=4, q_max=20), ob.fedasmu(epochs=2, size=2, period=1, threshold=5)):
        run = ob.simulate(
            algorithm, world, learner, seed=0, until=ob.Until(tasks=30), evaluate=ob.Every(versions=10)
        )
        print(f"{algorithm.name}: accuracy {run.summary.accuracy:.2f} after {run.summary.tasks} client tasks")


if __name__ == "__main__":
    main()
