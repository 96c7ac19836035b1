"""Any schedule with any aggregator and any objective: it works, or is refused in one sentence."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

import offbeat as ob
from offbeat.algorithms import ALGORITHMS
from offbeat.algorithms.aggregators import MeanOfModels
from offbeat.algorithms.wireless.over_radio import UploadSlots
from offbeat.core.errors import UsageError
from offbeat.core.features import Feature
from tests.digits import equal_digits
from tests.options import example
from tests.sampling import mostly_thorough

CLIENTS = 4
LAST: dict[str, Any] = {"kind": "fixed", "at": "last"}
ALL: list[ob.Algorithm] = [
    ob.fedavg(epochs=2),
    ob.fedavgm(epochs=2, clients_per_round=3),
    ob.fedprox(epochs=2, mu=0.1),
    ob.fednova(epochs=2, momentum=0.5),
    ob.fedlws(epochs=2),
    ob.moon(epochs=2),
    ob.feddyn(epochs=2),
    ob.scaffold(epochs=2),
    ob.fedadagrad(epochs=2),
    ob.fedadam(epochs=2),
    ob.fedyogi(epochs=2),
    ob.fedssmu(epochs=2, ask=LAST),
    ob.fedasync(epochs=2, concurrency=3),
    ob.fedbuff(2, epochs=2),
    ob.asofed(epochs=2),
    ob.asofed(epochs=2, against="copy"),
    ob.port(2, 1, epochs=3, urgent=True),
    ob.port(2, 1, epochs=2, average="models"),
    ob.fedat(epochs=2, ratio=1.2),
    ob.fedfa(2, epochs=2, server_lr=0.3, normalize=True),
    ob.fedfa(2, "param", epochs=2),
    ob.fedasmu(epochs=2, size=3, period=2.0, ask=LAST),
    ob.fedcompass(2, 6, normalize=True),
    ob.wireless(epochs=2, scheduled=2, period=3.0),
]
ALL += [example(name) for name in sorted(set(ALGORITHMS) - {a.name for a in ALL})]
SPEEDS = [1.0, 1.3, 2.2, 3.1]
WORLD = ob.World(SPEEDS, channel=ob.Channel(1000))


def distinct(part: str) -> list[Any]:
    """Each kind of part once; one kind with other options counts where it behaves otherwise."""
    found: list[Any] = []
    for algorithm in ALL:
        own = getattr(algorithm, part)
        if part == "schedule" or own not in found:
            if (
                part == "schedule"
                and type(own) in map(type, found)
                and algorithm.name not in ("port", "fedasmu")
            ):
                continue
            found.append(own)
    return found


SCHEDULES, AGGREGATORS, OBJECTIVES = (distinct(p) for p in ("schedule", "aggregator", "objective"))
STEPS = [a.server_steps for a in ALL if a.server_steps]


def module() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 10))


@pytest.fixture(scope="module")
def learner() -> ob.TorchLearner:
    data = equal_digits(CLIENTS, samples=40, test_samples=10)
    return ob.TorchLearner(module, data, ob.Training(lr=0.02, batch_size=10))


def play(algorithm: ob.Algorithm, learner: ob.TorchLearner) -> ob.Run:
    run = ob.simulate(algorithm, WORLD, learner, until=ob.Until(tasks=14), evaluate=None)
    assert run.summary.versions > 0
    assert torch.isfinite(run.model.values).all()
    assert not torch.equal(run.model.values, learner.initial(0).values)
    return run


def name(part: Any) -> str:
    inner = getattr(part, "inner", None)
    return f"{type(part).__name__}({name(inner)})" if inner else type(part).__name__


def refused(schedule: Any, aggregator: Any, objective: Any) -> bool:
    """The whole list of what cannot work."""
    kinds = name(schedule), name(aggregator), name(objective)
    return (
        ("RequestFreshModel" in kinds[0]) != ("FreshMerge" in kinds[2])
        or (kinds[1] == "TierWeights" and kinds[0] != "Tiers")
        or (kinds[1] == "DynamicMean" and kinds[2] != "Dynamic")
    )


def test_the_grid_holds_every_algorithm_and_part():
    assert {a.name for a in ALL} == set(ALGORITHMS)
    assert len(SCHEDULES) >= 9
    assert len(AGGREGATORS) >= 12
    assert len(OBJECTIVES) >= 7


EVERY_SCHEDULE = pytest.mark.parametrize(
    "schedule", SCHEDULES, ids=[f"{i}-{name(s)}" for i, s in enumerate(SCHEDULES)]
)


@pytest.mark.parametrize("whole", ALL, ids=lambda algorithm: algorithm.name)
def test_the_parts_of_an_algorithm_make_the_algorithm(whole: ob.Algorithm) -> None:
    """By hand, and by `compose` around another aggregator, each part's own policy of the buffers too."""
    parts = whole.schedule, whole.aggregator, whole.objective, whole.server_steps
    unnamed = replace(whole, name="custom", hyperparameters={})
    assert ob.Algorithm(*parts, codec=whole.codec) == unnamed
    bare = ob.Algorithm(whole.schedule, MeanOfModels(), whole.objective, codec=whole.codec)
    again = ob.compose(bare, aggregator=whole, objective=whole, server_steps=whole)
    assert replace(again, hyperparameters={}) == unnamed


