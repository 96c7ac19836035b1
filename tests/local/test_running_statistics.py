"""BatchNorm's running statistics that are kept by a client, or estimated anew: numbers by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import offbeat as ob
from offbeat.core.buffers import OwnBuffers, finalizer
from offbeat.core.errors import UsageError
from offbeat.core.learner import LocalTask, TaskInputs
from offbeat.core.model import Model
from offbeat.core.streams import Purpose, stream
from offbeat.data import Dataset, FederatedData, Rows, federate
from offbeat.local import running_statistics
from offbeat.local.objectives import Plain

LOCAL = OwnBuffers(Plain(), stateful=True)
FIRST, SECOND = [1.0, 3.0], [5.0, 11.0]  # the inputs of two clients: means 2 and 8, variances 2 and 18


def norm(momentum: float | None = 0.5) -> nn.Module:
    """One feature, normalised, to two scores."""
    return nn.Sequential(nn.BatchNorm1d(1, momentum=momentum), nn.Linear(1, 2))


def tiny(
    *parts: list[float], module: nn.Module | None = None, test: list[float] = FIRST, batch: int = 2
) -> ob.TorchLearner:
    def dataset(values: list[float]) -> Dataset:
        return Dataset(torch.tensor(values).unsqueeze(1), torch.arange(len(values)) % 2, 2)

    ends = np.cumsum([len(part) for part in parts])
    data = federate(
        dataset([x for part in parts for x in part]), dataset(test), np.split(np.arange(ends[-1]), ends[:-1])
    )
    return ob.TorchLearner(module or norm(), data, ob.Training(lr=0.1, batch_size=batch))


def statistics_of(model: Model) -> tuple[list[float], list[int]]:
    return model.values[model.layout.parameters :].tolist(), model.integers.tolist()


# ---- kept by a client ----


def test_a_clients_statistics_by_hand() -> None:
    learner = tiny(FIRST, SECOND)
    base = learner.initial(0)
    first = learner.train(base, LocalTask(0, 0, 0, 1, seed=1), LOCAL)
    assert first.state["buffers.floating"].tolist() == [1.0, 1.5]  # ½·0 + ½·2, ½·1 + ½·2
    assert first.state["buffers.integer"].tolist() == [1]
    assert first.delta[base.layout.parameters :].tolist() == [0.0, 0.0]
    assert first.delta[: base.layout.parameters].abs().sum() > 0
    assert torch.equal(first.integers, base.integers)
    second = learner.train(base, LocalTask(1, 0, 1, 2, seed=1), LOCAL, TaskInputs(first.state))
    assert second.state["buffers.floating"].tolist() == [1.75, 1.875]  # twice: 1.5, 1.75 and 1.75, 1.875
    assert second.state["buffers.integer"].tolist() == [3]
    assert first.state["buffers.floating"].tolist() == [1.0, 1.5]
    other = learner.train(base, LocalTask(2, 1, 1, 1, seed=1), LOCAL)
    assert other.state["buffers.floating"].tolist() == [4.0, 9.5]


def test_what_a_client_trains_is_the_same_under_every_policy() -> None:
    """In training mode BatchNorm goes by its batch: only what is kept and sent differs."""
    learner = tiny(FIRST, SECOND)
    base, task = learner.initial(0), LocalTask(0, 1, 0, 4, seed=1)
    state = learner.train(base, task, LOCAL).state
    plain = learner.train(base, task, Plain())
    for objective, inputs in (
        (LOCAL, TaskInputs(state)),
        (OwnBuffers(Plain(), stateful=False), TaskInputs()),
    ):
        own = learner.train(base, task, objective, inputs)
        parameters = base.layout.parameters
        assert torch.equal(own.delta[:parameters], plain.delta[:parameters])
        assert own.delta[parameters:].abs().sum() == 0 < plain.delta[parameters:].abs().sum()
        assert own.metrics == plain.metrics


def test_an_average_over_all_batches_counts_the_clients_own() -> None:
    """With momentum=None the counter is the denominator: a model's own would be another client's."""
    learner = tiny([1.0, 3.0], [0.0, 2.0], module=norm(None))
    base = learner.initial(0)
    counted = Model(base.layout, base.values, base.integers + 40)
    state = learner.train(base, LocalTask(0, 0, 0, 3, seed=1), LOCAL).state
    assert state["buffers.floating"].tolist() == [2.0, 2.0]
    later = learner.train(counted, LocalTask(1, 0, 9, 1, seed=1), LOCAL, TaskInputs(state))
    assert later.state["buffers.floating"].tolist() == [2.0, 2.0]
    assert later.state["buffers.integer"].tolist() == [4]
    assert later.integers.tolist() == [40]
    moved = learner.train(counted, LocalTask(2, 1, 9, 1, seed=1), LOCAL, TaskInputs(state))
    assert moved.state["buffers.floating"].tolist() == [1.75, 2.0]  # (3·2 + 1)/4


# ---- estimated anew ----


def test_statistics_of_all_clients_samples_by_hand() -> None:
    learner = tiny(FIRST, SECOND)
    base = learner.initial(0)
    found = learner.estimated(base, 3)
    assert statistics_of(found) == ([5.0, pytest.approx(56 / 3)], [1])  # 4² + 2² + 0² + 6²
    assert torch.equal(found.values[: base.layout.parameters], base.values[: base.layout.parameters])
    assert statistics_of(base) == ([0.0, 1.0], [0])
    trained = Model(
        base.layout, base.values + 7, base.integers + 40
    )  # such as a module that was made with some
    assert statistics_of(learner.estimated(trained, 3)) == statistics_of(found)


def test_a_later_layers_statistics_are_of_what_reaches_it() -> None:
    """The first makes ±1 of its inputs, by its batch as it trains; the second gets three times that and 7."""
    module = nn.Sequential(nn.BatchNorm1d(1, eps=1e-9), nn.Linear(1, 1), nn.BatchNorm1d(1), nn.Linear(1, 2))
    with torch.no_grad():
        module[1].weight.fill_(3.0)
        module[1].bias.fill_(7.0)
    learner = tiny([10.0, 10.0, 14.0, 14.0], module=module)
    (mean, variance, later_mean, later_variance), _ = statistics_of(learner.estimated(learner.initial(0), 0))
    assert (mean, variance) == (12.0, pytest.approx(16 / 3))
    assert later_mean == pytest.approx(7.0)
    assert later_variance == pytest.approx(4 * 9 / 3)


def test_several_batches_count_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_statistics, "BATCH", 2)
    learner = tiny(FIRST, SECOND)
    (mean, variance), counter = statistics_of(learner.estimated(learner.initial(0), 3))
    order = stream(3, Purpose.STATISTICS).choice(4, 4, replace=False)
    batches = np.array(FIRST + SECOND)[order].reshape(2, 2)
    assert (mean, counter) == (5.0, [2])
    assert variance == pytest.approx(batches.var(1, ddof=1).mean())
    monkeypatch.setattr(running_statistics, "BATCH", 4)
    assert [len(part) for part in running_statistics.pieces(torch.arange(9))] == [3, 3, 3]
    assert [len(part) for part in running_statistics.pieces(torch.arange(5))] == [3, 2]


def test_no_more_samples_than_are_wanted_and_the_seed_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.local.running_statistics.SAMPLES", 3)
    numbers = [float(2**i) for i in range(10)]
    learner = tiny(numbers[:4], numbers[4:])
    means = [statistics_of(learner.estimated(learner.initial(0), seed))[0][0] for seed in range(5)]
    drawn = [stream(seed, Purpose.STATISTICS).choice(10, 3, replace=False) for seed in range(5)]
    assert means == pytest.approx([sum(numbers[i] for i in rows) / 3 for rows in drawn])
    assert len(set(means)) > 1


def test_only_samples_that_clients_have_are_used() -> None:
    source = Dataset(torch.tensor([[1.0], [3.0], [1000.0]]), torch.tensor([0, 1, 0]), 2)
    learner = ob.TorchLearner(norm(), federate(source, source, [np.array([0, 1])]), ob.Training())
    assert statistics_of(learner.estimated(learner.initial(0), 0))[0] == [2.0, 2.0]


def test_who_has_no_client_uses_the_test_inputs() -> None:
    test = Dataset(torch.tensor([[1.0], [3.0], [2.0]]), torch.tensor([0, 1, 0]), 2)
    none = Dataset(torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64), 2)
    data = FederatedData(none, test, Rows.of([]))
    learner = ob.TorchLearner(norm(), data)
    assert statistics_of(learner.estimated(learner.initial(0), 0))[0] == [2.0, 1.0]


def test_one_sample_is_too_few() -> None:
    learner = tiny([1.0])
    with pytest.raises(UsageError, match="cannot be estimated from 1 samples: give at least two"):
        finalizer("recompute", learner, learner.initial(0), 0)


def test_estimating_leaves_everything_else_alone() -> None:
    """The momentum, the next training, the global random numbers; dropout has a stream of its own."""
    module = nn.Sequential(nn.Dropout(0.5), *norm(0.5))
    learner = tiny(FIRST, SECOND, module=module)
    base, task = learner.initial(0), LocalTask(0, 1, 0, 4, seed=1)
    before, state = learner.train(base, task, Plain()), torch.get_rng_state()
    found = [learner.estimated(base, 3) for _ in range(2)]
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(found[0].values, found[1].values)
    assert torch.equal(learner.train(base, task, Plain()).delta, before.delta)
    torch.manual_seed(12345)
    assert torch.equal(learner.estimated(base, 3).values, found[0].values)
    assert not torch.equal(learner.estimated(base, 4).values, found[0].values)


class Frozen(nn.BatchNorm1d):
    """As in a network whose pre-trained statistics are to stay."""

    def train(self, mode: bool = True) -> "Frozen":
        return super().train(False)


def test_a_frozen_layer_keeps_its_statistics_and_normalises_by_them() -> None:
    frozen = Frozen(1, eps=0.0)
    frozen.running_mean.fill_(1.0)
    frozen.running_var.fill_(4.0)
    learner = tiny(FIRST, module=nn.Sequential(frozen, nn.BatchNorm1d(1), nn.Linear(1, 2)))
    found, counters = statistics_of(learner.estimated(learner.initial(0), 0))
    assert found == [1.0, 4.0, 0.5, 0.5]  # (1 − 1)/2 and (3 − 1)/2: mean ½, variance ½
    assert counters == [0, 1]


def test_buffers_that_are_no_statistics_stay() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(1, track_running_stats=False)
            self.register_buffer("scale", torch.tensor([3.0]))
            self.last = nn.Linear(1, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.norm(x) * self.scale)

    learner = tiny(FIRST, module=Scaled())
    assert statistics_of(learner.estimated(learner.initial(0), 0)) == ([3.0], [])


def test_other_running_statistics_are_refused_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(
        nn.Flatten(),
        nn.Unflatten(1, (1, 1)),
        nn.InstanceNorm1d(1, affine=True, track_running_stats=True),
    )
    algorithm, learner = replace(ob.fedavg(steps=1), buffers="recompute"), tiny(FIRST, module=module)

    def train(*_: object) -> None:
        raise AssertionError("nothing is trained")

    monkeypatch.setattr(learner, "train", train)
    with pytest.raises(UsageError, match=r"statistics of 2 \(InstanceNorm1d\) cannot be estimated, only Bat"):
        ob.simulate(algorithm, learner=learner, evaluate=None)
