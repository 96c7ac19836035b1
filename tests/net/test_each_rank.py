"""A site of several processes behind one `client`: its model is that of one process with the same batches."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import offbeat as ob
from offbeat.core.errors import UsageError
from offbeat.local import each_rank
from offbeat.net import RunServer, ServerOptions, serve, server_learner
from offbeat.runs.files import read_model
from tests.net import rank_site
from tests.net.support import torch_left_alone

ALGORITHMS: dict[str, Callable[[], ob.Algorithm]] = {
    "fedbuff": lambda: ob.fedbuff(1, steps=6),
    "fedprox": lambda: ob.fedprox(steps=6, mu=3.0),
    "scaffold": lambda: ob.scaffold(steps=6),
    "fedasmu": lambda: ob.fedasmu(steps=6),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setitem(serve.__kwdefaults__, "linger", 1.0)  # type: ignore[attr-defined]
    with torch_left_alone():
        yield


@pytest.fixture
def alone(tmp_path: Path) -> object:
    """A group of one process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def experiment(name: str, versions: int = 4) -> ob.Experiment:
    learner = server_learner(rank_site.net)
    return ob.Experiment(ALGORITHMS[name](), learner, until=ob.Until(versions=versions), evaluate=ob.Every())


def served(name: str, state: Path) -> RunServer:
    return serve(experiment(name), state, "127.0.0.1:0", options=ServerOptions(clients=1))


def final(run: Path) -> torch.Tensor:
    layout = server_learner(rank_site.net).initial(0).layout
    return read_model(run / "model.safetensors", layout).values


def by_one_process(name: str, state: Path) -> torch.Tensor:
    """The model of the run with a site that is an ordinary loop."""
    x, y = rank_site.points()

    with served(name, state) as server:
        for task in rank_site.tasks(f"127.0.0.1:{server.port}"):
            module = task.load_into(rank_site.net())
            optimizer = torch.optim.SGD(module.parameters(), rank_site.LR * task.lr_factor)
            for rows in task.steps(rank_site.rows_of(0, 1)):
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
                task.correct_gradients()
                optimizer.step()
            task.submit(lr=rank_site.LR)

        assert server.wait() == "reached 4 versions"
    return final(state)


def torchrun(address: str, ranks: int, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    script = [str(Path(rank_site.__file__)), address, *options]
    return subprocess.run([*command, *script], capture_output=True, text=True, check=False)


def test_without_a_group_it_says_what_is_missing() -> None:
    with pytest.raises(UsageError, match="each_rank needs a process group: call"):
        next(iter(each_rank(list)))


@pytest.mark.usefixtures("alone")
def test_one_rank_alone_is_an_ordinary_loop(tmp_path: Path) -> None:
    run, module = tmp_path / "run", rank_site.net()
    with served("fedprox", run) as server:
        for task in each_rank(lambda: rank_site.tasks(f"127.0.0.1:{server.port}")):
            rank_site.train(task, module, module)
        assert server.wait() == "reached 4 versions"
    assert torch.equal(final(run), by_one_process("fedprox", tmp_path / "other"))


@pytest.mark.usefixtures("alone")
def test_an_error_of_rank_0_is_raised() -> None:
    def refused() -> list[ob.ClientTask]:
        raise UsageError("no")

    with pytest.raises(UsageError, match="no"):
        next(iter(each_rank(refused)))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_processes_train_as_one_does(name: str, tmp_path: Path) -> None:
    with served(name, tmp_path / "run") as server:
        done = torchrun(f"127.0.0.1:{server.port}", 2)
        assert done.returncode == 0, done.stderr
        assert server.wait() == "reached 4 versions"
    torch.testing.assert_close(final(tmp_path / "run"), by_one_process(name, tmp_path / "other"))


@pytest.mark.thorough
def test_where_one_process_dies_all_end_and_the_run_waits(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with served("fedbuff", run) as server:
        address = f"127.0.0.1:{server.port}"
        assert torchrun(address, 2, "crash").returncode != 0
        assert ob.read_run(run).status == "running"
        assert torchrun(address, 2).returncode == 0
        assert server.wait() == "reached 4 versions"


def test_the_scripts_of_the_example_are_valid() -> None:
    """Bash reads the Slurm script; no Slurm runs it."""
    folder = Path(__file__).parents[2] / "examples" / "cluster"
    subprocess.run(["bash", "-n", str(folder / "site.slurm")], check=True)
    compile((folder / "site.py").read_text(encoding="utf-8"), "site.py", "exec")
