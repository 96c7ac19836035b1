"""Worker processes started by a fork server: like spawned ones, and none outlives the main process."""

import os
import pickle
import select
import signal
import sys
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from torch import nn

import offbeat as ob
from offbeat.core.model import Model
from offbeat.local.objectives import Plain
from offbeat.sim.executors.by_value import ByValue
from offbeat.sim.executors.processes import ProcessPool
from offbeat.sim.executors.start_method import worker_context
from tests.forks import Fork
from tests.sampling import thorough
from tests.sim.sim_worlds import CALM, digits, make, outcome


class Environment(ob.NoTraining):
    """Evaluates to what the process knows."""

    def __init__(self) -> None:
        super().__init__(2, parameters=10)

    def evaluate(self, model: Model) -> Any:
        return {"environment": dict(os.environ), "path": sys.path, "directory": str(Path.cwd())}


def deep() -> nn.Module:
    """More tensors than a fork server passes file descriptors."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), *(nn.Linear(10, 10) for _ in range(150)))


@pytest.fixture
def pool() -> Iterator[ProcessPool]:
    made = ProcessPool(Environment(), Plain(), 1)
    yield made
    made.close()


def test_a_worker_knows_what_the_main_process_knows_now(
    pool: ProcessPool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The fork server started earlier, in another environment and directory."""
    monkeypatch.setenv("OFFBEAT_TEST_WORKER", "set later")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    later = ProcessPool(Environment(), Plain(), 1)
    try:
        found = later.evaluate(Environment().initial(0))
    finally:
        later.close()
    assert found == {"environment": dict(os.environ), "path": sys.path, "directory": str(tmp_path)}
    assert "PYTHONSAFEPATH" not in os.environ


@pytest.mark.thorough
def test_a_learner_of_many_tensors() -> None:
    """A module may be given as it is; its tensors then go to the workers."""
    plain, until = digits(), ob.Until(tasks=6)
    learner = ob.TorchLearner(deep(), plain.data, plain.training)
    workers = ob.simulate(make("fedbuff"), CALM, learner, until=until, workers=1)
    assert outcome(workers) == outcome(ob.simulate(make("fedbuff"), CALM, learner, until=until))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns of forks beside threads
