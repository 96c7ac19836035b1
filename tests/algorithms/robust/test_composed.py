"""Robust aggregators under every schedule they can go with, by name, from a recipe, and what is refused."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from msgspec.structs import replace

import offbeat as ob
from offbeat import robust as r
from offbeat.algorithms import ALGORITHMS, build
from offbeat.algorithms.describe import parts
from offbeat.core.learner import NO_INPUTS, LocalResult, LocalTask, TaskInputs
from offbeat.core.model import Model
from offbeat.core.objective import Objective
from offbeat.core.streams import Purpose, stream
from offbeat.sim.replay import replay
from offbeat.testing import check_replay, check_run
from tests.algorithms.robust import rules as robust_rules
from tests.digits import equal_digits
from tests.options import example
from tests.sampling import mostly_thorough

WORLD = ob.World([1.0, 1.3, 2.2, 3.1], channel=ob.Channel(1000))
RULES: dict[str, r.RobustAggregator | None] = {"clipped": None, **robust_rules.RULES}


@dataclass(frozen=True)
class RandomUpdates(ob.NoTraining):
    """Updates that are random vectors around one, the server's own too; labels, for those who ask."""

    def label_counts(self, client: int) -> list[int]:
        return [client, 2, 3]

    def train(
        self,
        base: Model,
        task: LocalTask,
        objective: Objective,
        inputs: TaskInputs = NO_INPUTS,
        watch: Any = None,
    ) -> LocalResult:
        rng = stream(task.seed, Purpose.TRAIN, task.client, task.task)
        delta = torch.from_numpy(1.0 + rng.normal(size=base.layout.values)).float()
        result = super().train(base, task, objective, inputs)
        return replace(result, delta=delta, metrics={"loss": float(rng.random())})

    def train_root(self, model: Model, version: int, seed: int, steps: int) -> torch.Tensor:
        return torch.ones_like(model.values)


LEARNER = RandomUpdates(4, parameters=3)


def largest(algorithm: ob.Algorithm) -> float:
    """Most updates that its schedule aggregates together."""
    found = algorithm.schedule.largest_aggregation
    return float("inf") if found is None else found


KINDS = {type(example(name).schedule): name for name in reversed(ALGORITHMS)}  # one for each schedule


@pytest.mark.parametrize("name", mostly_thorough(ALGORITHMS, KINDS.values()))
def test_with_every_schedule_a_rule_goes_or_is_refused_in_one_line(name: str) -> None:
    base, until = example(name), ob.Until(tasks=14)
    for rule in RULES.values():
        if rule is not None and rule.least > largest(base):
            refused = rf"^{rule.title} needs \d+ updates at a time, {name} aggregates [^\n]+$"
            with pytest.raises(ob.UsageError, match=refused):
                ob.compose(base, aggregator=rule, clip=2.0)
            continue
        algorithm = ob.compose(base, aggregator=rule, clip=2.0)
        recorded = json.loads(json.dumps({"name": name, **algorithm.hyperparameters}))
        assert build(ALGORITHMS, recorded) == algorithm
        run = ob.simulate(algorithm, WORLD, LEARNER, until=until, evaluate=None)
        assert run.summary.versions > 0
        assert torch.isfinite(run.model.values).all()
        least = algorithm.aggregator.least
        for entry in run.entries("aggregate"):
            assert entry.get("fallback") == (least if len(entry["tasks"]) < least else None)
        check_replay(algorithm, WORLD, until=until)


def test_a_group_too_small_for_its_rule_is_marked_in_the_journal(tmp_path: Any) -> None:
    algorithm = ob.compose(ob.fedcompass(2, 8), aggregator=r.MultiKrum(f=0, weights="share"), clip=2.0)
    out, until = tmp_path / "run", ob.Until(tasks=40)
    run = ob.simulate(algorithm, WORLD, LEARNER, until=until, evaluate=None, out=out)
    found = [(len(e["tasks"]), e.get("fallback"), e.get("first")) for e in run.entries("aggregate")]
    assert found[:4] == [(1, 3, True)] * 4  # first responses keep their own note
    assert (4, None, None) in found
    assert replay(ob.read_run(out), algorithm).difference is None
    check_run(algorithm, WORLD, 3)


