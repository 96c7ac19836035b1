"""On a Ray cluster of two nodes: the same bits, whatever is lost, and nothing is left behind."""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import offbeat as ob
import offbeat.sim.executors.start as module
from offbeat.core.buffers import Buffers
from offbeat.core.learner import NO_INPUTS, Learner, LocalTask
from offbeat.core.objective import Objective
from offbeat.local.objectives import Plain
from offbeat.sim.executors.ray.actors import RayPool, pack
from tests.sim.sim_worlds import WORLDS, Lent, Wrapped, digits, make, normed, outcome

ray: Any = pytest.importorskip("ray")
cluster_utils: Any = pytest.importorskip("ray.cluster_utils")
pytestmark = pytest.mark.filterwarnings("ignore:::ray", "ignore::ResourceWarning")

SYSTEM = {
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 8,
    "worker_niceness": 0,
}
MEGABYTES = 100


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of three CPUs each, as Ray counts them; this process is on the first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        node = {"num_cpus": 3, "object_store_memory": MEGABYTES * 10**6}
        head = {"_system_config": SYSTEM, "include_dashboard": False}
        made = cluster_utils.Cluster(True, head_node_args={**node, **head})
        made.second = made.add_node(**node)
        ray.init(made.address, logging_level="error", log_to_driver=False)
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture(scope="module")
def pools(cluster: Any) -> Iterator[Callable[..., RayPool]]:
    made: dict[Any, RayPool] = {}

    def pool(learner: Learner, objective: Objective, options: ob.OnRay) -> RayPool:
        key = (id(learner), objective)
        if key not in made:
            made[key] = RayPool(learner, objective, options)
        return made[key]

    yield pool
    for workers in made.values():
        workers.close()


TWO, ONE = ob.OnRay(workers=2), ob.OnRay(workers=1)


