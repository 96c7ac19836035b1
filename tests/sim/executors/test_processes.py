"""Worker processes that die, fail and go away: results do not depend on it, and nothing is left behind."""

import errno
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import offbeat as ob
import offbeat.sim.executors.start as module
from offbeat.core.learner import NO_INPUTS, LocalTask
from offbeat.local.objectives import Plain
from offbeat.sim.executors.in_process import InProcess
from offbeat.sim.executors.processes import ProcessPool
from offbeat.sim.executors.shared_memory import Block
from tests.sim.sim_worlds import CALM, Wrapped, digits, make, normed, outcome

UNTIL = ob.Until(tasks=30)


def shared_memory() -> set[str]:
    return {p.name for p in Path("/dev/shm").glob("psm_*")}


class Failing(Wrapped):
    """Task 7 cannot be trained."""

    def before(self, task: LocalTask) -> None:
        if task.task == 7:
            raise ArithmeticError("the data is bad")


class Deadly(Wrapped):
    """Task 2 ends the process that trains it."""

    def before(self, task: LocalTask) -> None:
        if task.task == 2:
            os._exit(3)


class Sometimes(Wrapped):
    """Task 2 ends the process that trains it first."""

    def __init__(self, learner: ob.TorchLearner, flag: Path) -> None:
        super().__init__(learner)
        self.flag = flag

    def before(self, task: LocalTask) -> None:
        if task.task == 2 and not self.flag.exists():
            self.flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Scarce(Wrapped):
    """A device with memory for one process: the first that trains task 2 or a later one says so."""

    def __init__(self, learner: ob.TorchLearner, flag: Path) -> None:
        super().__init__(learner)
        self.flag = flag

    def before(self, task: LocalTask) -> None:
        if task.task >= 2 and not self.flag.exists():
            self.flag.touch()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")


def wide() -> nn.Module:
    """A client's state of it, 1.5 MB, is longer than any pipe holds."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5000), nn.Tanh(), nn.Linear(5000, 10))


@pytest.fixture
def not_for_good() -> Any:
    """Ends a test that would wait for good."""

    def end(_number: int, _frame: Any) -> None:
        raise TimeoutError("nothing happens any more")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Any:
    """No process and none of this process's shared memory: others may be testing beside it."""
    made: set[str] = set()
    make = Block.__init__

    def remember(self: Block, *args: Any) -> None:
        make(self, *args)
        made.add(self.name)

    monkeypatch.setattr(Block, "__init__", remember)
    yield
    assert multiprocessing.active_children() == []
    assert made & shared_memory() == set()