def test_the_marking_is_part_of_the_schedule_and_changes_with_the_aggregator():
    plain = ob.fedbuff(4, steps=2)
    marked = ob.compose(plain, aggregator=r.Median(), clip=1.0)
    assert marked.schedule.inner == plain.schedule
    assert (marked.schedule.concurrency, marked.schedule.largest_aggregation) == (None, 4)
    assert ob.compose(marked, aggregator=r.MultiKrum(f=0)).schedule == marked.schedule
    assert ob.compose(marked, aggregator=ob.fedbuff()).schedule == plain.schedule
    assert ob.compose(marked, requests=ob.fedasmu()).schedule.inner.inner == plain.schedule
    assert [part.name for part in parts(marked)] == [
        "NoteFallbacks", "Buffered", "Clipped", "Median", "Plain", "mean",
    ]  # fmt: skip


def test_clip_goes_around_any_aggregator_and_stays():
    clipped = ob.compose(ob.fedfa(3), clip=0.5)
    assert clipped.aggregator == r.Clipped(ob.fedfa(3).aggregator, 0.5)
    other = ob.compose(clipped, aggregator=r.CenteredClip(tau=1.0))
    assert other.aggregator == r.Clipped(r.CenteredClip(tau=1.0), 0.5)
    assert ob.compose(other, clip=2.0).aggregator == r.Clipped(r.CenteredClip(tau=1.0), 2.0)
    assert ob.compose(ob.fedavg(), aggregator=other).aggregator == other.aggregator
    assert clipped.hyperparameters["with"] == {"clip": 0.5}


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"aggregator": {"kind": "median"}}, "Median needs updates of bounded norm: give clip"),
        ({"aggregator": {"kind": "medan"}}, "kind = 'medan' is unknown; did you mean"),
        ({"aggregator": {"kind": "multi_krum"}}, "fedbuff: with.aggregator.f is missing"),
        ({"aggregator": {"kind": "centered_clip", "tau": 0}}, "with.aggregator.tau = 0 is not allowed"),
        ({"aggregator": {"kind": "trimmed_mean", "beta": 0.5}}, "with.aggregator.beta = 0.5 is not allowed"),
        (
            {"aggregator": {"kind": "trimmed_mean"}, "clip": 1},
            "TrimmedMean with beta = 0.1 needs 10 updates at a time, fedbuff aggregates at most 5: let it",
        ),
        (
            {"aggregator": {"kind": "multi_krum", "f": 2}, "clip": 1},
            "MultiKrum with f = 2 needs 7 updates at a time, fedbuff aggregates at most 5: let it",
        ),
        ({"clip": 0}, "fedbuff: with.clip = 0 is not allowed"),
        ({"aggregator": {"kind": "buckets", "buckets": 4, "f": 2}}, "at least 2 f + 1 = 5"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_in_one_line(others: Any, message: str) -> None:
    with pytest.raises(ob.UsageError) as caught:
        build(ALGORITHMS, {"name": "fedbuff", "size": 5, "with": others})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_python_gives_wrongly_is_refused():
    with pytest.raises(ob.UsageError, match=r"clip = -1 is not allowed: give a number above 0"):
        ob.compose(ob.fedbuff(), clip=-1)
    with pytest.raises(
        ob.UsageError, match=r"3 is no aggregator: give an algorithm, or an aggregator of offbeat.rob"
    ):
        ob.compose(ob.fedbuff(), aggregator=3)
    with pytest.raises(
        ob.UsageError, match=r"Median needs 3 updates at a time, fedfa aggregates each by itself"
    ):
        ob.compose(ob.fedfa(9), aggregator=r.Median(), clip=1.0)


@pytest.mark.parametrize("buffers", ["mean", "follow", "local", "recompute"])
def test_floating_buffers_must_not_go_past_it(buffers: Any) -> None:
    data = equal_digits(4, samples=40, test_samples=10)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10), torch.nn.BatchNorm1d(10))
    algorithm = ob.compose(ob.fedbuff(4, steps=1), clip=1.0, buffers=buffers)
    run = lambda: ob.simulate(algorithm, WORLD, ob.TorchLearner(net, data), until=ob.Until(tasks=8))  # noqa: E731
    if buffers in ("mean", "follow"):
        with pytest.raises(
            ob.UsageError, match=rf"^buffers = '{buffers}' is not allowed with SumOfDeltas, which bo"
        ):
            run()
    else:
        assert run().summary.versions == 2
