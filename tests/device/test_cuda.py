"""On a CUDA GPU: what the pretended device shows without one. `make test-gpu` runs what is marked so."""

import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import offbeat as ob
from offbeat.core.errors import UsageError
from offbeat.core.learner import LocalResult, LocalTask
from offbeat.local.device import full_precision
from offbeat.local.objectives import Plain, Proximal
from offbeat.models.resnet import ResNet
from tests.local.fast.test_cuda_graphs import Reading, Replacing
from tests.local.test_session import data
from tests.sim.sim_worlds import CALM, digits, make, mlp, normed

pytestmark = pytest.mark.cuda


def on_gpu(learner: ob.TorchLearner, **options: Any) -> ob.TorchLearner:
    return ob.TorchLearner(learner.module, learner.data, replace(learner.training, device="cuda", **options))


@contextmanager
def waits(mode: str) -> Iterator[list[str]]:
    """Notes each wait for the GPU that PyTorch sees, or has it raise an error."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode(mode)
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")
    found += [str(one.message) for one in caught if "called a synchronizing" in str(one.message)]


@pytest.mark.parametrize("graph", [False, True])
def test_local_steps_wait_for_nothing(monkeypatch: pytest.MonkeyPatch, graph: bool) -> None:
    learner = on_gpu(digits(normed), cuda_graph=graph)
    base = learner.initial(1).to("cuda")
    for task in range(2):  # the first looks at its gradients, the second captures
        learner.train(base, LocalTask(task, 0, 0, 20, 1), Plain())
    import offbeat.local.torch_learner as module

    steps = module.take_steps

    def watched(*args: Any) -> None:
        with waits("error"):
            steps(*args)

    monkeypatch.setattr(module, "take_steps", watched)
    result = learner.train(base, LocalTask(2, 0, 0, 20, 1), Plain())
    assert result.delta.device.type == "cuda"


def test_a_task_and_an_evaluation_wait_once() -> None:
    learner = on_gpu(digits(normed))
    base = learner.initial(1).to("cuda")
    learner.train(base, LocalTask(0, 0, 0, 2, 1), Plain())
    learner.evaluate(base)
    with waits("warn") as task:
        learner.train(base, LocalTask(1, 0, 0, 20, 1), Plain())
    with waits("warn") as evaluation:
        learner.evaluate(base)
    assert (len(task), len(evaluation)) == (1, 1)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", ob.ALGORITHMS)
def test_each_algorithm_is_near_the_run_on_the_cpu(name: str, graph: bool) -> None:
    """As far as few tasks let rounding grow."""
    options: dict[str, Any] = {"until": ob.Until(tasks=10), "evaluate": None, "seed": 1}
    learner = digits(mlp)
    here = ob.simulate(make(name), CALM, learner, **options)
    there = ob.simulate(make(name), CALM, on_gpu(learner, cuda_graph=graph), **options)
    assert there.model.values.device.type == "cpu"
    moved = here.model.values - learner.initial(1).values
    assert (there.model.values - here.model.values).norm() <= 0.05 * moved.norm()


def test_workers_share_the_gpu() -> None:
    """As near as two runs of one process are, whose sums the GPU may make in another order."""
    options: dict[str, Any] = {"until": ob.Until(tasks=10), "evaluate": None, "seed": 1}
    learner = digits(mlp)
    alone = ob.simulate(make("fedbuff"), CALM, on_gpu(learner), **options)
    shared = ob.simulate(make("fedbuff"), CALM, on_gpu(learner), workers=2, **options)
    assert shared.journal == alone.journal
    torch.testing.assert_close(shared.model.values, alone.model.values, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("training", [{}, {"optimizer": "adamw", "lr": 0.01, "precision": "bfloat16"}])
def test_tasks_are_trained_together(training: dict[str, Any]) -> None:
    shares = digits(mlp).data
    losses = []
    for device, executor in (("cpu", None), ("cuda", ob.Batched(4))):
        learner = ob.TorchLearner(mlp, shares, ob.Training(batch_size=20, device=device, **training))
        until = ob.Until(tasks=30)
        run = ob.simulate(ob.fedavg(steps=5), CALM, learner, seed=1, until=until, executor=executor)
        losses.append(run.metrics[-1]["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=0.1)


class Attending(nn.Module):
    """An encoder layer over the eight rows of a digit."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.classes = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classes(self.layer(x.flatten(1).view(-1, 8, 8)).mean(1))
        return scores


