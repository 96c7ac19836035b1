"""Runs whose clients send no running statistics: the same bits everywhere, and what they are good for."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import offbeat as ob
import offbeat.sim.executors.start as module
from offbeat.core.buffers import Buffers
from offbeat.core.learner import NO_INPUTS, LocalResult, LocalTask, TaskInputs
from offbeat.core.model import Model
from offbeat.core.objective import Objective
from offbeat.data import Dataset
from offbeat.runs.files import read_tensors
from offbeat.sim.executors.processes import ProcessPool
from tests.sampling import thorough
from tests.sim.sim_worlds import CALM, WORLDS, Lent, Wrapped, digits, make, normed, on_disk, outcome

UNSENT = pytest.mark.parametrize("policy", ["local", "recompute"])
UNTIL = ob.Until(tasks=40)


def changed(name: str, policy: Buffers) -> ob.Algorithm:
    return replace(make(name), buffers=policy)


@pytest.fixture(scope="module")
def learner() -> ob.TorchLearner:
    return digits(normed)


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One worker process for all runs of a test; it trains for one objective only."""
    pools: list[ProcessPool] = []

    def lend(learner: Any, objective: Any, count: int) -> Lent:
        if not pools:
            pools.append(ProcessPool(learner, objective, count))
        return Lent(pools[0])

    monkeypatch.setattr(module, "ProcessPool", lend)
    yield
    for pool in pools:
        pool.close()


CASES = [("fedasmu", "local"), *thorough(("fedavg", "recompute"), ("fedavg", "local"), ("moon", "local"))]


@pytest.mark.thorough
@pytest.mark.usefixtures("lent")
@pytest.mark.parametrize(("name", "policy"), CASES)
def test_workers_change_nothing(name: str, policy: Buffers, learner: ob.TorchLearner) -> None:
    algorithm = changed(name, policy)
    for seed in (0, 1):
        alone, two = (
            ob.simulate(algorithm, WORLDS["hard"], learner, seed=seed, until=UNTIL, workers=n) for n in (0, 2)
        )
        assert outcome(alone) == outcome(two)
    assert alone.summary.lost > 0
    kept = 4 * 24 + 8  # running means and variances of twelve, a counter
    others = {"moon": 4 * (64 * 12 + 12 + 12 + 12 + 24 + 130), "fedasmu": 16}.get(name, 0)
    per_client = kept * (policy == "local") + others
    assert alone.summary.client_state_bytes == 5 * per_client


@pytest.mark.parametrize(
    ("name", "policy"),
    [("fedasmu", "local"), ("fedbuff", "recompute"),
     *thorough(("fedasmu", "recompute"), ("fedbuff", "local"), ("fedfa", "local"), ("fedfa", "recompute"))],
)  # fmt: skip
def test_looking_changes_nothing(name: str, policy: Buffers, learner: ob.TorchLearner) -> None:
    runs = [
        outcome(
            ob.simulate(changed(name, policy), WORLDS["hard"], learner, seed=3, until=UNTIL, evaluate=every)
        )
        for every in (ob.Every(seconds=3), ob.Every(versions=1), None)
    ]
    for run in runs[1:]:
        for part in ("model", "integers", "journal", "stop"):
            assert run[part] == runs[0][part], part


@UNSENT
@pytest.mark.usefixtures("one_thread")
def test_the_model_that_is_evaluated_is_the_one_that_is_written(
    policy: Buffers, learner: ob.TorchLearner, tmp_path: Path
) -> None:
    run = ob.simulate(changed("fedbuff", policy), CALM, learner, until=UNTIL, out=tmp_path)
    evaluated = learner.evaluate(run.model)
    assert {name: run.metrics[-1][name] for name in evaluated} == evaluated
    for name, tensor in read_tensors(tmp_path / "model.safetensors").items():
        assert torch.equal(tensor, run.model.state_dict()[name])
    again = ob.resume(tmp_path, changed("fedbuff", policy), CALM, learner, until=UNTIL)
    assert torch.equal(again.model.values, run.model.values)
    estimated = learner.estimated(run.model, 0)  # from the same samples, whatever statistics it has
    assert torch.equal(estimated.values, run.model.values)
    assert estimated.integers.tolist() == run.model.integers.tolist() == [2]  # 300 samples
    assert run.model.state_dict()["2.running_mean"].abs().sum() > 0


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("fedasmu", "local"),
        ("fedbuff", "recompute"),
        *thorough(("fedasmu", "recompute"), ("fedbuff", "local")),
    ],
)
def test_interrupted_runs_end_as_if_they_never_had_been(
    name: str, policy: Buffers, learner: ob.TorchLearner, tmp_path: Path
) -> None:
    class Interrupting(Wrapped):
        at: ClassVar[set[int]] = set()

        def before(self, task: LocalTask) -> None:
            if task.task in self.at:
                self.at.remove(task.task)
                os.kill(os.getpid(), signal.SIGINT)

        def estimated(self, model: Model, seed: int) -> Model:
            return self.learner.estimated(model, seed)

    algorithm, world = changed(name, policy), WORLDS["hard"]
    options = {"until": UNTIL, "client_memory": 300}  # of two clients' statistics; the others' are in files
    whole = ob.simulate(algorithm, world, learner, seed=4, out=tmp_path / "whole", **options)
    trained = [entry["task"] for entry in whole.entries("arrived")]
    Interrupting.at = {trained[8], trained[25]}
    broken, breaks = tmp_path / "broken", Interrupting(learner)
    with pytest.raises(KeyboardInterrupt):
        ob.simulate(algorithm, world, breaks, seed=4, out=broken, **options)
    with pytest.raises(KeyboardInterrupt):
        ob.resume(broken, algorithm, world, breaks, **options)
    resumed = ob.resume(broken, algorithm, world, learner, **options)
    assert outcome(resumed) == outcome(whole)
    assert on_disk(broken) == on_disk(tmp_path / "whole")


