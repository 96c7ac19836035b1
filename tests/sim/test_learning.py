"""Learning together pays: every algorithm beats what the best client learns alone.

Ten clients with three neighbouring classes each, so that alone nobody can tell more than three digits
apart: about 30 % of the test set. Alone, a client trains on its own data from the same initial model.
Seeded, so the numbers are always the same.
"""

import pytest

import offbeat as ob
from offbeat.core.learner import LocalTask
from offbeat.core.model import Model
from offbeat.local.objectives import Plain
from tests.sampling import mostly_thorough, thorough
from tests.sim.three_classes import CLIENTS, OPTIONS, three_classes_each

TASKS = 100
LEARN = {"fedavg", "first_of", "fedbuff", "fedcompass", "scaffold", "port", "ca2fl"}
"""Those that `make test` runs: rounds of all and of the first, buffers, a cache, groups, PORT, SCAFFOLD."""
TWICE = {"fedasync", "fedasmu", "wireless", "rennala"}  # these need twice as many tasks
ALONE = 0.325  # no client gets so far alone: 0.303 to 0.319 when this was written
MARGIN = 0.175  # asked for; reached when this was written: wireless 0.21, fedasmu 0.22, the others more


@pytest.fixture(scope="module")
def learner() -> ob.TorchLearner:
    return three_classes_each()


def alone(learner: ob.TorchLearner, client: int, steps: int) -> float:
    """Accuracy of a client's own model."""
    start = learner.initial(0)
    result = learner.train(start, LocalTask(10**6, client, 0, steps, seed=0), Plain())
    own = Model(start.layout, start.values + result.delta, result.integers)
    return learner.evaluate(own)["accuracy"]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("steps", [500, *thorough(50, 200)])
def test_nobody_gets_far_alone(steps: int, learner: ob.TorchLearner) -> None:
    """Whether it does few steps or more than in any run below."""
    assert max(alone(learner, client, steps) for client in range(CLIENTS)) < ALONE


@pytest.mark.parametrize("name", mostly_thorough(ob.ALGORITHMS, LEARN))
def test_better_than_the_best_client_alone(name: str, learner: ob.TorchLearner) -> None:
    world = ob.World(seconds_per_step=ob.laws.Uniform(0.5, 2.0), channel=ob.Channel(50_000))
    algorithm = ob.ALGORITHMS[name](**OPTIONS.get(name, {}))
    until = ob.Until(tasks=TASKS * 2 if name in TWICE else TASKS)
    run = ob.simulate(algorithm, world, learner, until=until, evaluate=ob.Every(versions=1000))
    steps = [sum(e["steps"] for e in run.entries("arrived") if e["client"] == c) for c in range(CLIENTS)]
    assert 0 < min(steps) <= max(steps) <= 500
    assert not run.entries("lost")  # the guard gives no false alarm
    assert run.summary.accuracy is not None
    assert run.summary.accuracy > ALONE + MARGIN
