"""Scores that a loss takes for something else get a line, once in a run; honest ones get none."""

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import offbeat as ob
from offbeat.data import Dataset
from offbeat.local.losses import dice_loss

N = 32
UNTIL = ob.Until(tasks=4)


def data(y: Tensor, x: Tensor | None = None) -> ob.FederatedData:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(len(y), 4, generator=generator) if x is None else x
    part = Dataset(x, y)
    return ob.federate([part, part, part], test=part)


CLASSES = torch.arange(N) % 3
BINARY = (torch.arange(N) % 2).float()
NUMBERS = torch.linspace(0, 1, N)


def softmax() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))


class Shares(nn.Module):
    """Probabilities that no softmax of PyTorch's makes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return functional.normalize(self.linear(x).exp(), p=1.0)


def sigmoid() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 1), nn.Sigmoid(), nn.Flatten(0))


def linear(outputs: int) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(4, outputs)


def log_softmax() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1))


def positive_logits() -> nn.Module:
    """One logit in [0, 1] for each sample, as of a module that has just been made."""
    module = nn.Linear(4, 1)
    nn.init.zeros_(module.weight)
    nn.init.constant_(module.bias, 0.5)
    return nn.Sequential(module, nn.Flatten(0))


def nll_step(module: nn.Module, batch: Any) -> Tensor:
    return functional.nll_loss(module(batch[0]), batch[1])


def cross_entropy_step(module: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(module(batch[0]), batch[1])


def focal(scores: Tensor, target: Tensor) -> Tensor:
    log_p = torch.log_softmax(scores, 1)
    return -((1 - log_p.exp()) ** 2 * log_p).gather(1, target.unsqueeze(1)).mean()


class Attention(nn.Module):
    """A module that uses probabilities inside."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x * self.query(x).softmax(1).softmax(1))


def run(
    module: Callable[[], nn.Module],
    y: Tensor,
    loss: Any = None,
    step: Any = None,
    workers: int = 0,
    **options: Any,
) -> None:
    learner = ob.TorchLearner(module, data(y, **options), ob.Training(batch_size=8), loss, step=step)
    ob.simulate(
        ob.fedasync(steps=2), ob.World(clients=3), learner, until=UNTIL, workers=workers, evaluate=None
    )


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


CROSS_ENTROPY = "cross_entropy, which takes logits, and gets probabilities, made by a softmax"
BCE = "binary_cross_entropy_with_logits, which takes logits, and gets probabilities, made by a sigmoid"
IMAGES = torch.randn(N, 1, 4, 4, generator=torch.Generator().manual_seed(0))
MASKS = (torch.arange(N * 16) % 2).view(N, 4, 4)
MISREAD: dict[str, tuple[dict[str, Any], str]] = {
    "softmax": ({"module": softmax, "y": CLASSES}, CROSS_ENTROPY),
    "softmax by module": ({"module": softmax, "y": CLASSES, "loss": nn.CrossEntropyLoss()}, CROSS_ENTROPY),
    "shares": ({"module": Shares, "y": CLASSES}, CROSS_ENTROPY.replace("softmax", "normalization")),
    "in a step": ({"module": softmax, "y": CLASSES, "step": cross_entropy_step}, CROSS_ENTROPY),
    "own loss": ({"module": softmax, "y": CLASSES, "loss": focal}, "the loss calls log_softmax, which takes"),
    "sigmoid": ({"module": sigmoid, "y": BINARY, "loss": nn.BCEWithLogitsLoss()}, BCE),
    "sigmoid of classes": (
        {"module": lambda: nn.Sequential(nn.Linear(4, 3), nn.Sigmoid()), "y": CLASSES},
        "cross_entropy, which takes logits, and gets probabilities, made by a sigmoid",
    ),
    "one class of a softmax": (
        {
            "module": softmax,
            "y": BINARY,
            "loss": lambda p, y: functional.binary_cross_entropy_with_logits(p[:, 1], y),
        },
        "made by a softmax",
    ),
    "dice": (
        {
            "module": lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.Softmax(1)),
            "y": MASKS, "x": IMAGES, "loss": dice_loss,
        },
        "the loss calls softmax, which takes logits",
    ),
    "logits for logarithms": (
        {"module": linear(3), "y": CLASSES, "step": nll_step},
        "nll_loss takes logarithms of probabilities, which are at most 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MISREAD)
def test_misread_scores_get_one_line(case: str, caplog: pytest.LogCaptureFixture) -> None:
    options, expected = MISREAD[case]
    run(**options)
    (line,) = lines(caplog)
    assert expected in line


def test_workers_log_a_line_once(caplog: pytest.LogCaptureFixture) -> None:
    run(softmax, CLASSES, workers=2)
    (line,) = lines(caplog)
    assert CROSS_ENTROPY in line


HONEST: dict[str, dict[str, Any]] = {
    "logits": {"module": linear(3), "y": CLASSES},
    "log-softmax before cross entropy": {"module": log_softmax, "y": CLASSES},
    "log-softmax before nll": {"module": log_softmax, "y": CLASSES, "step": nll_step},
    "sigmoid before BCE": {"module": sigmoid, "y": BINARY, "loss": nn.BCELoss()},
    "logits in [0, 1]": {"module": positive_logits, "y": BINARY, "loss": nn.BCEWithLogitsLoss()},
    "scaled sigmoid": {
        "module": lambda: nn.Sequential(nn.Linear(4, 1), nn.Sigmoid(), nn.Linear(1, 1), nn.Flatten(0)),
        "y": BINARY, "loss": nn.BCEWithLogitsLoss(),
    },
    "own loss": {"module": linear(3), "y": CLASSES, "loss": focal},
    "probabilities inside": {"module": Attention, "y": CLASSES, "step": cross_entropy_step},
    "soft targets": {"module": linear(3), "y": torch.full((N, 3), 1 / 3), "loss": nn.CrossEntropyLoss()},
    "numbers of one shape": {"module": linear(1), "y": NUMBERS.unsqueeze(1), "loss": nn.MSELoss()},
    "squeezed": {
        "module": linear(1), "y": NUMBERS, "loss": lambda scores, y: (scores.squeeze(1) - y).square().mean(),
    },
    "pairs of labels": {
        "module": linear(8), "y": CLASSES,
        "loss": lambda z, y: ((y.view(-1, 1) == y).float() - z @ z.T).square().mean(),
    },
    "all pairs, as is written": {
        "module": linear(1), "y": NUMBERS, "loss": lambda scores, y: (scores - y.unsqueeze(0)).abs().mean(),
    },
    "as many bins as samples": {
        "module": linear(1), "y": NUMBERS,
        "loss": lambda scores, y: (scores - torch.linspace(0, 1, 8)).square().mean() + y.mean(),
    },
}  # fmt: skip


@pytest.mark.parametrize("case", HONEST)
def test_honest_scores_get_no_line(case: str, caplog: pytest.LogCaptureFixture) -> None:
    run(**HONEST[case])
    assert not lines(caplog)


def rmse(scores: Tensor, target: Tensor) -> Tensor:
    return ((scores - target) ** 2).mean().sqrt()


def own_step(module: nn.Module, batch: Any) -> Tensor:
    return rmse(module(batch[0]), batch[1].float())


BROADCAST: dict[str, dict[str, Any]] = {
    "own loss": {"module": linear(1), "y": NUMBERS, "loss": rmse},
    "in float64": {"module": linear(1), "y": NUMBERS, "loss": lambda scores, y: rmse(scores, y.double())},
    "the other way": {
        "module": lambda: nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)),
        "y": NUMBERS.unsqueeze(1), "loss": rmse,
    },
    "inside": {"module": linear(1), "y": BINARY, "loss": lambda s, y: -(y * functional.logsigmoid(s)).mean()},
    "of PyTorch": {"module": linear(1), "y": NUMBERS, "loss": lambda s, y: functional.mse_loss(s, y)},
    "in a step": {"module": linear(1), "y": NUMBERS, "step": own_step},
    "masks": {"module": lambda: nn.Conv2d(1, 1, 1), "y": MASKS.float(), "x": IMAGES, "loss": rmse},
}  # fmt: skip


