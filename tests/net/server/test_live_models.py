"""How many vectors of the model's size a server holds: versions and updates, and no further copy."""

import weakref
from collections import Counter
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import offbeat as ob
from offbeat.core.algorithm import Algorithm
from offbeat.core.layout import Layout
from offbeat.core.model import Model
from offbeat.models.specs import LogisticSpec
from offbeat.net import ServerOptions, server_learner
from offbeat.net.messages import Register, TaskAssignment, UpdateSubmission
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.durable_store import DurableStore
from offbeat.net.server.handlers import RunInfo
from offbeat.net.server.open_run import open_run
from offbeat.net.server.service import OpenRun
from offbeat.net.server.state_files import UpdateLog
from offbeat.runs.files import write_tensors
from tests.net.support import coordinator_from, terms_of

VALUES = 300_000  # taken in chunks, and by one core
META = {"label": "x", "algorithm": {"name": "x"}, "seed": 1, "clients": 1}
NO_INTEGERS = torch.zeros(0, dtype=torch.int64)


class LiveModels(TorchDispatchMode):
    """Counts the vectors of the model's size that are alive after each operation; `most` so far."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: list[weakref.ref[Tensor]] = []
        self.most = 0

    @property
    def count(self) -> int:
        """How many there are now: views of one are one."""
        alive = [tensor for seen in self._seen if (tensor := seen()) is not None]
        self._seen = [weakref.ref(tensor) for tensor in alive]
        return len({tensor.untyped_storage().data_ptr() for tensor in alive})

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, made)):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().nbytes() >= 4 * VALUES:
                self._seen.append(weakref.ref(tensor))
        self.most = max(self.most, self.count)
        return made


@pytest.fixture(autouse=True)
def _no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is freed is gone, as that of a large model."""
    monkeypatch.setattr("offbeat.vectors.memory_pool.MOST", 0)


class Served:
    """A run in a directory, and sites that send what they are asked for."""

    def __init__(self, coordinator: Coordinator, store: DurableStore, sites: int) -> None:
        self.coordinator, self.store = coordinator, store
        self.tasks: dict[str, int] = {}
        for site in range(sites):
            self.coordinator.receive(0.0, f"site-{site}", Register(samples=30, steps_per_epoch=3))
        self.commit()

    @classmethod
    def begun(cls, directory: Path, algorithm: Algorithm, sites: int) -> Self:
        coordinator = cls.coordinator_of(algorithm, sites)
        return cls(coordinator, DurableStore(directory, coordinator, META), sites)

    @staticmethod
    def coordinator_of(algorithm: Algorithm, sites: int) -> Coordinator:
        initial = Model(Layout.flat(VALUES), torch.zeros(VALUES), NO_INTEGERS)
        options = terms_of(clients=sites, lease=1e9)
        return coordinator_from(algorithm, initial, options, RunInfo("r", {"a": 1}), seed=1)

    def commit(self) -> None:
        effects = self.coordinator.take()
        self.store.commit(effects)
        self.tasks |= {site: m.task for site, m in effects.messages if isinstance(m, TaskAssignment)}

    def deliver(self, sites: int) -> None:
        """The updates of so many sites have come at the same time."""
        came = [(f"site-{i}", torch.full((VALUES,), 0.1)) for i in range(sites)]
        updates = [(s, UpdateSubmission(self.tasks[s], 1, delta, NO_INTEGERS)) for s, delta in came]
        came.clear()
        while updates:
            site, update = updates.pop(0)
            self.coordinator.receive(1.0, site, update)
            del update
            self.commit()


@pytest.mark.parametrize(
    ("algorithm", "sites", "most"),
    [
        (ob.fedasync(steps=1), 1, 2),  # the version, its update
        (ob.fedasync(steps=1), 2, 4),  # two versions from which sites train, two updates
        (ob.fedavg(steps=1), 2, 3),  # one version, two updates
        (ob.fedbuff(steps=1, size=2), 2, 4),  # the first site trains on from the older version
        (ob.fedavgm(steps=1), 1, 4),  # with its momentum, and that before it until the version is made
    ],
)
def test_a_server_holds_versions_and_updates_and_no_further_copy(
    algorithm: Algorithm, sites: int, most: int, tmp_path: Path
) -> None:
    served = Served.begun(tmp_path / "run", algorithm, sites)
    with LiveModels() as models:
        for _ in range(4):
            served.deliver(sites)
        served.store.checkpoint(served.coordinator)
    assert models.most == most
    served.store.close()


