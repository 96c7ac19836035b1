"""Iterations over a shared radio: who is ready, who may send, what arrives, how old it is."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import offbeat as ob
from offbeat.algorithms.wireless import AgeWeighted, RadioIterations
from offbeat.algorithms.wireless.over_radio import OverRadio, UploadSlots
from offbeat.algorithms.wireless.policies import (
    AgeBased,
    BestChannel,
    BestChannelBestNorm,
    DataImportance,
    Random,
)
from offbeat.codec import SparseQuantised, TopK
from offbeat.core.errors import UsageError
from offbeat.core.programme import Programme
from offbeat.local.objectives import Plain
from offbeat.world.channel import Channel, Trace
from tests.algorithms.pull import Pull
from tests.digits import equal_digits

# gains such that log2(1 + 10^(snr/10) · gain) is 1, 2, 3 bits per symbol at 0 dB
STEADY = Channel(600, snr_db=0.0, fading=Trace([[1.0], [3.0], [7.0]]))


BEST = BestChannel()


def algorithm(policy: Any = BEST, scheduled: int = 1, gamma: float = 1.0, **options: Any) -> ob.Algorithm:
    schedule = RadioIterations(Programme(steps=1), scheduled, policy, **options)
    return ob.Algorithm(schedule, AgeWeighted(gamma), Plain())


def world(*speeds: float, **options: Any) -> ob.World:
    return ob.World(list(speeds), channel=options.pop("channel", STEADY), **options)


def told(run: ob.Run, *names: str) -> list[tuple[Any, ...]]:
    return [(e["t"], e["name"], e["client"]) for e in run.journal if e["name"] in names]


def test_a_timeline():
    """Seconds a task 1, 3, 5; an iteration every 4 s; the best channel sends: client 2 before 1 before 0."""
    run = ob.simulate(algorithm(period=4.0), world(1, 3, 5), Pull((3, 1, 2)), until=ob.Until(seconds=12.5))
    assert told(run, "ready", "upload", "discard", "arrived") == [
        (1.0, "ready", 0), (3.0, "ready", 1),
        (4.0, "discard", 0), (4.0, "upload", 1), (4.0, "arrived", 1),
        (5.0, "ready", 2), (5.0, "ready", 0), (7.0, "ready", 1),
        (8.0, "discard", 0), (8.0, "discard", 1), (8.0, "upload", 2), (8.0, "arrived", 2),
        (9.0, "ready", 0), (11.0, "ready", 1),
        (12.0, "discard", 0), (12.0, "upload", 1), (12.0, "arrived", 1),
    ]  # fmt: skip
    assert [(e["iteration"], e["ages"]) for e in run.entries("aggregate")] == [(1, [0]), (2, [1]), (3, [0])]
    assert [e["bits"] for e in run.entries("upload")] == [1200, 1800, 1200]  # 600 symbols of 2, 3, 2 bits
    assert run.entries("measured")[0]["capacities"] == [[0, 1.0], [1, 2.0]]
    assert [e["t"] for e in run.entries("train")] == [0, 0, 0, 4, 4, 8, 8, 8, 12, 12]
    assert run.summary.dropped == 4


def test_two_that_send_share_the_symbols_for_equal_bits():
    run = ob.simulate(
        algorithm(scheduled=2, period=6.0), world(1, 3, 5), Pull((3, 1, 2)), until=ob.Until(seconds=7)
    )
    # clients 1 and 2: 600 / (1/2 + 1/3) = 720 bits each
    assert [(e["client"], e["bits"]) for e in run.entries("upload")] == [(1, 720), (2, 720)]


def test_nobody_sends_through_a_channel_of_none():
    deaf = replace(STEADY, fading=Trace([[0.0], [3.0], [0.0, 7.0]]))
    run = ob.simulate(
        algorithm(scheduled=3, period=6.0), world(1, 30, 2, channel=deaf), Pull((3, 1, 2)),
        until=ob.Until(seconds=19),
    )  # fmt: skip
    # at 6 neither 0 nor 2 has a channel, at 12 client 2 has one, at 18 none again
    assert told(run, "upload", "arrived") == [(12.0, "upload", 2), (12.0, "arrived", 2)]
    assert [(e["t"], e["client"]) for e in run.entries("discard")] == [
        (6.0, 0), (6.0, 2), (12.0, 0), (18.0, 0), (18.0, 2),
    ]  # fmt: skip
    assert [e["iteration"] for e in run.entries("aggregate")] == [2]


def test_weights_by_data_and_age():
    """Eq. 13 by hand: n = 1, 3, ages 0 and 2 at γ = 1/2: weights 1 and 3/4, of 7/4."""
    from offbeat.core.aggregator import Update
    from offbeat.core.layout import Layout
    from offbeat.core.model import Model
    from offbeat.core.schedule import Task

    none = torch.zeros(0, dtype=torch.int64)
    base, now = (Model(Layout.flat(1), torch.tensor([v]), none) for v in (2.0, 9.0))
    note = {"ages": [0, 2]}
    first = Update(Task(0, 0, 1, 1, 0.0, samples=1), now, torch.tensor([5.0]), none, note=note)  # w_k = 14
    second = Update(Task(1, 1, 0, 1, 0.0, samples=3), base, torch.tensor([5.0]), none, note=note)  # w_k = 7
    step = AgeWeighted(0.5).step([first, second], now, {})
    assert 9 + step.item() == pytest.approx((14 * 1 + 7 * 0.75) / 1.75)  # 11


@pytest.mark.parametrize("period", [None, 12.3])
def test_everybody_sends_everything_in_time_is_fedavg(period):
    """R = N, no compression, T̃ = T_max, γ = 1."""
    speeds = [1.0, 1.7, 2.3, 4.1]
    channel = Channel(100)
    periodic = ob.simulate(
        algorithm(Random(), 4, period=period, slot=1.0),
        ob.World(speeds, channel=channel),
        Pull(),
        until=ob.Until(versions=8),
    )
    fedavg = ob.simulate(ob.fedavg(1), ob.World(speeds), Pull(), until=ob.Until(versions=8))
    assert torch.equal(periodic.model.values, fedavg.model.values)
    assert periodic.summary.dropped == 0
    waits = {None: 4.1, 12.3: 12.3}[period]
    assert periodic.entries("aggregate")[2]["t"] == pytest.approx(3 * waits)


CODED = replace(algorithm(AgeBased(), 2, gamma=0.6, period=3.0), codec=SparseQuantised())


def digits() -> ob.TorchLearner:
    from torch import nn

    torch.manual_seed(0)
    data = equal_digits(6, samples=120, test_samples=30)
    return ob.TorchLearner(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), data, ob.Training(lr=0.1, batch_size=5)
    )


HARD = ob.World(
    ob.laws.Uniform(0.3, 2.5),
    channel=Channel(1500),
    availability=ob.Availability(dropout=0.1, leave=[40, 1e6, 55, 1e6, 1e6, 1e6], period=30, present=0.9),
)


def test_updates_arrive_within_their_bits_and_are_accounted_for():
    run = ob.simulate(CODED, HARD, digits(), seed=2, until=ob.Until(seconds=100))
    given = {e["task"]: e["bits"] for e in run.entries("upload")}
    sent = {e["task"]: e["bits"] for e in run.entries("arrived")}
    assert len(sent) > 20
    assert all(sent[task] <= given[task] for task in sent)
    assert run.summary.bytes_up == sum(sent.values()) // 8
    assert run.summary.bytes_up < 0.8 * len(sent) * run.model.layout.nbytes
    s = run.summary
    assert s.dispatched == s.aggregated + s.dropped + s.lost + s.held + s.running
    assert s.dropped == len(run.entries("discard")) > 0
    assert s.lost > 0
    assert s.accuracy is not None
    assert s.accuracy > 0.2


def test_bit_identical_with_workers_after_an_interruption_and_in_replay(tmp_path):
    from offbeat.sim.replay import replay

    until = ob.Until(seconds=60)
    whole = ob.simulate(CODED, HARD, digits(), seed=2, until=until, out=tmp_path / "whole")
    assert replay(ob.read_run(tmp_path / "whole"), CODED).difference is None

    class Stop(KeyboardInterrupt):
        pass

    def stop_at(tasks: int) -> Any:
        def watch(progress: Any) -> None:
            if progress.tasks >= tasks:
                raise Stop

        return watch

    cut = tmp_path / "cut"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offbeat.sim.event_loop.WATCH_SECONDS", 0.0)
        options: dict[str, Any] = {"until": until, "checkpoint_seconds": 0.0}
        with pytest.raises(Stop):
            ob.simulate(CODED, HARD, digits(), seed=2, out=cut, watch=stop_at(5), **options)
        for tasks in (9, 14):
            with pytest.raises(Stop):
                ob.resume(cut, CODED, HARD, digits(), watch=stop_at(tasks), **options)
    last = ob.resume(cut, CODED, HARD, digits(), until=until)
    assert torch.equal(last.model.values, whole.model.values)
    assert last.journal == whole.journal
    assert last.summary == whole.summary


def test_any_schedule_over_the_radio():
    base = ob.fedasync(1, alpha=0.5, staleness=ob.constant())
    on_air = replace(base, schedule=OverRadio(base.schedule, UploadSlots(0.5)))
    channel = replace(STEADY, period=1.0)
    run = ob.simulate(on_air, world(1, 3, 5, channel=channel), Pull((3, 1, 2)), until=ob.Until(seconds=20))
    plain = ob.simulate(base, ob.World([1.0, 3.0, 5.0]), Pull((3, 1, 2)), until=ob.Until(seconds=20))
    assert torch.equal(run.model.values, plain.model.values)  # without a codec the radio changes nothing
    assert told(run, "arrived", "train") == told(plain, "arrived", "train")
    bits = {(e["client"], e["bits"]) for e in run.entries("upload")}
    assert bits == {(0, 300), (1, 600), (2, 900)}  # 600 symbols a second, half a second each


def test_label_counts_are_told_to_who_chooses_by_them():
    learner = digits()
    run = ob.simulate(
        algorithm(DataImportance(), 2, period=3.0), replace(HARD, availability=ob.Availability()), learner,
        until=ob.Until(seconds=20),
    )  # fmt: skip
    assert run.entries("joined")[0]["labels"] == learner.label_counts(0)
    assert run.summary.versions > 3


def test_a_world_without_a_channel_is_refused():
    with pytest.raises(UsageError, match=r"needs a world with a channel: give world\.channel"):
        ob.simulate(algorithm(period=1.0), ob.World([1.0, 2.0]), Pull((3, 1)), until=ob.Until(versions=1))
    with pytest.raises(UsageError, match="lists 3 values for 2 clients"):
        ob.simulate(algorithm(period=1.0), world(1.0, 2.0), Pull((3, 1)), until=ob.Until(versions=1))


def test_the_learning_rate_halves_with_time():
    """halving / (halving + now), with the schedule's own T̃ or over the radio."""
    run = ob.simulate(
        algorithm(period=4.0, halving=4.0), world(1, 3, 5), Pull((3, 1, 2)), until=ob.Until(seconds=12.5)
    )
    factors = {e["t"]: e["lr_factor"] for e in run.entries("train") if e.get("lr_factor") is not None}
    assert factors == {4.0: 0.5, 8.0: pytest.approx(1 / 3), 12.0: 0.25}
    base = ob.fedasync(1, alpha=0.5)
    on_air = replace(base, schedule=OverRadio(base.schedule, UploadSlots(0.5, halving=3.0)))
    run = ob.simulate(on_air, world(1, 3, 5), Pull((3, 1, 2)), until=ob.Until(seconds=7))
    factors = {e["t"]: e["lr_factor"] for e in run.entries("train") if e.get("lr_factor") is not None}
    assert factors[3.0] == 0.5
    assert factors[6.0] == pytest.approx(1 / 3)