class Recurrent(nn.Module):
    """An LSTM over the rows of a digit."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(8, 12, batch_first=True)
        self.classes = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classes(self.layer(x.flatten(1).view(-1, 8, 8))[0][:, -1])
        return scores


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 10),
    )  # fmt: skip


def residual() -> nn.Module:
    """Eighteen layers, whose rounding in TF32 is more than the batched trainer takes for rounding."""
    return _group_normed(ResNet(1, 10, 16, (2, 2, 2, 2)))


def _group_normed(module: nn.Module) -> nn.Module:
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, nn.GroupNorm(4, child.num_features))
        else:
            _group_normed(child)
    return module


@pytest.mark.parametrize("module", [Attending, residual])
def test_deep_models_are_trained_together(module: Callable[[], nn.Module]) -> None:
    one = on_gpu(digits(module), lr=0.02)
    options: dict[str, Any] = {"seed": 1, "until": ob.Until(tasks=8), "evaluate": None}
    with full_precision("cuda"):
        models = [
            ob.simulate(ob.fedavg(steps=3), CALM, one, executor=executor, **options).model.values
            for executor in (None, ob.Batched(4))
        ]
    moved = (models[0] - one.initial(1).values).norm()
    assert (models[1] - models[0]).norm() <= 0.05 * moved


TRAININGS: list[dict[str, Any]] = [
    {"momentum": 0.9, "weight_decay": 0.01},
    {"optimizer": "adamw", "lr": 0.01, "clip_norm": 0.5},
    {"precision": "bfloat16"},
]


def two_tasks(learner: ob.TorchLearner, seed: int = 1) -> LocalResult:
    """The second of two tasks from the same model: the first looks at its gradients."""
    base = learner.initial(1).to("cuda")
    results = [learner.train(base, LocalTask(task, 0, 0, 12, seed), Proximal(0.1)) for task in range(2)]
    return results[1]


@pytest.mark.parametrize("training", TRAININGS, ids=["momentum", "adamw", "bfloat16"])
@pytest.mark.parametrize("module", [mlp, convolutional, Attending, Recurrent])
def test_steps_as_cuda_graphs_give_what_they_give_without(
    module: Callable[[], nn.Module], training: dict[str, Any]
) -> None:
    learner = on_gpu(digits(module), **training)
    expected, got = two_tasks(learner), two_tasks(on_gpu(learner, cuda_graph=True))
    assert (got.delta - expected.delta).norm() <= 0.02 * expected.delta.norm()
    assert torch.equal(got.integers, expected.integers)
    assert got.metrics["loss"] == pytest.approx(expected.metrics["loss"], rel=0.01)


def test_dropout_in_a_cuda_graph_follows_from_the_seed() -> None:
    learner = on_gpu(digits(normed), cuda_graph=True)
    first, again, other = (two_tasks(learner, seed).delta for seed in (1, 1, 2))
    torch.testing.assert_close(again, first, rtol=1e-3, atol=1e-5)
    assert (other - first).norm() > 0.1 * first.norm()


@pytest.mark.parametrize("graph", [False, True])
def test_runs_have_the_same_bits_with_deterministic_algorithms(graph: bool) -> None:
    words = [sys.executable, "-m", "tests.device.deterministic_runs", "cuda", str(graph).lower()]
    first, again = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
    assert first == again


class Synchronizing(nn.Module):
    """Waits for the GPU in each step, which shows only when it is captured."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Tensor:
        torch.cuda.synchronize()
        scores: Tensor = self.layer(x)
        return scores


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (Reading, "it reads values"),
        (Replacing, "its tensor mean a new one"),
        (Synchronizing, "operation not permitted when stream is capturing"),
    ],
)
def test_what_a_cuda_graph_cannot_capture_is_refused_and_the_gpu_goes_on(
    module: Callable[[], nn.Module], why: str
) -> None:
    learner = ob.TorchLearner(module, data(), ob.Training(batch_size=5, device="cuda", cuda_graph=True))
    with pytest.raises(UsageError, match=why):
        two_tasks(learner)
    assert two_tasks(on_gpu(digits(normed))).delta.isfinite().all()
    assert two_tasks(on_gpu(digits(normed), cuda_graph=True)).delta.isfinite().all()


def test_another_thread_may_compute_while_a_graph_is_captured() -> None:
    ended, errors = threading.Event(), []

    def compute() -> None:
        try:
            while not ended.is_set():
                x = torch.ones(300, 300, device="cuda")  # random numbers are one capture's at a time
                assert float((x @ x).sum()) == 300**3
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        for _ in range(5):
            assert two_tasks(on_gpu(digits(mlp), cuda_graph=True)).delta.isfinite().all()
    finally:
        ended.set()
        thread.join()
    assert not errors