def test_a_fork_of_a_process_that_has_a_fork_server(pool: ProcessPool) -> None:
    child = os.fork()
    if child == 0:
        os._exit(42 if worker_context().get_start_method() == "spawn" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42


SCRIPT = """
import time
from torch import nn
import offbeat as ob

def model():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

class Slow(ob.TorchLearner):
    def train(self, base, task, *rest):
        if task.task == 3:
            print("training", flush=True)
            time.sleep(600)
        return super().train(base, task, *rest)

def main():
    parts = [[i, i + 1] for i in range(0, 8, 2)]
    data = ob.federate(ob.load("digits", samples=100, test_samples=20, seed=0), None, parts)
    ob.simulate(ob.fedavg(steps=2), learner=Slow(model, data), workers=2)

if __name__ == "__main__":
    main()
"""
WORKERS = "ob.simulate(ob.fedavg(steps=2), learner=ob.NoTraining(4), workers=1)"
UNGUARDED = f"""
import offbeat as ob
{WORKERS}
"""
# Without a refusal, each worker says that the directory has a run already.
UNGUARDED_LATER = f"""
import offbeat as ob
ob.simulate(ob.fedavg(steps=2), learner=ob.NoTraining(4), until=ob.Until(versions=2), out="first")
{WORKERS}
"""
OWN_PROCESS = """
import multiprocessing
import offbeat as ob
ob.simulate(ob.fedavg(steps=2), learner=ob.NoTraining(4), until=ob.Until(versions=2))
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=print)
    process.start()
    process.join()
    raise SystemExit(process.exitcode)
"""
NOTEBOOK = """
del __file__  # as in a notebook, whose main module no other process can import
import torch
from torch import nn
import offbeat as ob

class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, i):
        return torch.tensor([i / 40, 1.0]), torch.tensor([float(i > 20)])

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x):
        return self.layers(x)

WEIGHT = torch.tensor(2.0)
data = ob.federate(Points(), Points(), [range(0, 20), range(20, 40)])
learner = ob.TorchLearner(lambda: Net(width=3), data, loss=lambda o, y: WEIGHT * ((o - y) ** 2).mean())
runs = [
    ob.simulate(ob.fedbuff(size=1, steps=3), learner=learner, until=ob.Until(versions=4), workers=workers)
    for workers in (0, 2)
]
print(runs[0].model.digest() == runs[1].model.digest(), runs[0].metrics == runs[1].metrics)
"""


INTERRUPTED = """
import os, signal
from multiprocessing import forkserver
from offbeat.sim.executors.start_method import worker_context

if __name__ == "__main__":
    context = worker_context()
    before = forkserver._forkserver._forkserver_pid
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.killpg(0, signal.SIGINT)
    worker = context.Process(target=len, args=("",))
    worker.start()
    worker.join()
    print("the same fork server" if forkserver._forkserver._forkserver_pid == before else "another one")
"""


def start(folder: Path, text: str) -> tuple[Fork, IO[str]]:
    """Run a script that is elsewhere than the current directory, whose modules nobody wants."""
    current = folder / "current"
    (current / "offbeat").mkdir(parents=True)
    for trap in ("offbeat/__init__.py", "heapq.py", "torch.py"):
        (current / trap).write_text("raise SystemExit('a module of the current directory was imported')\n")
    script = folder / "script.py"
    script.write_text(text)
    output, written = os.pipe()
    with os.fdopen(written, "w") as out:
        return Fork(script, cwd=current, out=out, own_fork_server=True), os.fdopen(output)


@pytest.mark.parametrize("number", [signal.SIGINT, *thorough(signal.SIGKILL, signal.SIGTERM)])
def test_nothing_outlives_the_main_process(number: signal.Signals, tmp_path: Path) -> None:
    """Workers and fork server hold its output open: it ends when the last of them has ended."""
    process, output = start(tmp_path, SCRIPT)
    with output:
        assert output.readline() == "training\n"
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal's Ctrl-C does
        else:
            process.send_signal(number)
        assert select.select([output], [], [], 300)[0]
        assert output.read() == ""
    _, errors = process.communicate(300)
    assert process.returncode == -number
    assert "current directory" not in errors
    assert errors.count("Traceback") == (number == signal.SIGINT)  # the main process's own


def test_a_ctrl_c_does_not_end_a_fork_server_that_still_imports(tmp_path: Path) -> None:
    """The signal comes before the fork server has imported anything."""
    process, output = start(tmp_path, INTERRUPTED)
    with output:
        _, errors = process.communicate(300)
        assert (process.returncode, errors) == (0, "")
        assert output.read() == "the same fork server\n"


@pytest.mark.parametrize("script", [UNGUARDED, UNGUARDED_LATER], ids=["at once", "after another run"])
def test_a_script_without_a_guard(script: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(script)
    process = Fork(path, cwd=tmp_path)
    _, errors = process.communicate(300)
    assert process.returncode == 1
    assert errors.count("Traceback") == 1  # the main process's own
    assert "must do so under `if __name__ == '__main__':`" in errors.splitlines()[-1]


@pytest.mark.thorough
def test_a_process_of_the_scripts_own_without_a_guard_says_so_itself(tmp_path: Path) -> None:
    process, output = start(tmp_path, OWN_PROCESS)
    output.close()
    _, errors = process.communicate(300)
    assert process.returncode == 1
    assert "must do so under `if __name__ == '__main__':`" in errors.splitlines()[-1]


HEREDOC = (
    SCRIPT.replace("import time", "import time, sys\nsys.modules['__main__'].__file__ = '<stdin>'")
    .replace("task.task == 3", "False")
    .replace("workers=2)", "workers=2, until=ob.Until(versions=2))\n    print('ended')")
)
INSIDE = """
import offbeat as ob

if __name__ == "__main__":
    class Own(ob.NoTraining):
        pass

    ob.simulate(ob.fedavg(steps=2), learner=Own(4), workers=1)
"""


@pytest.mark.thorough
def test_a_guarded_script_on_standard_input(tmp_path: Path) -> None:
    """No worker can read it again: what it defines travels by value."""
    process, output = start(tmp_path, HEREDOC)
    with output:
        _, errors = process.communicate(300)
        assert output.read() == "ended\n", errors


@pytest.mark.thorough
def test_what_is_defined_behind_the_guard_is_told_of(tmp_path: Path) -> None:
    process, output = start(tmp_path, INSIDE)
    output.close()
    _, errors = process.communicate(300)
    assert process.returncode == 1
    last = errors.splitlines()[-1]
    assert "a worker process cannot load the learner (AttributeError: Can't get attribute 'Own'" in last
    assert "outside of `if __name__ == '__main__':`" in last


@pytest.mark.thorough
def test_what_a_notebook_defines_reaches_the_workers(tmp_path: Path) -> None:
    process, output = start(tmp_path, NOTEBOOK)
    with output:
        _, errors = process.communicate(300)
        assert output.read() == "True True\n", errors


def test_by_value_tensors_stay_in_shared_memory() -> None:
    """A worker does not get a copy of the data, and finds classes of modules by their names."""
    shared = torch.arange(1_000_000)
    sent = ForkingPickler.dumps(ByValue((shared, deep)))
    assert len(sent) < 10_000
    again, function = pickle.loads(sent)
    assert function is deep
    again[7] = 8
    assert shared[7] == 8
