"""The pool's bookkeeping, with workers that are simulated: crashes at every moment, limits, order."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offbeat.core.errors import RunError, UsageError
from offbeat.core.layout import Layout
from offbeat.core.learner import NO_INPUTS, LocalResult, LocalTask, TaskInputs
from offbeat.core.model import Model
from offbeat.sim.executors.out_of_memory import out_of_memory
from offbeat.sim.executors.worker_pool import (
    AHEAD,
    MOST_CRASHES,
    Crashed,
    Done,
    OutOfMemory,
    PoolTask,
    Started,
    WorkerPool,
)

LAYOUT = Layout(())


def model(values: float = 0.0) -> Model:
    return Model(LAYOUT, torch.full((1,), values), torch.zeros(0))


def task(number: int) -> LocalTask:
    return LocalTask(number, 0, 0, 1, seed=0)


@dataclass
class FakePort:
    """Workers are numbers. Each `collect` does one thing: what `script` says, or the first thing there is."""

    count: int = 2
    script: deque[str] = field(default_factory=deque)  # "crash N", "leave N", "full N", "do N"
    reason: str = "died"
    starting: deque[int] = field(default_factory=deque)
    held: dict[int, deque[PoolTask]] = field(default_factory=dict)
    spawned: int = 0
    sent: list[tuple[int, str]] = field(default_factory=list)
    most_held: int = 0
    closed: bool = False

    def spawn(self) -> None:
        self.starting.append(self.spawned)
        self.spawned += 1

    def send(self, worker: int, task: PoolTask) -> None:
        assert task.base is not None
        self.held[worker].append(task)
        self.sent.append((worker, "evaluation" if task.task is None else str(task.task.task)))
        self.most_held = max(self.most_held, *(len(tasks) for tasks in self.held.values()))

    def collect(self, *, block: bool) -> list[Any]:
        if not block:
            return []
        if self.starting:
            worker = self.starting.popleft()
            self.held[worker] = deque()
            return [Started(worker)]
        kind, _, number = (self.script.popleft() if self.script else "do 0").partition(" ")
        busy = [worker for worker, tasks in self.held.items() if tasks]
        assert busy, "the pool waits for workers that have nothing to do"
        worker = busy[int(number) % len(busy)]
        if kind in ("crash", "leave"):
            del self.held[worker]
            return [Crashed(worker, self.reason if kind == "crash" else None)]
        if kind == "full":
            del self.held[worker]
            return [OutOfMemory(worker, "CUDA out of memory")]
        return [Done(worker, *self.do(self.held[worker].popleft()))]

    def do(self, task: PoolTask) -> tuple[PoolTask, Any]:
        if task.task is None:
            assert task.base is not None
            return task, (task.client or 0, {"loss": task.base.model.values.item()})
        if not task.wanted:
            return task, None
        return task, LocalResult(torch.tensor([float(task.task.task)]), torch.zeros(0))

    def close(self) -> None:
        self.closed = True


def submit(pool: WorkerPool[int], *numbers: int, due: float | None = None) -> None:
    for number in numbers:
        pool.submit(task(number), model(), float(number) if due is None else due, NO_INPUTS)


def test_tasks_are_sent_in_the_order_in_which_they_are_due() -> None:
    port = FakePort(count=1)
    pool = WorkerPool(port)
    for number in (4, 1, 3, 0, 2):
        submit(pool, number)
    pool.result(4)
    assert [name for _, name in port.sent] == ["0", "1", "2", "3", "4"]


def test_equally_due_tasks_are_sent_first_come_first_served() -> None:
    port = FakePort(count=1)
    pool = WorkerPool(port)
    submit(pool, 3, 1, 2, due=5.0)
    pool.result(2)
    assert [name for _, name in port.sent] == ["3", "1", "2"]


def test_workers_are_filled_evenly_and_never_beyond_the_limit() -> None:
    port = FakePort(count=3)
    pool = WorkerPool(port)
    submit(pool, *range(20))
    pool.result(0)
    assert [worker for worker, _ in port.sent[:2]] == [0, 0]  # the only one yet
    for number in range(1, 20):
        pool.result(number)
    assert port.most_held == AHEAD
    assert {worker for worker, _ in port.sent} == {0, 1, 2}


def test_an_evaluation_goes_before_all_that_waits() -> None:
    port = FakePort(count=1)
    pool = WorkerPool(port)
    submit(pool, *range(5))
    assert pool.evaluate(model(7.0)) == {"loss": 7.0}
    assert [name for _, name in port.sent][:3] == ["evaluation", "0", "1"]


@pytest.mark.parametrize("script", ["", "do 1,do 0,do 1", "crash 0,do 0,leave 1,crash 0"])
def test_evaluations_of_clients_are_spread_and_keep_their_clients(script: str) -> None:
    port = FakePort(count=2, script=deque(filter(None, script.split(","))))
    pool = WorkerPool(port)
    submit(pool, *range(3))
    clients = [(client, TaskInputs()) for client in range(1, 30)]
    found = pool.evaluate_clients(model(7.0), iter(clients))
    assert found == {client: (client, {"loss": 7.0}) for client, _ in clients}
    assert {worker for worker, name in port.sent if name == "evaluation"} >= {0, 1}
    assert float(pool.result(0).delta) == 0.0


def test_a_cancelled_task_is_not_sent_and_its_number_can_be_used_again() -> None:
    port = FakePort(count=1)
    pool = WorkerPool(port)
    submit(pool, 0, 1, 2, 3)
    pool.cancel(3)
    pool.cancel(99)
    pool.result(0)
    pool.cancel(1)  # is at the worker
    submit(pool, 1)
    assert pool.result(1).delta.item() == 1
    pool.result(2)
    assert sorted(name for _, name in port.sent) == ["0", "1", "1", "2"]
    assert not pool._tasks


def test_a_version_lives_as_long_as_a_task_that_needs_it() -> None:
    pool = WorkerPool(FakePort(count=1))
    base, fresh = model(1.0), model(2.0)
    pool.submit(task(0), base, 0.0, TaskInputs(fresh=fresh))
    pool.submit(task(1), base, 1.0, NO_INPUTS)
    assert len(pool._versions) == 2
    pool.result(0)
    assert len(pool._versions) == 1
    pool.cancel(1)
    pool.evaluate(fresh)
    assert [version.model for version in pool._versions.values()] == [fresh]  # the latest stays


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from(["do", "crash", "leave", "full"]), st.integers(0, 2)), max_size=40),
)
def test_crashes_at_any_moment_change_nothing(count: int, steps: list[tuple[str, int]]) -> None:
    """All tasks get their own result, unless one's workers crashed too often or none has memory for it."""
    port = FakePort(count, deque(f"{kind} {number}" for kind, number in steps))
    pool = WorkerPool(port)
    submit(pool, *range(8))
    try:
        for number in range(8):
            assert pool.result(number).delta.item() == number
            if number == 3:
                assert pool.evaluate(model(5.0)) == {"loss": 5.0}
    except RunError:
        assert sum(kind == "crash" for kind, _ in steps) >= MOST_CRASHES
    except UsageError:
        assert sum(kind == "full" for kind, _ in steps) >= count
    else:
        assert 1 <= len(port.held) + len(port.starting) <= count
        assert len(port.held) + len(port.starting) == pool._count
    assert port.most_held <= AHEAD


