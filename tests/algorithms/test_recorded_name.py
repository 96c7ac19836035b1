"""A run is recorded under the name of the algorithm that ran, not of the one it was made from."""

from dataclasses import replace

import pytest

import offbeat as ob
from offbeat.algorithms import recorded_name
from offbeat.algorithms.aggregators import Momentum


@pytest.mark.parametrize("name", ob.ALGORITHMS)
def test_a_published_algorithm_keeps_its_name(name):
    assert recorded_name(ob.ALGORITHMS[name]()) == name


def test_options_do_not_change_the_name():
    assert recorded_name(ob.fedbuff(size=3, staleness=ob.hinge(2, 3))) == "fedbuff"


def test_an_exchanged_part_changes_the_name():
    mine = replace(ob.fedbuff(), server_steps=(Momentum(0.9),))
    assert recorded_name(mine) == "fedbuff (changed)"
    assert recorded_name(replace(mine, name="fedbuffm")) == "fedbuffm"


def test_a_changed_algorithm_is_not_replayed_as_the_published_one(tmp_path):
    from offbeat.recipes.build import recorded_algorithm

    mine = replace(ob.fedbuff(size=2, steps=3), server_steps=(Momentum(0.9),))
    run = ob.simulate(mine, ob.World(clients=3), until=ob.Until(tasks=5), evaluate=None, out=tmp_path / "run")
    with pytest.raises(ob.RunError, match="fedbuff \\(changed\\)"):
        recorded_algorithm(ob.read_run(str(run.path)))