def test_the_age_policy_may_start_its_count_again():
    """A scheduled client's c_k: cumulative, 0 has fewest misses for ever; with reset they take turns."""
    steady = replace(STEADY, fading=Trace([[1.0], [1.0], [1.0]]))

    def turns(policy: AgeBased) -> list[int]:
        run = ob.simulate(
            algorithm(policy, period=2.0), world(1, 1, 1.5, channel=steady), Pull((3, 1, 2)),
            until=ob.Until(seconds=13),
        )  # fmt: skip
        return [e["client"] for e in run.entries("upload")]

    # The pool is one device of three: of equal channels the lowest number, whatever its count
    assert turns(AgeBased()) == [0] * 6
    schedule = RadioIterations(Programme(steps=1), 1, AgeBased(reset=True), 2.0)
    state = schedule.initial()
    state.t, state.times, state.last = 9, {0: 5, 1: 2}, {0: 2, 1: 8}
    assert [schedule._unscheduled(k, state) for k in range(3)] == [6, 0, 8]
    schedule = RadioIterations(Programme(steps=1), 1, AgeBased(), 2.0)
    assert [schedule._unscheduled(k, state) for k in range(3)] == [3, 6, 8]


def test_what_is_discarded_is_not_trained(monkeypatch):
    """Unless its length is asked for, or its client keeps a state."""
    trained: list[int] = []

    class Counting(Pull):
        def train(self, base, task, *rest):
            trained.append(task.task)
            return super().train(base, task, *rest)

    def tasks(made: ob.Algorithm) -> int:
        trained.clear()
        run = ob.simulate(made, world(1, 3, 5), Counting((3, 1, 2)), until=ob.Until(seconds=12.5))
        assert run.summary.dropped > 0
        assert len(set(trained)) == len(trained)
        return len(trained) - run.summary.tasks

    assert tasks(algorithm(period=4.0)) == 0
    assert tasks(algorithm(BestChannelBestNorm(), period=4.0)) > 0