def test_a_task_of_which_workers_crash_ends_the_run_and_is_named() -> None:
    port = FakePort(count=2, script=deque(["crash 0"] * MOST_CRASHES))
    pool = WorkerPool(port)
    submit(pool, 0)
    with pytest.raises(RunError, match=rf"task=0,.*{MOST_CRASHES} died"):
        pool.result(0)
    assert port.spawned == 2 + MOST_CRASHES


def test_only_the_task_in_training_is_counted_and_it_then_has_a_worker_to_itself() -> None:
    """Four workers crash in turn: of tasks 0, 0, 1 and 1, and none of a task that waits behind another."""
    port = FakePort(count=1, script=deque(["crash 0", "crash 0", "crash 0", "do 0", "crash 0", "do 0"]))
    pool = WorkerPool(port)
    submit(pool, 0, 1)
    assert pool.result(0).delta.item() == 0
    assert pool.result(1).delta.item() == 1
    assert port.sent == [(0, "0"), (0, "1"), (1, "0"), (2, "1"), (3, "0"), (3, "1"), (4, "1")]


def test_a_worker_lost_with_its_node_is_not_counted() -> None:
    port = FakePort(count=1, script=deque(["leave 0"] * (2 * MOST_CRASHES)))
    pool = WorkerPool(port)
    submit(pool, 0)
    assert pool.result(0).delta.item() == 0
    assert port.spawned == 1 + 2 * MOST_CRASHES


def test_workers_that_have_started_are_closed_when_another_cannot() -> None:
    class Refusing(FakePort):
        def spawn(self) -> None:
            if self.spawned == 1:
                raise OSError("no more processes")
            super().spawn()

    port = Refusing(count=2)
    with pytest.raises(OSError, match="no more processes"):
        WorkerPool(port)
    assert port.closed


def test_fewer_workers_train_where_memory_runs_out(caplog: pytest.LogCaptureFixture) -> None:
    port = FakePort(count=3, script=deque(["do 0", "do 1", "full 1", "do 0", "full 0"]))
    pool = WorkerPool(port)
    submit(pool, *range(12))
    assert [pool.result(number).delta.item() for number in range(12)] == list(range(12))
    assert port.spawned == 3
    assert [record.getMessage() for record in caplog.records] == [
        "there is not enough memory for 3 workers (CUDA out of memory): 2 train from now on",
        "there is not enough memory for 2 workers (CUDA out of memory): 1 train from now on",
    ]


def test_a_task_that_shared_the_memory_is_tried_once_more_alone() -> None:
    """Both workers run out at once: the second did so beside the first."""
    port = FakePort(count=2, script=deque(["full 1", "full 0"]))
    pool = WorkerPool(port)
    submit(pool, *range(6))
    assert pool.result(0).delta.item() == 0
    assert pool.result(5).delta.item() == 5
    assert port.spawned == 3


def test_a_task_without_memory_for_one_worker_ends_the_run_and_says_what_to_do() -> None:
    port = FakePort(count=1, script=deque(["full 0"]))
    pool = WorkerPool(port)
    submit(pool, 7)
    with pytest.raises(UsageError, match=r"memory for one worker \(CUDA out.*task=7.*training.batch_size"):
        pool.result(7)


def test_an_evaluation_without_memory_is_made_by_fewer_workers() -> None:
    port = FakePort(count=2, script=deque(["full 0"]))
    assert WorkerPool(port).evaluate(model(7.0)) == {"loss": 7.0}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0"),
            "CUDA out of memory",
        ),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might"), "CUDA error: out of memory"),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        ),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
        (MemoryError(), None),
    ],
)
def test_errors_about_memory_of_a_device(error: Exception, told: str | None) -> None:
    assert out_of_memory(error) == told
    wrapped = RunError("the user's loop failed")
    wrapped.__cause__ = error
    assert out_of_memory(wrapped) == told