def test_a_policy_of_the_buffers_that_was_chosen_stays() -> None:
    local = ob.compose(ob.fedavg(), buffers="local")
    assert ob.compose(local, aggregator=ob.fedbuff()).buffers == "local"
    assert ob.compose(ob.fedavg(), aggregator=ob.fedbuff(), buffers="follow").buffers == "follow"
    assert ob.compose(ob.fedavg(), server_steps=ob.fedadam()).buffers == "mean"
    assert ob.compose(ob.fedbuff(), clip=1.0).buffers == "mean"
    assert ob.compose(ob.fedbuff(), aggregator=ob.fedavg()).buffers == "follow"


def composed(schedule: Any) -> list[ob.Algorithm]:
    """All that a schedule composes with; checks that the rest is refused."""
    found = []
    for aggregator in AGGREGATORS:
        for objective in OBJECTIVES:
            if refused(schedule, aggregator, objective):
                with pytest.raises(UsageError, match=r"^\w+ needs [^\n]+$"):
                    ob.Algorithm(schedule, aggregator, objective)
            else:
                found.append(ob.Algorithm(schedule, aggregator, objective))
    return found


THIRDS = list(product(range(len(SCHEDULES)), range(3)))


@pytest.mark.parametrize(
    ("number", "third"), mostly_thorough(THIRDS, [(number, number % 3) for number in range(len(SCHEDULES))])
)
def test_every_pair_of_parts_runs(number: int, third: int, learner: ob.TorchLearner) -> None:
    """With each schedule every aggregator and every objective that go with it, paired otherwise each time.

    One of three goes with a schedule, and other ones with the next.
    """
    candidates, chosen = composed(SCHEDULES[number]), []
    for i, aggregator in enumerate(AGGREGATORS):
        fitting = [a for a in candidates if a.aggregator is aggregator]
        if fitting and i % 3 == third:
            chosen.append(fitting[(i + number) % len(fitting)])
    for i, objective in enumerate(OBJECTIVES):
        if i % 3 == third and all(a.objective is not objective for a in chosen):
            chosen += [a for a in candidates if a.objective is objective][:1]
    assert chosen
    for algorithm in chosen:
        play(algorithm, learner)


@pytest.mark.thorough
@EVERY_SCHEDULE
def test_every_triple_of_parts_runs(schedule: Any, learner: ob.TorchLearner) -> None:
    for algorithm in composed(schedule):
        play(algorithm, learner)


@pytest.mark.parametrize("aggregator", AGGREGATORS, ids=[f"{i}-{name(a)}" for i, a in enumerate(AGGREGATORS)])
def test_server_steps_follow_any_aggregator(aggregator: Any, learner: ob.TorchLearner) -> None:
    source = next(a for a in ALL if a.aggregator == aggregator)
    steps = STEPS[AGGREGATORS.index(aggregator) % len(STEPS)]
    play(ob.Algorithm(source.schedule, aggregator, source.objective, steps, buffers="mean"), learner)