@UNSENT
def test_models_without_buffers_are_trained_as_ever(policy: Buffers) -> None:
    plain = digits()
    for algorithm in (make("fedavg"), make("fedasmu")):
        ever = ob.simulate(algorithm, WORLDS["hard"], plain, until=UNTIL)
        other = ob.simulate(replace(algorithm, buffers=policy), WORLDS["hard"], plain, until=UNTIL)
        assert outcome(other) == outcome(ever)
    together = [
        ob.simulate(a, CALM, plain, until=UNTIL, executor=ob.Batched(4))
        for a in (make("fedprox"), changed("fedprox", policy))
    ]
    assert outcome(together[0]) == outcome(together[1])


@UNSENT
def test_what_trains_many_together_refuses_models_with_buffers(
    policy: Buffers, learner: ob.TorchLearner
) -> None:
    with pytest.raises(ob.UsageError, match="cannot train with buffers = 'local' or 'recompute'"):
        ob.simulate(changed("fedavg", policy), CALM, learner, until=UNTIL, executor=ob.Batched(4))


@UNSENT
def test_an_update_held_for_a_shared_radio(policy: Buffers) -> None:
    """A client whose update is not wanted has trained all the same: it keeps its statistics."""
    normed = digits(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10)))
    algorithm = changed("wireless", policy)
    run = ob.simulate(algorithm, WORLDS["calm"], normed, until=UNTIL)
    again = ob.simulate(algorithm, WORLDS["calm"], normed, until=UNTIL)
    assert outcome(run) == outcome(again)
    assert run.summary.client_state_bytes == (88 * 5 if policy == "local" else 0)


# ---- what they are good for ----


SCALES, CLIENTS = (1.0, 40.0), 2


class Watched(Wrapped):
    """Remembers what each client keeps."""

    def __init__(self, learner: ob.TorchLearner) -> None:
        super().__init__(learner)
        self.states: dict[int, Any] = {}

    def train(
        self, base: Model, task: LocalTask, objective: Objective, inputs: TaskInputs = NO_INPUTS
    ) -> LocalResult:
        result = self.learner.train(base, task, objective, inputs)
        self.states[task.client] = result.state
        return result

    def estimated(self, model: Model, seed: int) -> Model:
        return self.learner.estimated(model, seed)


def shifted() -> tuple[ob.TorchLearner, list[Dataset]]:
    """Two clients with digits of all kinds; the pixels of one are forty times brighter, and 100 more."""
    source = ob.load("digits")
    train, test = source.train, source.test
    owner = torch.arange(len(train.y)) % CLIENTS
    scale, offset = torch.tensor(SCALES), torch.tensor([0.0, 100.0])
    x = train.x * scale[owner].view(-1, 1, 1, 1) + offset[owner].view(-1, 1, 1, 1)
    parts = [np.flatnonzero(owner.numpy() == i) for i in range(CLIENTS)]
    tests = [Dataset(test.x * SCALES[i] + offset[i], test.y, 10) for i in range(CLIENTS)]

    def net() -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10)
        )

    data = ob.federate(Dataset(x, train.y, 10), tests[0], parts)
    return ob.TorchLearner(net, data, ob.Training(lr=0.1, batch_size=32)), tests


@pytest.mark.thorough
def test_each_client_has_statistics_of_its_own_and_is_the_better_for_it() -> None:
    """Clients whose inputs differ in scale and not in kind: measured on such inputs as each of them has.

    Seeded, so the numbers are always the same: with statistics of their own 0.96 and 0.96, with the mean of
    both 0.10 and 0.09, with those of all samples 0.10 and 0.50.
    """
    learner, tests = shifted()
    until = ob.Until(tasks=80)
    found: dict[str, list[float]] = {}
    for policy in ("local", "recompute", "mean"):
        watched = Watched(learner)
        algorithm = replace(ob.fedbuff(size=2, steps=10), buffers=policy)
        model = ob.simulate(algorithm, ob.World([1.0, 3.0]), watched, until=until, evaluate=None).model
        found[policy] = []
        for client, test in enumerate(tests):
            if policy == "local":
                state = watched.states[client]
                own = model.values.clone()
                own[model.layout.parameters :] = state["buffers.floating"]
                model = Model(model.layout, own, model.integers)
                mean = state["buffers.floating"][:64]
                expected = learner.data.train.x[learner.data.client_indices(client)].flatten(1).mean(0)
                assert (mean - expected).abs().max() < 0.1 * SCALES[client]
            judge = ob.TorchLearner(learner._module, replace(learner.data, test=test))
            found[policy].append(judge.evaluate(model)["accuracy"])
    assert min(found["local"]) > 0.9
    assert min(found["mean"]) < 0.5
    assert min(found["recompute"]) < 0.5
