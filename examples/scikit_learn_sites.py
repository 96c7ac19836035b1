"""Federated scikit-learn on a network: a server, and three sites that each train an `SGDClassifier`.

Here all are in one process and talk over loopback. Needs scikit-learn and the network
(`pip install -e ".[digits,net]"`).

    python examples/scikit_learn_sites.py
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

import offbeat as ob
from offbeat.net import ServerOptions, join, serve

PIXELS, DIGITS = load_digits(return_X_y=True)
PIXELS = PIXELS / 16
SHARES = np.array_split(np.arange(1400), 3)  # rows of three sites; the rest is the server's, for tests
INITIAL = {"coef": np.zeros((10, 64)), "intercept": np.zeros(10)}


def loop_on(x: np.ndarray, y: np.ndarray) -> Callable[[ob.ClientTask], None]:
    """The training loop of a site with these samples."""

    def train(task: ob.ClientTask) -> None:
        classifier = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.01, random_state=0)
        classifier.partial_fit(x[:1], y[:1], classes=np.arange(10))  # makes the arrays

        def write(arrays: dict[str, np.ndarray]) -> None:
            classifier.coef_ = arrays["coef"].astype(float)
            classifier.intercept_ = arrays["intercept"].astype(float)

        task.bind(lambda: {"coef": classifier.coef_, "intercept": classifier.intercept_}, write)
        for rows in task.steps(task.batches()):
            classifier.partial_fit(x[rows.numpy()], y[rows.numpy()])
        task.submit(samples=len(x))

    return train


def evaluate(model: ob.Model) -> dict[str, float]:
    """Accuracy on the server's test set."""
    arrays = model.arrays()
    scores = PIXELS[1400:] @ arrays["coef"].T + arrays["intercept"]
    return {"accuracy": float((scores.argmax(1) == DIGITS[1400:]).mean())}


async def federation(state: Path) -> str | None:
    """Serve FedBuff until its twentieth version; returns why the run ended."""
    learner = ob.LoopLearner(loop_on(PIXELS[:0], DIGITS[:0]), INITIAL, [1], evaluate=evaluate)
    experiment = ob.Experiment(
        ob.fedbuff(2, steps=10), learner, until=ob.Until(versions=20), evaluate=ob.Every(versions=5)
    )
    async with serve(experiment, state, "127.0.0.1:0", options=ServerOptions(clients=3)) as server:
        loops = (
            ob.LoopLearner(loop_on(PIXELS[share], DIGITS[share]), None, len(share), batch_size=20)
            for share in SHARES
        )
        address = f"127.0.0.1:{server.port}"
        sites = (join(address, learner=loop, name=f"site-{k}") for k, loop in enumerate(loops))
        await asyncio.gather(*sites)
        return await server.ended()


def main() -> None:
    """Run the federation in a directory that is removed afterwards."""
    with TemporaryDirectory() as folder:
        reason = asyncio.run(federation(Path(folder) / "run"))
        run = ob.read_run(Path(folder) / "run")
        print(f"{reason}: accuracy {run.evaluations()[-1].accuracy:.2f}")


if __name__ == "__main__":
    main()
