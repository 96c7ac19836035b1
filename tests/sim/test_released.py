"""What a run has held is released when it ends: the collector finds little of it.

During a run the collector leaves aside what was there before, and so the learner. A learner in a circle of
references would stay until somebody else asks for a collection: a hundred runs in a process took 20 GB.
"""

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import offbeat as ob
from offbeat.core.privacy.privacy_options import Privacy, Secure
from offbeat.recipes import load_recipe, run_recipe
from tests.sampling import mostly_thorough
from tests.sim.sim_worlds import CALM, HARD, digits, make

UNTIL = ob.Until(tasks=6)


@pytest.fixture(autouse=True)
def _uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def released(run: Callable[[ob.TorchLearner], object]) -> bool:
    """Whether a learner is gone once its run is."""
    learner = digits()
    there = weakref.ref(learner)
    run(learner)
    del learner
    return there() is None


@pytest.mark.parametrize("name", mostly_thorough(ob.ALGORITHMS, {"fedcompass", "fedasmu"}))
def test_a_run_releases_its_learner(name: str) -> None:
    assert released(lambda learner: ob.simulate(make(name), HARD, learner, until=UNTIL))


@pytest.mark.parametrize(
    "options",
    [
        {"callbacks": [ob.Callback()]},
        {"executor": ob.Batched(2)},
        {"evaluate": ob.Every(seconds=1, keep_best="accuracy")},
        {"evaluate": None},
    ],
    ids=["callbacks", "batched", "best", "none"],
)
def test_it_does_so_with_every_option(tmp_path: Path, options: dict[str, Any]) -> None:
    def run(learner: ob.TorchLearner) -> None:
        ob.simulate(ob.fedbuff(2, steps=1), CALM, learner, until=UNTIL, out=tmp_path / "a", **options)

    assert released(run)


def test_a_private_run_does() -> None:
    privacy = Privacy(clip=5.0, secure=Secure())

    def run(learner: ob.TorchLearner) -> None:
        ob.simulate(ob.fedbuff(2, steps=1), CALM, learner, until=UNTIL, privacy=privacy)

    assert released(run)


def test_a_run_that_is_resumed_does(tmp_path: Path) -> None:
    directory = tmp_path / "a"
    ob.simulate(ob.fedbuff(2, steps=1), CALM, digits(), until=UNTIL, out=directory)

    def run(learner: ob.TorchLearner) -> None:
        ob.resume(directory, ob.fedbuff(2, steps=1), CALM, learner, until=ob.Until(tasks=9))

    assert released(run)


def test_a_recipe_leaves_no_learner(tmp_path: Path) -> None:
    def learners() -> int:
        return sum(type(each) is ob.TorchLearner for each in gc.get_objects())

    before, recipe = learners(), load_recipe("digits", sets=["until.tasks=6", "algorithm=fedbuff"])
    run_recipe(recipe, out=tmp_path / "a")
    assert learners() == before