def test_wireless_fedavg_from_its_options():
    """The factory with T_max, γ = 1, μ = 0, random, R = N and no codec is FedAvg."""
    speeds = [1.0, 1.7, 2.3, 4.1]
    made = ob.wireless(
        steps=1, scheduled=4, period=4.1, policy={"kind": "random"}, mu=0.0, codec=None
    )  # fmt: skip
    run = ob.simulate(made, ob.World(speeds, channel=Channel(1)), Pull(), until=ob.Until(versions=6))
    fedavg = ob.simulate(ob.fedavg(1), ob.World(speeds), Pull(), until=ob.Until(versions=6))
    assert torch.equal(run.model.values, fedavg.model.values)


def test_a_codec_and_the_radio_for_any_algorithm_by_options():
    from offbeat.algorithms import ALGORITHMS, build, recorded_name

    spec = {
        "name": "fedbuff", "steps": 1, "size": 2,
        "with": {"codec": {"kind": "top_k", "fraction": 0.5}, "radio": {"slot": 0.25, "halving": 9.0}},
    }  # fmt: skip
    made = build(ALGORITHMS, spec)
    assert made.codec == TopK(fraction=0.5)
    assert made.schedule == OverRadio(ob.fedbuff(2, steps=1).schedule, UploadSlots(0.25, 9.0))
    assert build(ALGORITHMS, {"name": made.name, **made.hyperparameters}) == made
    assert recorded_name(made) == "fedbuff"
    for others, words in (
        ({"codec": {"kind": "topk"}}, "with.codec.kind = 'topk' is unknown; did you mean \"top_k\"?"),
        ({"codec": "top_k"}, "with.codec = 'top_k' is not allowed"),
        ({"radio": {}}, "with.radio.slot is missing"),
        ({"radio": {"slot": 0}}, "with.radio.slot = 0 is not allowed"),
    ):
        with pytest.raises(UsageError) as caught:
            build(ALGORITHMS, {"name": "fedbuff", "with": others})
        assert words in str(caught.value)
    with pytest.raises(UsageError, match="wireless is on the radio already: leave radio out"):
        build(ALGORITHMS, {"name": "wireless", "with": {"radio": {"slot": 1.0}}})


def test_weights_too_small_or_too_large_for_numbers():
    """γ^2000 = 0 in floating point, yet γ^1999 is twice that; 10^2000 is no number."""
    from offbeat.core.aggregator import Update
    from offbeat.core.layout import Layout
    from offbeat.core.model import Model
    from offbeat.core.schedule import Task

    none = torch.zeros(0, dtype=torch.int64)
    now = Model(Layout.flat(1), torch.tensor([0.0]), none)
    updates = [
        Update(
            Task(i, i, 0, 1, 0.0, samples=1), now, torch.tensor([3.0 * i]), none, note={"ages": [2000, 1999]}
        )
        for i in range(2)
    ]
    assert AgeWeighted(0.5).step(updates, now, {}).item() == pytest.approx(2.0)  # (0 + 2 · 3) / 3
    with pytest.raises(ob.UsageError, match=r"gamma = 10\.0 is not allowed: its power of 2000"):
        AgeWeighted(10.0).step(updates, now, {})