def test_a_killed_worker_changes_nothing(learner: ob.TorchLearner, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []

    class Endangered(ProcessPool):
        """Loses a worker, busy or not, before its 9th and its 15th result."""

        asked = 0

        def result(self, task: int) -> Any:
            self.asked += 1
            if self.asked in (9, 15):
                process = list(self._workers)[self.asked % 2].process
                os.kill(process.pid, signal.SIGKILL)
                killed.append(process.pid)
                if self.asked == 15:
                    process.join()  # dead before it is asked again, not only dying
            return super().result(task)

    whole = ob.simulate(make("fedbuff"), CALM, learner, until=UNTIL)
    monkeypatch.setattr(module, "ProcessPool", Endangered)
    hurt = ob.simulate(make("fedbuff"), CALM, learner, until=UNTIL, workers=2)
    assert len(killed) == 2
    assert outcome(hurt) == outcome(whole)


def test_an_exception_in_training_names_its_task(learner: ob.TorchLearner, tmp_path: Path) -> None:
    with pytest.raises(ob.RunError, match=r"task=7.*client=.*failed[\s\S]*the data is bad"):
        ob.simulate(make("fedasync"), CALM, Failing(learner), until=UNTIL, workers=1, out=tmp_path)
    assert ob.read_run(tmp_path).status == "failed"


def test_a_task_that_kills_every_process_ends_the_run(learner: ob.TorchLearner, tmp_path: Path) -> None:
    with pytest.raises(ob.RunError, match=r"task=2\b.*3 workers died of it.*exit code 3"):
        ob.simulate(make("fedasync"), CALM, Deadly(learner), until=UNTIL, workers=1, out=tmp_path)
    assert ob.read_run(tmp_path).status == "failed"


def test_a_task_that_kills_one_process_runs_again(learner: ob.TorchLearner, tmp_path: Path) -> None:
    whole = ob.simulate(make("fedasync"), CALM, learner, until=ob.Until(tasks=12))
    hurt = ob.simulate(
        make("fedasync"), CALM, Sometimes(learner, tmp_path / "died"), until=ob.Until(tasks=12), workers=1
    )
    assert (tmp_path / "died").exists()
    assert outcome(hurt) == outcome(whole)


def test_a_worker_without_memory_ends_and_its_tasks_run_again(
    learner: ob.TorchLearner, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    until = ob.Until(tasks=12)
    whole = ob.simulate(make("fedbuff"), CALM, learner, until=until)
    fewer = ob.simulate(make("fedbuff"), CALM, Scarce(learner, tmp_path / "full"), until=until, workers=2)
    assert outcome(fewer) == outcome(whole)
    assert [record.getMessage() for record in caplog.records] == [
        "there is not enough memory for 2 workers (CUDA out of memory): 1 train from now on"
    ]


def test_the_interface_of_an_executor() -> None:
    """Results in any order, cancelled tasks, evaluations between; the same as in this process."""
    learner = digits(normed)
    base = learner.initial(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the workers
    tasks = [LocalTask(i, i % learner.clients, 0, 3, seed=1) for i in range(12)]
    alone, workers = InProcess(learner, Plain()), ProcessPool(learner, Plain(), 1)
    try:
        for executor in (alone, workers):
            for task in tasks:
                executor.submit(task, base, 100.0 - task.task, NO_INPUTS)
            executor.cancel(3)
            executor.cancel(11)  # the first to be due: probably in training already
            executor.cancel(77)  # never heard of
        assert workers.evaluate(base) == alone.evaluate(base)
        for i in (0, 10, 5, 4, 9, 1, 2, 6):
            one, other = alone.result(i), workers.result(i)
            assert torch.equal(one.delta, other.delta)
            assert torch.equal(one.integers, other.integers)
            assert one.metrics == other.metrics
        workers.cancel(7)  # done by now, or not
        other_base = type(base)(base.layout, base.values + 1, base.integers)
        for executor in (alone, workers):
            executor.submit(
                LocalTask(11, 0, 5, 3, seed=1), other_base, 0.0, NO_INPUTS
            )  # a number used before
        assert torch.equal(alone.result(11).delta, workers.result(11).delta)
        assert workers.evaluate(other_base) == alone.evaluate(other_base)
        # every finished job has given its memory back: that of tasks 7 and 8 is all there can be
        assert len(workers._port._uses) <= 1
    finally:
        workers.close()
        torch.set_num_threads(threads)


def test_closing_in_the_middle_ends_everything(learner: ob.TorchLearner) -> None:
    workers = ProcessPool(learner, Plain(), 1)
    processes = [process for process in multiprocessing.active_children() if process.name == "offbeat-worker"]
    base = learner.initial(0)
    for i in range(6):
        workers.submit(LocalTask(i, 0, 0, 10**6, seed=0), base, i, NO_INPUTS)  # would take minutes
    began = time.monotonic()
    workers.close()
    assert time.monotonic() - began < 60
    assert not any(p.is_alive() for p in processes)


def test_a_learner_that_cannot_be_pickled_is_refused_at_once(tmp_path: Path) -> None:
    learner = digits()
    learner.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(ob.UsageError, match="workers = 2 needs a learner that can be pickled"):
        ob.simulate(make("fedavg"), CALM, learner, until=UNTIL, workers=2, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_fewer_than_no_workers(learner: ob.TorchLearner, tmp_path: Path) -> None:
    with pytest.raises(ob.UsageError, match=r"workers = -1 is not allowed"):
        ob.simulate(make("fedavg"), CALM, learner, until=UNTIL, workers=-1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("not_for_good")
def test_long_client_states_go_both_ways_at_once() -> None:
    """A worker is given its next task, with a state, while it sends the state of the one it has done."""
    learner, until = digits(wide), ob.Until(versions=5)
    alone = ob.simulate(ob.scaffold(steps=1), CALM, learner, until=until)
    assert outcome(ob.simulate(ob.scaffold(steps=1), CALM, learner, until=until, workers=1)) == outcome(alone)


def test_too_little_shared_memory(
    learner: ob.TorchLearner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a container, whose /dev/shm is small: to write where no page is would end this process."""
    room = iter([True, True, True, False])

    def allocate(_file: int, _start: int, _size: int) -> None:
        if not next(room):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    with pytest.raises(ob.RunError, match=r"no shared memory for a model of .* bytes \(No space left"):
        ob.simulate(make("fedavg"), CALM, learner, until=UNTIL, workers=2, out=tmp_path / "run")
    assert ob.read_run(tmp_path / "run").status == "failed"
