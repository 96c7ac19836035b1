"""Gradients by CUDA graphs, captured in Python on the CPU; `tests/device/test_cuda.py` has real graphs."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import offbeat as ob
from offbeat.algorithms.fedasmu.merging import FreshMerge
from offbeat.core.buffers import OwnBuffers
from offbeat.core.errors import UsageError
from offbeat.core.learner import LocalTask
from offbeat.core.objective import Objective
from offbeat.data import federate
from offbeat.data.dataset import MapDataset
from offbeat.local.fast.cuda_graphs import FORMS, capture_on
from offbeat.local.objectives import Plain, Proximal
from tests.local.fast.python_graph import PythonGraphs
from tests.local.test_session import OBJECTIVES, TRAININGS, data, learner, start

TASK = LocalTask(1, 1, 0, 6, seed=5)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> PythonGraphs:
    made = PythonGraphs()
    monkeypatch.setattr("offbeat.local.torch_learner.capture_on", lambda device: made.capture)
    return made


def warmed(training: ob.Training, module: Any = None, **options: Any) -> ob.TorchLearner:
    """A learner after its first task, which looks at its gradients, and the first batch of each form."""
    one = learner(training) if module is None else ob.TorchLearner(module, data(), training, **options)
    for task in range(2):
        one.train(one.initial(3), LocalTask(task, 1, 0, 6, seed=5), Plain())
    return one


def assert_same(got: Any, expected: Any) -> None:
    assert torch.equal(got.delta, expected.delta)
    assert torch.equal(got.integers, expected.integers)
    assert got.metrics == expected.metrics
    assert got.state.keys() == expected.state.keys()
    assert all(torch.equal(got.state[name], tensor) for name, tensor in expected.state.items())


@pytest.mark.parametrize("objective", [*OBJECTIVES, OwnBuffers(Plain(), stateful=False)], ids=str)
@pytest.mark.parametrize("training", [*TRAININGS, ob.Training(lr=0.1, batch_size=5, clip_norm=0.1)])
def test_results_are_those_without(graphs: PythonGraphs, training: ob.Training, objective: Objective) -> None:
    arguments = start(training, objective, merge=False)
    expected = learner(training).train(*arguments)
    one = warmed(replace(training, cuda_graph=True))
    graphs.launched = 0
    assert_same(one.train(*arguments), expected)
    own_loss = type(objective).loss is not Objective.loss and not isinstance(objective, OwnBuffers)
    assert graphs.launched == (0 if own_loss else arguments[1].steps)


def test_after_a_fresh_model_steps_may_have_another_loss(graphs: PythonGraphs) -> None:
    training, objective = TRAININGS[0], FreshMerge(Proximal(0.1))
    arguments = start(training, objective, merge=True)
    expected = learner(training).train(*arguments)
    one = warmed(replace(training, cuda_graph=True))
    graphs.launched = 0
    assert_same(one.train(*arguments), expected)
    assert graphs.launched == arguments[1].fresh.after


class Rows:
    """A map-style dataset of the same samples; `told` adds what is no tensor to each."""

    def __init__(self, told: bool) -> None:
        self.whole, self.told = data().train, told

    def __len__(self) -> int:
        return len(self.whole)

    def __getitem__(self, row: int) -> Any:
        x, y = (part[0] for part in self.whole.gather(torch.tensor([row])))
        return {"input": x, "labels": y, **({"name": f"row {row}"} if self.told else {})}


def named(module: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(module(batch["input"]), batch["labels"])


@pytest.mark.parametrize("told", [False, True])
def test_batches_that_are_read_are_captured_if_they_are_tensors(graphs: PythonGraphs, told: bool) -> None:
    shares = data()
    parts = [shares.client_indices(client).numpy() for client in range(2)]
    own = federate(MapDataset(Rows(told)), None, parts)
    training, plain = (
        ob.Training(lr=0.1, batch_size=5, cuda_graph=True),
        nn.Sequential(nn.Flatten(), nn.Linear(16, 3)),
    )
    one = ob.TorchLearner(plain, own, training, step=named)
    other = ob.TorchLearner(plain, own, replace(training, cuda_graph=False), step=named)
    for task in range(3):
        local = LocalTask(task, 1, 0, 6, seed=5)
        base = one.initial(3)
        assert_same(one.train(base, local, Plain()), other.train(base, local, Plain()))
    assert graphs.captured == (0 if told else 2)


@pytest.mark.parametrize("options", [{"accumulate": 2}, {"optimizer": lambda p, lr: torch.optim.SGD(p, lr)}])
def test_what_is_not_captured_is_trained_as_ever(graphs: PythonGraphs, options: dict[str, Any]) -> None:
    training = ob.Training(lr=0.1, batch_size=5, **options)
    expected = warmed(training).train(learner(training).initial(3), TASK, Plain())
    got = warmed(replace(training, cuda_graph=True)).train(learner(training).initial(3), TASK, Plain())
    assert_same(got, expected)
    assert not graphs.captured


def test_each_form_of_a_batch_is_captured_when_it_comes_again(graphs: PythonGraphs) -> None:
    training = ob.Training(lr=0.1, batch_size=7)  # client 1 has 23 samples: three batches of 7, one of 2
    one, plain = learner(replace(training, cuda_graph=True)), learner(training)
    base, captured = one.initial(3), []
    for task in range(4):
        local = LocalTask(task, 1, 0, 4, seed=5)
        assert_same(one.train(base, local, Plain()), plain.train(base, local, Plain()))
        captured.append(graphs.captured)
    # The first task looks at its gradients.
    assert captured == [0, 1, 2, 2]


def test_no_more_forms_are_captured_than_fit(graphs: PythonGraphs) -> None:
    one = warmed(
        ob.Training(lr=0.1, batch_size=5, cuda_graph=True), nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    )
    made = one.prepare().captured
    assert made is not None
    for size in [*range(1, 3 * FORMS), *range(1, 3 * FORMS)]:
        made.of((torch.zeros(size, 16), torch.zeros(size, dtype=torch.int64)), _mean(one))
    assert graphs.captured == FORMS - 1  # one form of the warm tasks came only once


def _mean(one: ob.TorchLearner) -> Any:
    return lambda batch: one.criterion.train(one.prepare().bench.module, batch)


class Replacing(nn.Module):
    """Gives its buffer a new tensor in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 3)
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        scores: Tensor = self.layer(x - self.mean)
        return scores


class Reading(nn.Module):
    """Reads a value in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layer(x.flatten(1))
        return scores * 2 if scores.detach().sum().item() > 0 else scores


class Sparse(nn.Module):
    """Has a layer with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 3, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.table(x.flatten(1).argmax(1) % 7)
        return scores


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (Replacing, "a step of Replacing: it gives its tensor mean a new one instead of new values"),
        (Reading, r"a step of Reading: it reads values \(aten::_local_scalar_dense\). A step"),
        (Sparse, "a step of Sparse: a layer has sparse gradients"),
    ],
)
def test_what_cannot_be_captured_is_refused(graphs: PythonGraphs, module: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why) as error:
        warmed(ob.Training(lr=0.1, batch_size=5, cuda_graph=True), module)
    assert "Leave cuda_graph out to launch each step anew" in str(error.value)


def test_on_a_cpu_there_are_no_graphs() -> None:
    assert capture_on("cpu") is None
    training = ob.Training(lr=0.1, batch_size=5)
    expected = warmed(training).train(learner(training).initial(3), TASK, Plain())
    one = warmed(replace(training, cuda_graph=True))
    assert one.prepare().captured is None
    assert_same(one.train(one.initial(3), TASK, Plain()), expected)
