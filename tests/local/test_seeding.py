"""Draws of data sets, modules, steps and evaluations from the global generators follow from the task."""

import random
from collections.abc import Iterator
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import offbeat as ob
from offbeat.core.learner import NO_INPUTS, LocalTask
from offbeat.core.objective import LocalRun, Objective
from offbeat.data import MapDataset
from offbeat.local.objectives import Plain
from offbeat.local.own_code import runs_own_code
from offbeat.local.seeding import evaluation_seeded, generators_kept, seed_generators

WORLD, TASKS = ob.World([0.1, 0.15]), ob.Until(tasks=6)
TASK = LocalTask(3, 1, 0, 4, seed=5)


class Augmented:
    """A data set that flips and shifts its samples, as those of many users do."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x = torch.linspace(0, 1, 4) * index
        x = x.flip(0) if random.random() < 0.5 else x
        return x + float(np.random.normal()), index % 2


class LayerDrop(nn.Module):
    """Layers of which some are left out, as Python's generator says."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.last = nn.Linear(4, 2)
        nn.init.constant_(self.last.bias, float(np.random.rand()))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x if random.random() < 0.3 else layer(x)
        return self.last(x)


def noisy_step(module: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return functional.cross_entropy(module(x + float(np.random.randn())), y)


def noisy_metric(scores: Tensor, target: Tensor) -> float:
    rows = np.random.randint(0, len(target), len(target))
    return float((scores.argmax(1) == target)[rows].float().mean()) + float(torch.rand(()))


class NoisyObjective(Objective):
    """An objective of one's own that adds noise to the gradients."""

    def adjust(self, run: LocalRun) -> None:
        for parameter in run.parameters:
            assert parameter.grad is not None
            parameter.grad += float(np.random.rand())


def tensors() -> ob.data.Dataset:
    generator = torch.Generator().manual_seed(0)
    return ob.data.Dataset(torch.randn(24, 4, generator=generator), torch.arange(24) % 2)


def augmented() -> MapDataset:
    return MapDataset(Augmented())


def linear() -> nn.Module:
    return nn.Linear(4, 2)


def learner(kind: str) -> ob.TorchLearner:
    data = augmented() if kind == "data set" else tensors()
    test = augmented() if kind == "test set" else tensors()
    return ob.TorchLearner(
        LayerDrop if kind == "module" else linear,
        ob.federate([data, data], test=test),
        ob.Training(batch_size=6, evaluation_batch_size=6),
        step=noisy_step if kind == "step" else None,
        metrics={"bootstrap": noisy_metric} if kind == "metric" else None,
    )


def loop(task: ob.ClientTask) -> None:
    arrays = task.arrays()
    for _ in task.steps():
        arrays = {name: array + np.random.rand() + random.random() for name, array in arrays.items()}
    task.submit(arrays)


def drawn_evaluation(model: ob.Model) -> dict[str, float]:
    return {"noise": random.random() + float(np.random.rand()) + float(torch.rand(()))}


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """Other states of the generators afterwards than before, as another process has."""
    yield
    pollute(0)


def pollute(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def states() -> list[Any]:
    _, key, *rest = np.random.get_state()
    return [random.getstate(), np.asarray(key).tolist(), rest, torch.get_rng_state().tolist()]


def outcome(learner: ob.TorchLearner | ob.LoopLearner, seed: int, **options: Any) -> Any:
    pollute(seed)
    run = ob.simulate(ob.fedasync(steps=2), WORLD, learner, seed=1, until=TASKS, **options)
    return run.model.digest(), [(m["version"], m) for m in run.metrics]


KINDS = ["data set", "test set", "module", "step", "metric"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("elsewhere")
def test_a_seed_gives_the_same_bits_wherever_the_generators_are(kind: str) -> None:
    assert outcome(learner(kind), 1) == outcome(learner(kind), 2)


@pytest.mark.usefixtures("elsewhere")
def test_workers_draw_as_this_process_does() -> None:
    assert outcome(learner("data set"), 1) == outcome(learner("data set"), 2, workers=1)


@pytest.mark.usefixtures("elsewhere")
def test_a_loop_of_ones_own_draws_the_same_numbers_in_each_run() -> None:
    def made() -> ob.LoopLearner:
        return ob.LoopLearner(loop, lambda: [np.random.rand(2)], [9, 9], evaluate=drawn_evaluation)

    assert outcome(made(), 1) == outcome(made(), 2)


@pytest.mark.usefixtures("elsewhere")
def test_an_objective_of_ones_own_draws_the_same_numbers_in_each_run() -> None:
    one = learner("tensors")
    base, deltas = one.initial(0), []
    for seed in (1, 2):
        pollute(seed)
        deltas.append(one.train(base, TASK, NoisyObjective()).delta)
    assert torch.equal(*deltas)


@pytest.mark.usefixtures("elsewhere")
def test_tasks_and_evaluations_draw_other_numbers_for_another_task_only() -> None:
    one = learner("data set")
    base = one.initial(0)
    again = [one.train(base, LocalTask(task, 1, 0, 4, seed=5), Plain()).delta for task in (3, 3, 4)]
    assert torch.equal(again[0], again[1])
    assert not torch.equal(again[0], again[2])


@pytest.mark.usefixtures("elsewhere")
def test_a_task_in_two_parts_goes_on_with_the_draws_of_the_first() -> None:
    one = learner("data set")
    base = one.initial(0)
    whole = one.train(base, TASK, Plain()).delta
    saved = one.train_until(base, TASK, Plain(), NO_INPUTS, 2)
    pollute(3)
    assert torch.equal(one.train_from(base, TASK, Plain(), NO_INPUTS, 2, saved).delta, whole)


@pytest.mark.parametrize("kind", [*KINDS, "tensors"])
@pytest.mark.usefixtures("elsewhere")
def test_the_users_generators_are_put_back(kind: str) -> None:
    pollute(4)
    # An odd number of them leaves one in reserve.
    np.random.randn()
    random.gauss(0, 1)
    before = states()
    for _ in range(2):
        ob.simulate(ob.fedasync(steps=2), WORLD, learner(kind), until=TASKS)
        assert states() == before


@pytest.mark.usefixtures("elsewhere")
def test_a_generator_that_the_user_has_chosen_is_put_back() -> None:
    users = np.random.PCG64(3)
    default = np.random.get_bit_generator()  # type: ignore[attr-defined]
    np.random.set_bit_generator(users)  # type: ignore[attr-defined]
    try:
        before = users.state
        ob.simulate(ob.fedasync(steps=2), WORLD, learner("data set"), until=TASKS)
        assert np.random.get_bit_generator() is users  # type: ignore[attr-defined]
        assert users.state == before
    finally:
        np.random.set_bit_generator(default)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("elsewhere")
def test_normal_numbers_drawn_between_two_tasks_are_not_lost() -> None:
    pollute(5)
    expected = [float(np.random.randn()) for _ in range(6)]
    pollute(5)
    found = []
    for _ in range(6):
        found.append(float(np.random.randn()))
        with generators_kept(own_code=True):
            seed_generators(7, "cpu", own_code=True)
            np.random.randn()
    assert found == expected


@pytest.mark.usefixtures("elsewhere")
def test_generators_of_one_task_are_not_alike() -> None:
    with generators_kept(own_code=True):
        seed_generators(123456789123456789, "cpu", own_code=True)
        torchs = torch.randint(2**31, (4,)).tolist()
        assert np.random.randint(0, 2**31, 4).tolist() != torchs


@pytest.mark.usefixtures("elsewhere")
def test_an_evaluation_beside_a_training_leaves_its_draws_alone() -> None:
    pollute(6)
    before = states()
    trained, evaluated = Event(), Event()
    drawn: list[float] = []

    def train() -> None:
        with generators_kept(own_code=True):
            seed_generators(7, "cpu", own_code=True)
            trained.set()
            evaluated.wait()
            drawn.extend([random.random(), float(np.random.rand()), float(torch.rand(()))])

    thread = Thread(target=train)
    thread.start()
    trained.wait()
    with evaluation_seeded("cpu", own_code=True):
        pass
    evaluated.set()
    thread.join()
    assert states() == before
    with generators_kept(own_code=True):
        seed_generators(7, "cpu", own_code=True)
        assert drawn == [random.random(), float(np.random.rand()), float(torch.rand(()))]


def test_code_of_the_user_is_told_from_pytorchs_and_offbeats() -> None:
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    known = (None, "sgd", functional.cross_entropy, nn.MSELoss(), torch.optim.SGD)
    assert not runs_own_code(plain, [tensors(), None], known)
    assert runs_own_code(plain, [augmented()], known)
    assert runs_own_code(plain, [tensors()], [noisy_metric])
    assert runs_own_code(nn.Sequential(plain, LayerDrop()), [tensors()], known)
    plain[0].register_forward_hook(lambda layer, given, output: output * random.random())
    assert runs_own_code(plain, [tensors()], known)
