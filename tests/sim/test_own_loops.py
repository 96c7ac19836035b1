"""A user's own loop gives the run of the built-in learner, bit for bit, under every algorithm."""

import logging
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import offbeat as ob
from tests.options import FEW
from tests.sampling import mostly_thorough, thorough
from tests.sim.own_loops import PlainTorch, learners
from tests.sim.sim_worlds import WORLDS, make, normed, outcome


def run(algorithm: ob.Algorithm, learner: Any, world: str = "hard", workers: int = 0) -> ob.Run:
    return ob.simulate(algorithm, WORLDS[world], learner, seed=5, until=ob.Until(tasks=25), workers=workers)


@pytest.mark.parametrize("world", ["hard", *thorough("calm")])
@pytest.mark.parametrize("name", mostly_thorough(ob.ALGORITHMS, FEW))
def test_an_own_loop_gives_the_same_journal_and_model(name: str, world: str) -> None:
    built_in, own = learners(PlainTorch())
    algorithm = make(name)
    expected = outcome(run(algorithm, built_in, world))
    assert outcome(run(algorithm, own, world)) == expected
    assert any(row["name"] == "arrived" for row in expected["journal"])


class Estimating(ob.LoopLearner):
    """One that estimates running statistics."""

    estimated = staticmethod(learners(PlainTorch(normed))[0].estimated)


@pytest.mark.parametrize("name", ["fedasmu", *thorough("fedcompass", "moon")])
@pytest.mark.parametrize("buffers", ["mean", "local"])
def test_batchnorm_and_dropout_too(name: str, buffers: Any) -> None:
    built_in, own = learners(PlainTorch(normed))
    own.__class__ = Estimating
    algorithm = replace(make(name), buffers=buffers)
    assert outcome(run(algorithm, own)) == outcome(run(algorithm, built_in))


def test_worker_processes_change_nothing() -> None:
    _, own = learners(PlainTorch())
    algorithm = make("fedasmu")
    assert outcome(run(algorithm, own, workers=2)) == outcome(run(algorithm, own))


@pytest.mark.parametrize(
    ("name", "complaint", "workers"),
    [
        ("fedprox", r"Proximal changes the gradients of each step.*call task\.correct_gradients\(\)", 0),
        ("scaffold", r"ControlVariates changes the gradients of each step", 0),
        ("feddyn", r"Dynamic changes the gradients of each step", 0),
        ("asofed", r"Online changes the gradients of each step", 0),
        ("moon", r"Contrastive adds to the loss of each step.*call loss = task\.penalized\(loss\)", 0),
        ("fedasmu", r"FreshMerge (adds to the loss|changes the gradients) of each step", 0),
        ("fedprox", r"Proximal changes the gradients of each step.*call task\.correct_gradients\(\)", 1),
    ],
)
def test_a_loop_without_the_handles_is_refused_in_one_sentence(
    name: str, complaint: str, workers: int
) -> None:
    _, own = learners(PlainTorch(handles=False))
    with pytest.raises(ob.UsageError, match=complaint) as error:
        run(make(name), own, "calm", workers=workers)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["fedcompass", "fedbuff", "port", "fedavg"])
def test_a_loop_without_the_handles_is_right_where_they_do_nothing(name: str) -> None:
    built_in, own = learners(PlainTorch(handles=False))
    algorithm = make(name)
    found, expected = run(algorithm, own), run(algorithm, built_in)
    assert found.model.digest() == expected.model.digest()


def test_without_a_loss_function_fresh_models_are_merged_with_fixed_weights(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, own = learners(PlainTorch(adaptive=False, handles=False))
    with caplog.at_level(logging.WARNING):
        found = run(make("fedasmu"), own, "calm")
    arrived = [row for row in found.journal if row["name"] == "arrived"]
    merged = [metrics for metrics in arrived if "beta" in metrics]
    assert merged
    assert not any("reward" in metrics for metrics in merged)
    said = [record.message for record in caplog.records if "fixed weights" in record.message]
    assert said == ["task.steps has no loss function: fresh models are merged with fixed weights"]


class PortLike(PlainTorch):
    """Counts the steps of each task."""

    counted: ClassVar[dict[int, int]] = {}

    def __call__(self, task: ob.ClientTask) -> None:
        super().__call__(task)
        self.counted[task.number] = task.done


def test_the_steps_done_are_those_of_the_journal_also_where_tasks_are_recalled() -> None:
    PortLike.counted.clear()
    _, own = learners(PortLike())
    rows = run(make("port"), own).journal
    recalled = {row["task"] for row in rows if row["name"] == "recall"}
    arrived = {row["task"]: row["steps"] for row in rows if row["name"] == "arrived"}
    assert recalled & set(arrived)
    assert {task: PortLike.counted[task] for task in arrived} == arrived


def test_a_loop_that_trains_another_model_is_told_of_it(caplog: pytest.LogCaptureFixture) -> None:
    """Once, and only where no task has changed the model it was given."""
    other = nn.Linear(4, 2)

    def train(task: ob.ClientTask, own: bool) -> None:
        module = task.load_into(nn.Linear(4, 2))
        optimizer = torch.optim.SGD((module if own else other).parameters(), 0.1)
        for _ in task.steps():
            optimizer.zero_grad()
            (module if own else other)(torch.ones(3, 4)).square().mean().backward()
            optimizer.step()
        task.submit()

    for own in (True, False):
        learner = ob.LoopLearner(partial(train, own=own), nn.Linear(4, 2), [4, 4])
        with caplog.at_level(logging.WARNING):
            ob.simulate(ob.fedavg(steps=2), learner=learner, until=ob.Until(versions=2))
        assert len(caplog.messages) == (not own)
    assert "the loop changes no parameter of the model that it submits" in caplog.text


def test_a_loop_whose_module_gets_new_parameters_submits_those() -> None:
    def train(task: ob.ClientTask, assign: bool) -> None:
        module = task.load_into(nn.Linear(4, 2))
        changed = {name: tensor + 1.0 for name, tensor in task.state_dict().items()}
        for _ in task.steps():
            module.load_state_dict(changed, assign=assign)
        task.submit()

    runs = [
        ob.simulate(
            ob.fedavg(steps=2), learner=ob.LoopLearner(partial(train, assign=assign), initial, [4, 4]),
            until=ob.Until(versions=2),
        )
        for initial in [nn.Linear(4, 2)]
        for assign in (True, False)
    ]  # fmt: skip
    assert torch.equal(runs[0].model.values, runs[1].model.values)


def test_a_loop_loads_a_module_with_two_names_of_a_tensor() -> None:
    def tied() -> nn.Module:
        module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        module[1].weight = module[0].weight
        return module

    def train(task: ob.ClientTask) -> None:
        tied().load_state_dict(task.state_dict())
        assert len(task.arrays()) == 3
        module = task.load_into(nn.DataParallel(tied()))
        for _ in task.steps():
            with torch.no_grad():
                next(module.parameters()).add_(1.0)
        tied().load_state_dict(task.state_dict())
        task.submit()

    run = ob.simulate(
        ob.fedavg(steps=2), learner=ob.LoopLearner(train, tied, [4, 4]), until=ob.Until(versions=2)
    )
    tied().load_state_dict(run.model.state_dict())
