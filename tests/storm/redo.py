"""A run's model, made again from its journal: updates from the sites' own copies, noise from its seeds.

What the server did with updates, sums and noise is repeated by its own state machine, of the updates as the
sites have them and of the seeds that were written down beside the server. Where sums are of masked updates
they are made again from what the sites have masked.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file

from offbeat.algorithms.privacy.private import with_privacy, without_privacy
from offbeat.core.events import Arrived, ClientId, TaskId, Version
from offbeat.core.guard import Guard
from offbeat.core.journal import Row
from offbeat.core.learner import LocalResult
from offbeat.core.limits import Every, Until
from offbeat.core.model import Model
from offbeat.core.privacy.accounting import coefficients
from offbeat.core.privacy.ledger import PrivacyLedger, ReleasePlan
from offbeat.experiment import Experiment, PreparedRun
from offbeat.net.run_spec import read_run_spec
from offbeat.net.secure.release_seeds import FreshSeeds, ReleaseSeed, ReleaseSum
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.handlers import RunInfo
from offbeat.net.server.server_learner import server_learner
from offbeat.net.server.server_options import ServerOptions
from offbeat.runs.record import RunRecord
from tests.storm.witness import rounding_of


@dataclass(frozen=True)
class Redone:
    """A run that was repeated.

    Attributes:
        model: Its model at the end.
        sent: The digest of each version that a task began with.
        twice: Number of tasks that were trained twice, with another outcome.
        ledger: What each client has spent; None without noise.
    """

    model: Model
    sent: dict[Version, str]
    twice: int
    ledger: PrivacyLedger | None

    def same_as(self, path: Path) -> bool:
        """Whether a file has this model, bit for bit."""
        found, made = load_file(path), self.model.state_dict()
        return found.keys() == made.keys() and all(torch.equal(found[name], made[name]) for name in found)


def redo(record: RunRecord, rows: Sequence[Row], updates: Path, seeds: Iterable[ReleaseSeed]) -> Redone:
    """Take the journal's updates in once more.

    Args:
        record: The run.
        rows: Its journal.
        updates: The sites' copies of their updates.
        seeds: The seeds of noise that the server used; of a version's the last counts.
    """
    spec = read_run_spec(record.meta["plan"])
    learner = server_learner(spec.model, spec.training, None, spec.sample_shape, spec.classes)
    plan = ReleasePlan.read(record.meta["privacy"]) if "privacy" in record.meta else None
    algorithm, drawn = spec.make_algorithm(), FreshSeeds()
    if plan is not None:
        algorithm = with_privacy(algorithm, plan.privacy)
    drawn.recorded = {seed.version: seed for seed in seeds}
    guard = Guard() if (record.meta["recipe"] or {}).get("guard", True) else None
    experiment = Experiment(without_privacy(algorithm), learner, spec.seed, Until(), Every(), guard)
    run = PreparedRun(experiment, record.clients, learner.initial(spec.seed), algorithm, release_plan=plan)
    info = RunInfo("again", {}, spec.classes, spec.training.batch_size)
    coordinator = Coordinator(run, ServerOptions(clients=record.clients), info, drawn)
    for client, name in record.site_names().items():
        coordinator.registry.add(name, client)
    if plan is not None and plan.privacy.secure is not None:
        assert coordinator.helpers is not None
        coordinator.helpers.recorded = sums_in_clear(rows, plan, updates)
    twice = 0
    tensors = coordinator.tensors
    versions: dict[Version, Model] = {}
    sent: dict[Version, str] = {}
    dispatch = tensors.dispatch

    def dispatched(task: int) -> Model:
        model = dispatch(task)
        sent[tensors.version] = model.digest()
        return model

    def load(event: Arrived) -> LocalResult:
        nonlocal twice
        versions[tensors.version] = tensors.model
        paths = copies(updates, event.task)
        twice += len(paths) > 1
        saved = {name: tensor.clone() for name, tensor in load_file(paths[0]).items()}
        return LocalResult(
            saved["delta"], saved["integers"], event.metrics, float(saved["lr"][0]), saved.get("shared")
        )

    tensors.dispatch = dispatched  # type: ignore[method-assign]
    coordinator.replay(rows, load, versions.__getitem__)
    return Redone(tensors.model, sent, twice, coordinator.driver.engine.ledger)


def copies(updates: Path, task: int) -> list[Path]:
    """The sites' copies of a task's update: several, if it was trained again with another outcome."""
    return sorted(updates.glob(f"{task}-*.safetensors"))


def sums_in_clear(rows: Sequence[Row], plan: ReleasePlan, updates: Path) -> dict[Version, ReleaseSum]:
    """The sums of all manifests, of what was masked."""
    found, released = dict[Version, ReleaseSum](), releases_of(rows)
    for row in rows:
        if row.name == "releasing" and row.version is not None:
            data, total = row.data or {}, np.zeros(plan.parameters, np.int64)
            for task, weight in zip(data["tasks"], data["weights"], strict=True):
                delta = load_file(copies(updates, task)[0])["delta"][: plan.parameters].numpy()
                total += weight * plan.grid.round(delta, rounding_of(task))
            found[row.version] = ReleaseSum(row.version, released[row.version], total)
    return found


def releases_of(rows: Iterable[Row]) -> dict[Version, tuple[TaskId, ...]]:
    """The tasks of each release, by the version that it makes."""
    return {row.version: tuple((row.data or {})["tasks"])
            for row in rows if row.name == "aggregate" and row.version is not None}  # fmt: skip


def spent(rows: Sequence[Row], plan: ReleasePlan) -> dict[ClientId, float]:
    """μ = ‖C_b α‖ of each client, apart from the ledger: by the client that each update has arrived from."""
    assert plan.noise is not None
    client_of = {row.task: row.client for row in rows if row.name == "arrived"}
    releases = [row.data or {} for row in rows if row.name == "aggregate"]
    ends = [row.data or {} for row in rows if row.name == "released"]
    # Of a release without a sum nothing is spent; its noise takes its turn in the bands all the same.
    unformed = {number for number, own in enumerate(ends) if own["reason"] and not own.get("formed", False)}
    alphas: dict[ClientId, npt.NDArray[np.float64]] = {}
    for number, data in enumerate(releases):
        if number in unformed:
            continue
        for task, weight in zip(data["tasks"], data["weights"], strict=True):
            client = client_of[task]
            assert client is not None
            alphas.setdefault(client, np.zeros(len(releases)))[number] += (
                weight * plan.grid.bound / plan.sigma
            )
    f = coefficients(plan.noise.bands)
    return {client: float(np.linalg.norm(np.convolve(f, alpha))) for client, alpha in alphas.items()}
