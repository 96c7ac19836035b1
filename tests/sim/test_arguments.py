"""What `simulate` is given: NumPy's numbers as Python's, and one line for what it cannot take."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import offbeat as ob
from offbeat.algorithms.factory import algorithm
from offbeat.core.errors import UsageError
from offbeat.core.learner import LocalResult
from offbeat.core.staleness import StalenessWeight
from offbeat.runs.record import read_run

UNTIL = ob.Until(versions=3)
WORLD = ob.World([1.0, 2.0])


def test_numbers_of_numpys_are_recorded_as_pythons(tmp_path: Path) -> None:
    """As a loop over `np.arange` or `np.linspace` gives them."""
    run = ob.simulate(
        ob.fedbuff(size=np.int64(2), staleness={"kind": "polynomial", "a": np.float32(0.5)}),
        WORLD, seed=np.int64(4), until=UNTIL, out=tmp_path / "run",
    )  # fmt: skip
    meta = read_run(tmp_path / "run").meta
    assert meta["seed"] == 4
    assert meta["algorithm"]["size"] == 2
    assert meta["algorithm"]["staleness"] == {"kind": "polynomial", "a": 0.5}
    python = ob.fedbuff(size=2, staleness={"kind": "polynomial", "a": 0.5})
    assert ob.resume(tmp_path / "run", python, WORLD, until=UNTIL).summary == run.summary


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1.5}, r"seed = 1\.5 is not allowed: give an integer"),
        ({"label": ""}, "label = '' is not allowed: give what reports shall call the run"),
        ({"label": 3}, "label = 3 is not allowed: give a text"),
        ({"label": "a\nb"}, "label = 'a.*b' is not allowed: leave out characters"),
        ({"label": "../x"}, "label = '../x' is not allowed: it names a directory"),
        ({"workers": 1.5}, r"workers = 1\.5 is not allowed"),
        ({"client_memory": -1}, "client_memory = -1 is not allowed: give a number of bytes from 0"),
        ({"client_memory": "2"}, "client_memory = '2' is not allowed: give a number of bytes from 0"),
        ({"seed": "0"}, "seed = '0' is not allowed: give an integer"),
        ({"seed": True}, "seed = True is not allowed: give an integer"),
        ({"workers": True}, "workers = True is not allowed"),
        ({"checkpoint_seconds": "1"}, "checkpoint_seconds = '1' is not allowed: give seconds"),
        ({"evaluate": 5}, r"evaluate = 5 is not allowed: give Every\("),
        ({"evaluate": 0}, r"evaluate = 0 is not allowed: give Every\("),
        ({"executor": "ray"}, r"executor = 'ray' is not allowed: give Batched\("),
        ({"watch": 3}, "watch = 3 is not allowed: give a function"),
        ({"callbacks": 3}, "callbacks = 3 is not allowed: give a list"),
        ({"guard": 30}, r"guard = 30 is not allowed: give Guard\("),
        ({"privacy": 1.0}, r"privacy = 1\.0 is not allowed: give Privacy\("),
        ({"initial": 3}, r"initial = 3 is not allowed: give a \.safetensors file"),
        ({"learner": 3}, "learner = 3 is not allowed, as it has no clients: give TorchLearner"),
        ({"recipe": "digits"}, "recipe = 'digits' is not allowed: give the mapping"),
    ],
)
def test_what_is_not_allowed(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        ob.simulate(ob.fedavg(), WORLD, until=UNTIL, out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("world", "options", "message"),
    [
        (ob.NoTraining(2), {}, r"world = NoTraining\(.* is not allowed: give World\("),
        (WORLD, {"until": 3}, r"until = 3 is not allowed: give the run's limits, such as Until\("),
    ],
)
def test_an_argument_of_another_kind(world: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ob.simulate(ob.fedavg(), world, **options)


@pytest.mark.parametrize(
    ("speed", "message"),
    [
        ([], r"seconds_per_step = \[\] is not allowed"),
        ([[]], r"seconds_per_step\S* = \[\] is not allowed"),
        (True, "seconds_per_step = True is not allowed: should be a number"),
        (lambda client: 1.0, "seconds_per_step = .* is not allowed: should be a function of two numbers"),
    ],
)
def test_speeds_that_are_none(speed: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ob.World(speed)


@pytest.mark.parametrize("given", ["1.0", "x", None, 0.0])
def test_a_speed_that_a_function_cannot_mean(given: Any) -> None:
    world = ob.World(lambda client, task: given, clients=2)
    with pytest.raises(UsageError, match=r"seconds_per_step\(\d, 0\) = .* is not allowed: return a number"):
        ob.simulate(ob.fedavg(steps=1), world, until=UNTIL)


def test_a_factory_that_was_not_called() -> None:
    factory: Any = ob.fedavg
    with pytest.raises(UsageError, match=r"a Factory is not an Algorithm: call a factory"):
        ob.simulate(factory, WORLD)


def test_an_argument_given_by_its_place_is_named() -> None:
    with pytest.raises(UsageError, match=r"fedbuff: steps = 2\.5 is not allowed"):
        ob.fedbuff(3, 2.5)

    @algorithm(paper="none", kind="asynchronous")
    def mine(staleness: StalenessWeight) -> ob.Algorithm:
        """A factory whose first argument has options of its own."""
        return ob.fedasync(staleness=staleness)

    with pytest.raises(UsageError, match=r'unknown key staleness\.alph; did you mean "alpha"'):
        mine({"kind": "polynomial", "alph": 1})


def test_a_task_without_end() -> None:
    """A law with so long a tail that its draws are infinite."""
    world = ob.World(ob.laws.Pareto(1.0, shape=1e-3), clients=4)
    with pytest.raises(UsageError, match="a task of 5 steps of client 1 would take inf seconds"):
        ob.simulate(ob.fedbuff(size=1, steps=5), world, until=UNTIL)


def test_evaluations_without_end() -> None:
    """At 1e18 seconds the next second is the same number: there would be no end of them."""
    with pytest.raises(UsageError, match=r"evaluate\.seconds = 1 would measure the model more than"):
        ob.simulate(ob.fedavg(steps=1), ob.World(1e18, clients=2), until=UNTIL, evaluate=ob.Every(seconds=1))


class Named(ob.NoTraining):
    """Finds a metric whose name would be a command of a shell, in its tasks or in evaluations."""

    def __init__(self, **found: Any) -> None:
        super().__init__(2, parameters=2)
        self._found = found

    def train(self, *given: Any) -> LocalResult:
        return replace(super().train(*given), metrics=self._found.get("train", {}))

    def evaluate(self, *_: Any) -> dict[str, float]:
        return self._found.get("evaluate", {})


@pytest.mark.parametrize("place", ["train", "evaluate"])
def test_the_name_of_a_metric_of_an_own_learners_is_checked(tmp_path: Path, place: str) -> None:
    """In a run's record it would make all of the run unreadable."""
    learner = Named(**{place: {"$(id)": 1.0}})
    with pytest.raises(UsageError, match=r"^metric '\$\(id\)' is not allowed: a metric's name has letters"):
        ob.simulate(ob.fedavg(steps=1), ob.World(1.0, clients=2), learner, until=UNTIL, out=tmp_path / "run")
    assert read_run(tmp_path / "run").status != "finished"