@pytest.mark.parametrize(
    ("name", "options"), [("fedbuff", TWO), ("port", TWO), ("fedasmu", ONE), ("scaffold", ONE)]
)
def test_ray_changes_nothing(
    name: str, options: ob.OnRay, learner: ob.TorchLearner, pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RayPool", lambda *given: Lent(pools(*given)))
    alone, there = (
        outcome(
            ob.simulate(
                make(name), WORLDS["hard"], learner,
                seed=1, until=ob.Until(tasks=60), evaluate=ob.Every(seconds=10), executor=executor,
            )
        )
        for executor in (None, options)
    )  # fmt: skip
    assert alone["summary"].tasks == 60
    assert len(alone["metrics"]) > 3
    assert alone == there


@pytest.mark.usefixtures("cluster")
def test_clients_evaluate_on_ray_as_here() -> None:
    """With their own buffers, and whatever they hold out."""
    algorithm = replace(make("fedbuff"), buffers="local")
    source = ob.load("digits", samples=300, test_samples=100)
    data = ob.federate(source.train, None, np.array_split(np.arange(300), 5), validation=0.2)
    learner = ob.TorchLearner(normed, data, ob.Training(lr=0.2, batch_size=20))
    here, there = (
        ob.simulate(
            algorithm, WORLDS["calm"], learner,
            until=ob.Until(tasks=12), evaluate=ob.Every(versions=2, at="clients"), executor=executor,
        )
        for executor in (None, TWO)
    )  # fmt: skip
    assert there.client_metrics() == here.client_metrics() != []
    assert there.metrics == here.metrics


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("policy", ["local", "recompute"])
def test_running_statistics_that_are_not_sent(policy: Buffers) -> None:
    """With workers of its own, which end with the run: those that are lent stay, and places are few."""
    learner, algorithm = digits(normed), replace(make("fedbuff"), buffers=policy)
    alone, there = (
        outcome(
            ob.simulate(
                algorithm, WORLDS["hard"], learner, seed=1, until=ob.Until(tasks=30), executor=executor
            )
        )
        for executor in (None, ONE)
    )
    assert alone == there
    assert (alone["summary"].client_state_bytes > 0) == (policy == "local")


def test_a_version_is_put_once_and_freed_with_its_last_task(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = ob.NoTraining(4, parameters=100_000)
    base = learner.initial(0)
    put: list[Any] = []
    real = ray.put
    pool = RayPool(learner, Plain(), ONE)

    def remember(what: Any) -> Any:
        reference = real(what)
        put.append(reference.hex())
        return reference

    def held() -> set[str]:
        counts = ray._private.worker.global_worker.core_worker.get_all_reference_counts()
        return {number.decode() for number in counts}

    monkeypatch.setattr(ray, "put", remember)
    try:
        for version in range(20):
            model = type(base)(base.layout, base.values + version, base.integers)
            for i in range(4):
                pool.submit(LocalTask(4 * version + i, i, version, 2, seed=1), model, float(i), NO_INPUTS)
            del model
            assert len(pool._versions) == 1
            pool.cancel(4 * version + 3)
            for i in (2, 0, 1):
                pool.result(4 * version + i)
            assert len(set(put)) == len(put) == version + 1
        pool.evaluate(base)
        assert len(pool._versions) == 1
        until = time.monotonic() + 60
        while set(put[:-1]) & held() and time.monotonic() < until:
            time.sleep(0.1)
        assert set(put) & held() == {put[-1]}  # Ray frees what nobody refers to
    finally:
        pool.close()


@pytest.mark.usefixtures("cluster")
def test_the_data_are_used_where_ray_has_them() -> None:
    """A node's workers have one copy of the data: their tensors are views of the object store."""
    images = ob.Dataset(torch.rand(1000, 100), torch.zeros(1000, dtype=torch.int64), 1)
    data = ob.federate(images, images.subset([0, 1, 2]), [np.arange(1000)])
    packed = ray.get(ray.put(pack(ob.TorchLearner(normed, data), Plain())))
    content, buffers = packed
    learner, _ = pickle.loads(content, buffers=buffers)
    places = {np.frombuffer(buffer, np.uint8).ctypes.data for buffer in buffers}
    assert learner.data.train.x.data_ptr() in places
    assert learner.data.train.x.data_ptr() % 64 == 0
    assert torch.equal(learner.data.train.x, images.x)
    assert len(content) < 20_000  # of 408,000 bytes of data


class Endangered(RayPool):
    """Loses a worker before its 9th result, and a node with its workers before its 15th."""

    asked = 0
    killed: list[int] = []
    cluster: Any = None

    def result(self, task: int) -> Any:
        self.asked += 1
        if self.asked == 9:
            self.killed.append(next(iter(self._workers)).pid)
            os.kill(self.killed[-1], signal.SIGKILL)
        if self.asked == 15:
            while not any(worker.node == self.cluster.second.node_id for worker in self._workers):
                self._collect(block=True)
            self.cluster.remove_node(self.cluster.second, allow_graceful=False)
            self.killed.append(0)
        return super().result(task)


def test_a_killed_worker_and_a_lost_node_change_nothing(
    cluster: Any, learner: ob.TorchLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RayPool", Endangered)
    Endangered.cluster = cluster
    until = ob.Until(tasks=30)
    whole = ob.simulate(make("fedbuff"), WORLDS["calm"], learner, until=until)
    try:
        hurt = ob.simulate(make("fedbuff"), WORLDS["calm"], learner, until=until, executor=TWO)
        assert len(Endangered.killed) == 2
        assert outcome(hurt) == outcome(whole)
    finally:
        cluster.second = cluster.add_node(num_cpus=3, object_store_memory=MEGABYTES * 10**6)


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


@pytest.mark.usefixtures("cluster")
def test_an_exception_in_training_names_its_task(learner: ob.TorchLearner, tmp_path: Path) -> None:
    with pytest.raises(ob.RunError, match=r"task=7.*client=.*failed in a Ray worker[\s\S]*the data is bad"):
        ob.simulate(
            make("fedasync"),
            WORLDS["calm"],
            Failing(learner),
            until=ob.Until(tasks=30),
            out=tmp_path,
            executor=ONE,
        )
    assert ob.read_run(tmp_path).status == "failed"


@pytest.mark.usefixtures("cluster")
def test_a_task_that_kills_every_worker_ends_the_run(learner: ob.TorchLearner) -> None:
    with pytest.raises(ob.RunError, match=r"task=2\b.*3 Ray workers died of it"):
        ob.simulate(make("fedasync"), WORLDS["calm"], Deadly(learner), until=ob.Until(tasks=30), executor=ONE)


@pytest.mark.usefixtures("cluster")
def test_integer_buffers_dropout_and_functions_of_a_script_travel() -> None:
    """Unlike to worker processes, what cannot be imported travels too."""
    learner = digits(lambda: normed())
    base, task = learner.initial(0), LocalTask(0, 0, 0, 3, seed=1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    pool = RayPool(learner, Plain(), ONE)
    try:
        pool.submit(task, base, 0.0, NO_INPUTS)
        there, here = pool.result(0), learner.train(base, task, Plain())
        assert torch.equal(there.delta, here.delta)
        assert torch.equal(there.integers, here.integers)
        assert there.metrics == here.metrics
        assert pool.evaluate(base) == learner.evaluate(base)
    finally:
        pool.close()
        torch.set_num_threads(threads)


DRIVER = """
import sys, time, torch
from tests.sim.sim_worlds import digits
from offbeat.core.learner import LocalTask, NO_INPUTS
from offbeat.local.objectives import Plain
from offbeat.sim.executors.ray.actors import RayPool
from offbeat.sim.executors.ray.cluster import OnRay
learner = digits()
pool = RayPool(learner, Plain(), OnRay(sys.argv[1], 1))
base = learner.initial(0)
pool.evaluate(base)
pool.submit(LocalTask(0, 0, 0, 10**7, seed=0), base, 0.0, NO_INPUTS)
print(next(iter(pool._workers)).pid, flush=True)
time.sleep(100)
"""


def test_a_killed_driver_leaves_nothing_behind(cluster: Any) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", DRIVER, cluster.address]
    driver = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout is not None
        worker = int(driver.stdout.readline())
    finally:
        driver.kill()
        driver.communicate()
    until = time.monotonic() + 60
    while Path(f"/proc/{worker}").exists() and time.monotonic() < until:
        time.sleep(0.2)
    assert not Path(f"/proc/{worker}").exists()


@pytest.mark.usefixtures("cluster")
def test_addresses_that_cannot_be_used(learner: ob.TorchLearner, tmp_path: Path) -> None:
    def start(address: str) -> None:
        ob.simulate(make("fedavg"), learner=learner, executor=ob.OnRay(address), out=tmp_path / "run")

    with pytest.raises(ob.UsageError, match="is on another cluster already"):
        start("127.0.0.1:9")
    ray_is_there = ray.is_initialized
    try:
        ray.is_initialized = lambda: False
        with pytest.raises(
            ob.UsageError, match=r"ray address 127.0.0.1:9 cannot be reached.*ray start --head"
        ):
            start("127.0.0.1:9")
    finally:
        ray.is_initialized = ray_is_there
    assert not (tmp_path / "run").exists()
