"""The whole system under faults, from seeds: see docs/testing.md. A seed that fails is in the message."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace

pytest.importorskip("apsw")
pytest.importorskip("greenlet")

from offbeat.net.grpc import call
from offbeat.net.messages import UpdateSubmission
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.handlers import MessageHandler
from offbeat.net.server.service import Service
from offbeat.net.server.state_files import UpdateLog
from tests.sampling import thorough
from tests.system.federation import FailedError, Federation, algorithms, simulate

pytestmark = pytest.mark.usefixtures("one_thread")
SEEDS, PART = 20, 20
THOROUGH, LARGE_PART = 10_000, 500


def check(seeds: range) -> Counter[str]:
    """Run seeds; returns how often each fault has happened. Fails with all seeds that fail."""
    counts, failed = Counter[str](), []
    for seed in seeds:
        try:
            counts.update(simulate(seed).counts)
        except FailedError as error:
            failed.append(f"python -m tests.system {seed}: {error}")
    assert not failed, "\n".join(failed)
    return counts


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_nothing_acknowledged_is_lost_whatever_happens(first: int) -> None:
    counts = check(range(first, first + PART))
    assert sum(counts.values()) > 3 * PART
    assert {"_kill", "_cut_power", "_cut_power_later", "_partition", "_disk_errors"} <= set(counts)


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(SEEDS, THOROUGH, LARGE_PART))
def test_ten_thousand_seeds(first: int) -> None:
    check(range(first, min(first + LARGE_PART, THOROUGH)))


SOME = range(4)
"""Seeds that have all algorithms."""


@cache
def some() -> list[Federation]:
    return [simulate(seed) for seed in SOME]


def digests() -> list[str]:
    return [run.digest.hexdigest() for run in some()]


@pytest.mark.thorough
@pytest.mark.xdist_group("system")  # they share the runs
def test_a_seed_gives_the_same_run_in_another_process() -> None:
    """The one with another hash seed: nothing follows from the order of a set, or from addresses."""
    code = "import json; from tests.system.test_system import digests; print(json.dumps(digests()))"
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": paths}
    other = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert json.loads(other.stdout) == digests()


@pytest.mark.xdist_group("system")
def test_nothing_stays_in_place_of_grpc() -> None:
    before = call.open_channel
    simulate(0)
    assert call.open_channel is before


def test_seeds_differ_and_have_all_algorithms() -> None:
    assert {run.name for run in some()} == set(algorithms())
    assert len(set(digests())) == len(SOME)


# ---- planted bugs ----


def acknowledge_before_the_commit(self: Any) -> None:
    """`Service._commit`, which delivers first."""
    batches, self._uncommitted = self._uncommitted, []
    self._deliver_batches(batches)
    if durable := [effects for effects, _ in batches if effects.durable]:
        self._idle.clear()
        self._committing = self._writer.submit(self._store.commit, *durable)
        self._committing.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._end_commit, []))


on_task_message = MessageHandler._on_task_message
end_replay = Coordinator.end_replay


def forget_whose_update_it_is(self: Any, now: float, site: Any, message: Any) -> None:
    """An update that comes again counts as that of the task in training."""
    task = self._server.tasks.get(site.client)
    if task is not None and isinstance(message, UpdateSubmission):
        message = replace(message, task=task.id)
    on_task_message(self, now, site, message)


def forget_timers(self: Any, now: float) -> None:
    """A server that starts again has none of its timers."""
    end_replay(self, now)
    self.server.timers.clear()


@pytest.mark.parametrize(
    ("where", "name", "bug"),
    [
        (Service, "_commit", acknowledge_before_the_commit),
        *thorough(
            (UpdateLog, "sync", lambda self: None),
            (MessageHandler, "_on_task_message", forget_whose_update_it_is),
            (Coordinator, "end_replay", forget_timers),
        ),
    ],
    ids=["acknowledged before the commit", "no sync", "no check for duplicates", "lost timers"],
)
def test_planted_bugs_are_found(where: type, name: str, bug: Callable[..., Any]) -> None:
    """The seed that finds it fails again, in the same way."""
    with patch.object(where, name, bug):
        seed, said = first_failure(range(60))
        with pytest.raises(FailedError) as again:
            simulate(seed)
    assert str(again.value) == said
    assert said.startswith(f"seed {seed} (")


def first_failure(seeds: range) -> tuple[int, str]:
    """The first seed that fails, and what it says."""
    for seed in seeds:
        try:
            simulate(seed)
        except FailedError as error:
            return seed, str(error)
    raise AssertionError("no seed fails")
