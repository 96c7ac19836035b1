"""A training loop of your own in PyTorch, under FedCompass and FedASMU.

FedCompass says how many steps a task has; FedASMU sends fresh models in between.
The loop is plain PyTorch and stays yours; `task` is all that it knows of the federation.

    python examples/own_loop.py
"""

import torch
from torch import nn
from torch.nn import functional

import offbeat as ob


def points(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of the square; the class says whether both coordinates have the same sign."""
    x = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return x, (x[:, 0] * x[:, 1] > 0).long()


CLIENTS = [points(count, seed) for seed, count in enumerate([80, 120, 160, 320])]
TEST = points(500, seed=99)


def net() -> nn.Module:
    """Two inputs, two classes."""
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))


def train(task: ob.ClientTask) -> None:
    """One task of one client."""
    x, y = CLIENTS[task.client]
    module = task.load_into(net())
    lr = 0.05 * task.lr_factor
    optimizer = torch.optim.Adam(module.parameters(), lr)

    def loss(rows: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(module(x[rows]), y[rows])

    for rows in task.steps(task.batches(), loss=loss):
        optimizer.zero_grad()
        task.penalized(loss(rows)).backward()  # what the algorithm adds to the loss
        task.correct_gradients()  # and to the gradients
        optimizer.step()
    task.submit(module.state_dict(), samples=len(x), lr=lr)


def evaluate(model: ob.Model) -> dict[str, float]:
    """Accuracy and loss on the common test set."""
    module, (x, y) = model.load_into(net()).eval(), TEST
    with torch.inference_mode():
        scores = module(x)
        return {
            "accuracy": float((scores.argmax(1) == y).float().mean()),
            "loss": float(functional.cross_entropy(scores, y)),
        }


def main() -> None:
    """Run two algorithms with the same loop."""
    learner = ob.LoopLearner(train, net, [len(x) for x, _ in CLIENTS], batch_size=20, evaluate=evaluate)
    world = ob.World([0.1, 0.15, 0.3, 0.5])
    for algorithm in (ob.fedcompass(q_min=4, q_max=40), ob.fedasmu(epochs=4, size=2, period=1, threshold=5)):
        run = ob.simulate(
            algorithm, world, learner, seed=0, until=ob.Until(tasks=80), evaluate=ob.Every(versions=10)
        )
        steps = [row["steps"] for row in run.entries("train")]
        merged = sum("beta" in row for row in run.entries("arrived"))
        print(f"{algorithm.name}: accuracy {run.summary.best_accuracy:.2f}, {merged} fresh models merged,")
        print(f"  {min(steps)} to {max(steps)} steps a task")


if __name__ == "__main__":
    main()