@pytest.mark.parametrize(
    ("algorithm", "sites", "most"),
    [
        (ob.fedasync(steps=1), 1, 2),  # the version of the checkpoint or the one made last, an update
        (ob.fedasync(steps=1), 2, 3),  # with the version from which the other site trains
        (ob.fedavg(steps=1), 2, 3),  # one version, two updates
        (ob.fedbuff(steps=1, size=2), 2, 4),  # two versions from which sites train, two updates
        (ob.fedavgm(steps=1), 1, 4),  # with its momentum, and that before it until the version is made
    ],
)
def test_a_restarted_server_holds_versions_and_updates_and_no_further_copy(
    algorithm: Algorithm, sites: int, most: int, tmp_path: Path
) -> None:
    served = Served.begun(tmp_path / "run", algorithm, sites)
    served.deliver(sites)
    served.store.checkpoint(served.coordinator)
    for _ in range(3):
        served.deliver(sites)
    served.store.close()
    version = served.coordinator.tensors.model.values
    with LiveModels() as models:
        again = Served.coordinator_of(algorithm, sites)
        DurableStore(tmp_path / "run", again).close()
    assert models.most == most
    assert torch.equal(again.tensors.model.values, version)


def test_a_run_is_opened_again_without_its_initial_model(tmp_path: Path) -> None:
    learner = server_learner(LogisticSpec(), sample_shape=(VALUES - 1,), classes=1)
    experiment = ob.Experiment(ob.fedasync(steps=1), learner, until=ob.Until(tasks=100))

    def opened() -> OpenRun:
        run = open_run(experiment, tmp_path / "run", ServerOptions(clients=1, lease=1e9))
        assert isinstance(run, OpenRun)
        return run

    run = opened()
    served = Served(run.coordinator, run.store, 1)
    served.deliver(1)
    served.store.checkpoint(served.coordinator)
    served.deliver(1)
    served.store.close()
    version = run.coordinator.tensors.model.values
    with LiveModels() as models:
        again = opened()
        assert models.most == 2
        assert models.count == 1  # the good version is in its file
    again.store.close()
    assert torch.equal(again.coordinator.tensors.model.values, version)
    assert (good := again.coordinator.tensors.good) is not None
    assert torch.equal(good.load().values, learner.initial(experiment.seed).values)


def test_a_run_begins_with_other_weights_without_a_further_copy(tmp_path: Path) -> None:
    learner = server_learner(LogisticSpec(), sample_shape=(VALUES,), classes=1)
    weights = learner.initial(7)
    write_tensors(tmp_path / "w.safetensors", weights.state_dict())
    initial = tmp_path / "w.safetensors"
    experiment = ob.Experiment(ob.fedasync(steps=1), learner, until=ob.Until(tasks=100), initial=initial)
    with LiveModels() as models:
        run = open_run(experiment, tmp_path / "run", ServerOptions(clients=1, lease=1e9))
    # The learner's module and its model, or the tensors of the file and the model.
    assert models.most == 2
    assert isinstance(run, OpenRun)
    run.store.close()
    assert torch.equal(run.coordinator.tensors.model.values, weights.values)


def test_an_update_is_written_before_its_memory_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is that of the next version; the file has the update as it came."""
    served, came = Served.begun(tmp_path / "run", ob.fedasync(steps=1), 1), Counter[float]()
    append = UpdateLog.append

    def watched(log: UpdateLog, tensors: dict[str, Tensor]) -> tuple[int, int]:
        came.update([float(tensors["delta"].sum())])
        return append(log, tensors)

    monkeypatch.setattr(UpdateLog, "append", watched)
    delta = torch.full((VALUES,), 0.5)
    served.coordinator.receive(1.0, "site-0", UpdateSubmission(0, 1, delta, NO_INTEGERS))
    assert came == {0.5 * VALUES: 1}
    version = served.coordinator.tensors.model.values
    assert version.data_ptr() == delta.data_ptr()
    served.commit()
    served.store.close()
    again = Served.coordinator_of(ob.fedasync(steps=1), 1)
    DurableStore(tmp_path / "run", again).close()
    assert torch.equal(again.tensors.model.values, version)