@pytest.mark.parametrize("case", BROADCAST)
def test_a_loss_that_broadcasts_is_refused(case: str) -> None:
    with pytest.raises(ob.UsageError, match=re.escape("the loss broadcasts an output of shape [8")):
        run(**BROADCAST[case])


def test_a_batch_of_one_sample_hides_no_broadcast_of_the_next() -> None:
    learner = ob.TorchLearner(linear(1), data(NUMBERS[:9]), ob.Training(batch_size=8), rmse)
    with pytest.raises(ob.UsageError, match="the loss broadcasts"):
        ob.simulate(ob.fedasync(epochs=1), ob.World(clients=3), learner, until=UNTIL, evaluate=None)


def test_tasks_trained_together_are_looked_at_too(caplog: pytest.LogCaptureFixture) -> None:
    learner = ob.TorchLearner(softmax, data(CLASSES), ob.Training(batch_size=8))
    ob.simulate(
        ob.fedasync(steps=2), ob.World(clients=3), learner, until=UNTIL, executor=ob.Batched(3), evaluate=None
    )
    (line,) = lines(caplog)
    assert CROSS_ENTROPY in line


def test_a_default_metric_that_is_left_out_gets_a_line(caplog: pytest.LogCaptureFixture) -> None:
    masks = MASKS.clone()
    masks[-1, 0, 0] = 255
    learner = ob.TorchLearner(
        lambda: nn.Conv2d(1, 2, 1), data(masks, IMAGES), ob.Training(batch_size=8, evaluation_batch_size=8),
        nn.CrossEntropyLoss(ignore_index=255),
    )  # fmt: skip
    found = ob.simulate(ob.fedasync(steps=2), ob.World(clients=3), learner, until=UNTIL)
    assert found.metrics[-1]["accuracy"] is None
    (line,) = lines(caplog)
    assert "evaluations have the loss alone" in line
    assert "has the target 255" in line


def test_default_metrics_whose_classes_could_be_anywhere_get_a_line(caplog: pytest.LogCaptureFixture) -> None:
    learner = ob.TorchLearner(
        lambda: nn.Sequential(nn.Linear(4, 16), nn.Unflatten(1, (4, 4))),
        data(torch.zeros(N, 4, dtype=torch.int64)), ob.Training(batch_size=8),
    )  # fmt: skip
    ob.simulate(ob.fedasync(steps=2), ob.World(clients=3), learner, until=UNTIL)
    (line,) = lines(caplog)
    assert "does not tell which dimension is that of the classes" in line
