"""Algorithms that keep each client's last update: reductions, interruptions, files, departures, refusals."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import offbeat as ob
from offbeat.algorithms.aggregators import SumOfDeltas
from offbeat.algorithms.cached import Cached
from offbeat.core.algorithm import ServerStep
from offbeat.core.client_cache import CacheEntry
from offbeat.core.commands import Aggregate
from offbeat.core.events import Joined, Left
from offbeat.core.model import Tensors
from offbeat.runs.cached_vectors import CachedVectors
from offbeat.runs.verify import verify
from offbeat.sim.replay import replay
from tests.golden.hand_driven import HandDriven
from tests.golden.near import near
from tests.sim.sim_worlds import CALM, HARD, digits, normed, outcome

UNTIL = ob.Until(tasks=42)
ALGORITHMS: dict[str, Callable[[], ob.Algorithm]] = {
    "ca2fl": lambda: ob.ca2fl(3, 3, left="drop"),
    "aced": lambda: ob.ace(3, first="seen", max_age=5),
    "mifa": lambda: ob.mifa(3, clients_per_round=2),
}
EVERY = pytest.mark.parametrize("name", ALGORITHMS)
pytestmark = pytest.mark.usefixtures("one_thread")


class StoppedError(Exception):
    """The run is interrupted."""


@pytest.fixture(scope="module")
def learner() -> ob.TorchLearner:
    return digits(normed)


def bits(run: ob.Run) -> str:
    return run.model.digest()


def play(algorithm: ob.Algorithm, learner: ob.TorchLearner, **options: Any) -> ob.Run:
    return ob.simulate(algorithm, HARD, learner, **{"seed": 3, "until": UNTIL, "evaluate": None, **options})


# ---- reductions ----


def test_a_first_buffer_of_ca2fl_is_fedbuffs(learner: ob.TorchLearner) -> None:
    until, flat = ob.Until(versions=1), ob.constant()
    fedbuff = play(ob.fedbuff(3, 3, staleness=flat), learner, until=until)
    assert bits(play(ob.ca2fl(3, 3), learner, until=until)) == bits(fedbuff)
    assert bits(play(ob.ca2fl(3, 3, first="seen"), learner, until=until)) == bits(fedbuff)
    weighted = play(ob.fedbuff(3, 3), learner, until=until)
    assert bits(play(ob.ca2fl(3, 3, staleness=ob.polynomial(a=0.5)), learner, until=until)) == bits(weighted)
    assert bits(play(ob.ca2fl(3, 3), learner)) != bits(play(ob.fedbuff(3, 3, staleness=flat), learner))


def test_the_ends_of_fedstale_are_the_equal_mean_and_fedvarp(learner: ob.TorchLearner) -> None:
    fedstale = ob.fedstale(3, clients_per_round=2, beta=0)
    equal = replace(fedstale, aggregator=SumOfDeltas(weights="equal"))
    assert bits(play(fedstale, learner)) == bits(play(equal, learner))
    fedvarp = play(ob.fedvarp(3, clients_per_round=2), learner)
    assert bits(play(ob.fedstale(3, clients_per_round=2, beta=1), learner)) == bits(fedvarp)


def test_mifa_0_with_all_in_each_round_is_the_equal_mean(learner: ob.TorchLearner) -> None:
    """Under a rate that stays the same; whoever is lost in a round counts on in MIFA(0)."""
    mifa = ob.mifa(3, first="zero")
    equal = replace(mifa, aggregator=SumOfDeltas(weights="equal"))
    whole = [ob.simulate(a, CALM, learner, seed=3, until=UNTIL, evaluate=None) for a in (mifa, equal)]
    assert not whole[0].entries("lost")
    assert bits(whole[0]) == bits(whole[1])


# ---- interruptions and files ----


@EVERY
def test_interrupted_at_every_seventh_task_and_with_no_memory_it_has_the_same_bits(
    name: str, learner: ob.TorchLearner, tmp_path: Path
) -> None:
    def stop_at(tasks: int) -> Any:
        def watch(progress: Any) -> None:
            if progress.tasks >= tasks:
                raise StoppedError

        return watch

    make, options = ALGORITHMS[name], {"cache_memory": 0, "checkpoint_seconds": 0.0}
    whole = play(make(), learner, out=tmp_path / "whole")
    cut = tmp_path / "cut"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offbeat.sim.event_loop.WATCH_SECONDS", 0.0)
        with pytest.raises(StoppedError):
            play(make(), learner, out=cut, watch=stop_at(7), **options)
        for tasks in range(14, 42, 7):
            with pytest.raises(StoppedError):
                ob.resume(
                    cut, make(), HARD, learner, watch=stop_at(tasks), until=UNTIL, evaluate=None, **options
                )
            checkpoint = ob.read_run(cut).checkpoint()
            assert checkpoint is not None
            named = {f"cached-{task}.safetensors" for task, _, _ in checkpoint.cached.values()}
            assert {path.name for path in cut.glob("cached-*")} >= named
            assert not verify(cut).problems
    last = ob.resume(cut, make(), HARD, learner, until=UNTIL, evaluate=None, cache_memory=0)
    assert outcome(last) == outcome(whole)
    assert replay(ob.read_run(cut), make()).difference is None


def test_a_limit_changes_no_bit_and_bounds_what_is_in_memory(
    learner: ob.TorchLearner, tmp_path: Path
) -> None:
    entry, whole = 4 * learner.initial(0).layout.values, play(ob.ca2fl(3, 3), learner)
    for limit in (0, entry, 2 * entry):
        assert bits(play(ob.ca2fl(3, 3), learner, cache_memory=limit)) == bits(whole)
    # The clients' states and the cache have the same limit where only one is given.
    assert bits(play(ob.ca2fl(3, 3), learner, client_memory=entry, out=tmp_path)) == bits(whole)
    vectors = CachedVectors(tmp_path / "own", 2 * entry)
    (tmp_path / "own").mkdir()
    for client in range(5):
        vectors.put(client, client, torch.full([entry // 4], float(client)))
        assert vectors.bytes_in_memory <= 2 * entry
    assert [float(vectors.get(client)[0]) for client in range(5)] == [0, 1, 2, 3, 4]
    assert len(list((tmp_path / "own").iterdir())) == 3
    vectors.drop(0)
    assert vectors.nbytes == 4 * entry


def test_a_checkpoint_writes_only_what_is_new(learner: ob.TorchLearner, tmp_path: Path) -> None:
    play(ob.ca2fl(3, 3), learner, out=tmp_path, until=ob.Until(tasks=20))
    before = {path.name: path.stat().st_ino for path in tmp_path.glob("cached-*")}
    ob.resume(tmp_path, ob.ca2fl(3, 3), HARD, learner, until=ob.Until(tasks=23), evaluate=None)
    after = {path.name: path.stat().st_ino for path in tmp_path.glob("cached-*")}
    assert after.keys() - before.keys()
    assert all(before[name] == after[name] for name in before.keys() & after.keys())
    assert before.keys() & after.keys()


# ---- what leaves an entry as it was ----


@dataclass(frozen=True)
class Overwriting(ServerStep):
    """A server step that writes over the step that it is given."""

    def transform(self, step: Tensor, memory: Tensors) -> Tensor:
        return step.mul_(-3.0).add_(1.0)


def test_the_entry_is_the_update_after_two_server_steps_have_written_over_the_step() -> None:
    run = HandDriven(
        replace(ob.ace(1, first="zero"), server_steps=(Overwriting(), Overwriting())), [1, 1], [0.0, 0.0]
    )
    run.delta(1, 0, 4.0, -8.0)
    run.delta(2, 0, 2.0, 6.0)
    assert run.tensors.release.cache.peek(0).tolist() == [2.0, 6.0]
    # ½ (4, −8) and ½ (2, 6), each times 9 less 2
    assert run.w == near(18 - 2 + 9 - 2, -36 - 2 + 27 - 2)


def test_a_driver_that_lets_steps_be_written_over_updates_leaves_the_entry() -> None:
    run = HandDriven(ob.ace(1, first="zero"), [1, 1], [0.0])
    run.tensors.release.in_place = True  # type: ignore[attr-defined]
    run.delta(1, 0, 4.0)
    assert (run.tensors.release.cache.peek(0).tolist(), run.w) == ([4.0], [2.0])
    with pytest.raises(ob.AlgorithmError, match="call cached_step"):
        Cached().step([], run.tensors.model, {})


def test_a_skipped_aggregation_leaves_the_entries() -> None:
    run = HandDriven(ob.ace(1, first="zero"), [1, 1], [0.0])
    run.tensors.set_guard(ob.Guard(), 2)
    run.delta(1, 0, 4.0)
    cache = run.tensors.release.cache
    before, total = cache.entries(), run.tensors.memory["sum"].clone()
    task = run.server.tasks[1]
    update = replace_delta(run, task.id, float("nan"))
    run.tensors.updates[task.id] = update
    run.tensors.aggregate(Aggregate((task.id,), version=2))
    assert [skipped.version for skipped in run.tensors.skipped] == [2]
    assert (cache.entries(), cache.peek(0).tolist()) == (before, [4.0])
    assert torch.equal(run.tensors.memory["sum"], total)


def replace_delta(run: HandDriven, task: int, delta: float) -> Any:
    from offbeat.core.aggregator import Update

    base = run.tensors.bases[task][1]
    own = next(own for own in run.server.tasks.values() if own.id == task)
    return Update(own, base, torch.tensor([delta]), torch.zeros(0, dtype=torch.int64))


# ---- clients that leave ----


@pytest.mark.parametrize(
    ("left", "steps"),
    [
        # (1 + 2)/2, then (1 + 4)/2 although client 0 is away, then with its old update again
        ("keep", [0.5, 1.5, 2.5, 3.5]),
        # Client 0 is away: 4/1; then it is back without an update: 6/2
        ("drop", [0.5, 1.5, 4.0, 3.0]),
    ],
)
def test_the_update_of_a_client_that_has_left_counts_on_or_is_forgotten(
    left: str, steps: list[float]
) -> None:
    run, found = HandDriven(ob.ace(1, first="zero", left=left), [1, 1], [0.0]), []  # type: ignore[arg-type]

    def arrive(t: float, client: int, delta: float) -> None:
        before = run.w[0]
        run.delta(t, client, delta)
        found.append(run.w[0] - before)

    arrive(1, 0, 1.0)
    arrive(2, 1, 2.0)
    run.feed(3, Left(0))
    arrive(4, 1, 4.0)
    run.feed(5, Joined(0, 1, 1))
    arrive(6, 1, 6.0)
    assert found == near(*steps)
    assert run.tensors.release.cache.entries().keys() == ({0, 1} if left == "keep" else {1})


# ---- wrong usage ----


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: ob.ace(max_age=3), 'max_age = 3 with first = "full" is not allowed'),
        (lambda: ob.ace(max_age=0), "max_age = 0 is not allowed"),
        (lambda: ob.fedstale(beta=1.5), "beta = 1.5 is not allowed"),
        (
            lambda: ob.simulate(ob.ca2fl(), learner=digits(normed), cache_memory=100),
            "cache_memory = 100 is not allowed with ca2fl: one client's last update has 3832 bytes; give at "
            "least as many, or 0 to keep each in a file",
        ),
        (lambda: ob.simulate(ob.ca2fl(), cache_memory=-1), "cache_memory = -1 is not allowed: give a number"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make: Callable[[], object], why: str) -> None:
    with pytest.raises(ob.UsageError) as caught:
        make()
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_algorithm_without_a_cache_takes_any_limit(learner: ob.TorchLearner) -> None:
    assert play(ob.fedbuff(3, 3), learner, cache_memory=1, until=ob.Until(tasks=2)).summary.versions == 0


def test_updates_are_kept_as_they_were_clipped() -> None:
    run = HandDriven(ob.compose(ob.ace(1, first="zero"), clip=1.0), [1, 1], [0.0, 0.0])
    run.delta(1, 0, 3.0, 4.0)
    assert run.tensors.release.cache.peek(0).tolist() == near(0.6, 0.8)
    assert run.tensors.release.cache.entries() == {0: CacheEntry(0, 0)}
