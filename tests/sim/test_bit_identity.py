"""The same seed gives the same bits, whoever trains and however often one looks."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import offbeat as ob
import offbeat.sim.executors.start as module
from offbeat.sim.executors.processes import ProcessPool
from tests.options import FEW
from tests.sampling import mostly_thorough, thorough
from tests.sim.sim_worlds import WORLDS, Lent, digits, make, normed, outcome

FEDBUFF = pytest.param("fedbuff", marks=pytest.mark.bits)
OTHERS = [name for name in ob.ALGORITHMS if name != "fedbuff"]
EVERY = pytest.mark.parametrize("name", [FEDBUFF, *OTHERS])
SOME = pytest.mark.parametrize("name", [FEDBUFF, *mostly_thorough(OTHERS, FEW | {"asofed", "wireless"})])
TASKS = ob.Until(tasks=60)
pytestmark = pytest.mark.xdist_group("bit identity")  # its worker processes are started once


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[Any, ProcessPool]]:
    made: dict[Any, ProcessPool] = {}
    yield made
    for pool in made.values():
        pool.close()


@pytest.fixture
def lent(pools: dict[Any, ProcessPool], monkeypatch: pytest.MonkeyPatch) -> None:
    """`simulate` gets its workers lent: starting a process takes longer than a test's run."""

    def lend(learner: Any, objective: Any, count: int) -> Lent:
        key = (learner, objective, count)
        if key not in pools:
            pools[key] = ProcessPool(learner, objective, count)
        return Lent(pools[key])

    monkeypatch.setattr(module, "ProcessPool", lend)


@pytest.fixture(scope="module")
def normed_learner() -> ob.TorchLearner:
    return digits(normed)


@pytest.mark.usefixtures("lent")
@pytest.mark.parametrize(("workers", "seed"), [(2, 0), *thorough((2, 1), (1, 0), (1, 1))])
@SOME
def test_workers_change_nothing(name: str, workers: int, seed: int, learner: ob.TorchLearner) -> None:
    algorithm, world = make(name), WORLDS["hard"]
    if name == "fedasync":  # one pool for all: processes are made for an objective
        algorithm = ob.fedasync(steps=4)
    options: dict[str, Any] = {"until": TASKS, "evaluate": ob.Every(seconds=10)}
    alone, others = (
        outcome(ob.simulate(algorithm, world, learner, seed=seed, workers=n, **options)) for n in (0, workers)
    )
    assert alone["summary"].tasks == 60
    assert alone["summary"].lost > 0
    assert alone == others


@SOME
def test_two_seeds_differ_and_one_seed_repeats(name: str, learner: ob.TorchLearner) -> None:
    first, again, other = (
        outcome(ob.simulate(make(name), WORLDS["calm"], learner, seed=seed, until=ob.Until(tasks=20)))
        for seed in (0, 0, 1)
    )
    assert first == again
    assert first["model"] != other["model"]


OFTEN = [ob.Every(seconds=1), ob.Every(versions=1), ob.Every(seconds=7, versions=3)]


@pytest.mark.parametrize(
    ("where", "rules"), [("hard", OFTEN[:1]), *thorough(("hard", OFTEN), ("calm", OFTEN))]
)
@SOME
def test_evaluations_change_nothing(
    name: str, where: str, rules: list[ob.Every], learner: ob.TorchLearner
) -> None:
    runs = [
        outcome(ob.simulate(make(name), WORLDS[where], learner, seed=3, until=TASKS, evaluate=every))
        for every in (*rules, None)
    ]
    for run in runs[1:]:
        for part in ("model", "integers", "journal", "stop"):
            assert run[part] == runs[0][part], part
    assert len(runs[0]["metrics"]) > 10
    assert runs[-1]["metrics"] == []


@pytest.mark.bits
def test_the_number_of_threads_and_the_global_generators_change_nothing(learner: ob.TorchLearner) -> None:
    threads = torch.get_num_threads()
    first = outcome(ob.simulate(make("fedbuff"), WORLDS["calm"], learner, until=TASKS))
    try:
        torch.set_num_threads(2)
        with torch.random.fork_rng():
            torch.manual_seed(12345)
            state = torch.get_rng_state()
            second = outcome(ob.simulate(make("fedbuff"), WORLDS["calm"], learner, until=TASKS))
            assert torch.equal(state, torch.get_rng_state())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert first == second


@pytest.mark.usefixtures("lent")
@pytest.mark.parametrize("name", ["fedcompass", *thorough("fedavg")])
def test_integer_buffers_and_dropout_survive_shared_memory(
    name: str, normed_learner: ob.TorchLearner
) -> None:
    options = {"fedavg": {"steps": 4}, "fedcompass": {"q_min": 2, "q_max": 9}}
    alone, two = (
        ob.simulate(
            ob.ALGORITHMS[name](**options[name]),
            WORLDS["hard"],
            normed_learner,
            seed=1,
            until=ob.Until(tasks=30),
            workers=n,
        )
        for n in (0, 2)
    )
    assert outcome(alone) == outcome(two)
    state = two.model.state_dict()
    assert state["2.num_batches_tracked"].dtype == torch.int64
    assert int(state["2.num_batches_tracked"]) > 4
    assert not torch.equal(state["2.running_var"], torch.ones(12))