@pytest.mark.parametrize("base", ALL, ids=[f"{i}-{a.name}" for i, a in enumerate(ALL)])
def test_requests_go_round_every_schedule(base: ob.Algorithm, learner: ob.TorchLearner) -> None:
    run = play(ob.compose(base, requests=ob.fedasmu(ask=LAST, ask_every=1)), learner)
    assert len(run.entries("wants_model")) > 5
    if base.name not in ("fedavg", "fedavgm", "fedprox", "fednova", "fedlws", "moon", "feddyn", "scaffold",
                         "fedadagrad", "fedadam", "fedyogi", "rennala", "malenia", "mifa", "fedvarp",
                         "fedstale"):  # fmt: skip
        assert run.entries("send")  # in a round nothing is new until it ends


# ---- by name ----


def test_composed_by_name_as_in_python():
    spec = {
        "name": "fedcompass", "q_min": 5, "q_max": 9,
        "with": {
            "aggregator": {"name": "fedfa", "size": 3},
            "objective": {"name": "fedprox", "mu": 0.2},
            "server_steps": {"name": "fedavgm", "momentum": 0.3},
            "requests": {"name": "fedasmu", "ask": LAST},
        },
    }  # fmt: skip
    composed = ob.compose(
        ob.fedcompass(5, 9),
        aggregator=ob.fedfa(3),
        objective=ob.fedprox(mu=0.2),
        server_steps=ob.fedavgm(momentum=0.3),
        requests=ob.fedasmu(ask=LAST),
    )
    built = ob.algorithms.build(ALGORITHMS, spec)
    assert built == composed
    assert composed.name == "fedcompass"
    assert ob.algorithms.build(ALGORITHMS, {"name": composed.name, **composed.hyperparameters}) == composed
    assert ob.algorithms.recorded_name(composed) == "fedcompass"
    assert composed.requires == {Feature.SINGLE_UPDATES, Feature.CLIENT_STATE, Feature.FRESH_MODELS}


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"agregator": {"name": "fedfa"}}, 'fedavg: with.agregator is unknown; did you mean "aggregator"?'),
        (
            {"aggregator": "fedfa"},
            "fedavg: with.aggregator = 'fedfa' is not allowed: give a mapping with a name",
        ),
        ("fedfa", "fedavg: with = 'fedfa' is not allowed: name parts, such as {aggregator: {name: fedfa}}"),
        ({"aggregator": {"name": "fedfo"}}, "algorithm 'fedfo' is unknown; did you mean"),
        (
            {"aggregator": {"name": "fedat"}},
            "TierWeights needs a schedule that aggregates by tiers",
        ),
        (
            {"aggregator": {"name": "feddyn"}},
            "DynamicMean needs an objective with the drift that the aggregator corrects",
        ),
        (
            {"requests": {"name": "fedbuff"}},
            "fedbuff has no requests for fresh models: take those of fedasmu",
        ),
        ({"objective": {"name": "fedprox", "mu": -1}}, "fedprox: mu = -1 is not allowed"),
    ],
)
def test_what_does_not_go_together_is_said_in_one_line(others, message):
    with pytest.raises(UsageError) as caught:
        ob.algorithms.build(ALGORITHMS, {"name": "fedavg", "with": others})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_composed_algorithm_runs_and_resumes_from_its_record(tmp_path, learner):
    composed = ob.compose(ob.port(2, 1, epochs=3, urgent=True), server_steps=ob.fedavgm(momentum=0.5))
    run = ob.simulate(composed, WORLD, learner, until=ob.Until(tasks=14), out=tmp_path / "run")
    record = ob.read_run(tmp_path / "run")
    again = ob.algorithms.build(ALGORITHMS, record.meta["algorithm"])
    assert again == composed
    assert torch.equal(ob.resume(tmp_path / "run", again, WORLD, learner).model.values, run.model.values)


@pytest.mark.parametrize("first", [ob.fedasmu(), ob.compose(ob.fedbuff(2, epochs=2), requests=ob.fedasmu())])
def test_what_is_composed_can_be_composed_again(first: ob.Algorithm) -> None:
    """Also where it is on the radio and asks for fresh models: both stay."""
    slots = UploadSlots(1.0)
    at_once = ob.compose(first, radio=slots, server_steps=ob.fedavgm(momentum=0.5))
    in_turn = ob.compose(ob.compose(first, radio=slots), server_steps=ob.fedavgm(momentum=0.5))
    assert in_turn == at_once
    with pytest.raises(UsageError, match="is on the radio already"):
        ob.compose(in_turn, radio=slots)
