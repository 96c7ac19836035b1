"""A run of a server, opened in its state directory: new, or as it was left."""

import logging
from pathlib import Path
from secrets import token_hex
from threading import Lock

from offbeat.core.buffers import unchanged
from offbeat.core.events import Metrics
from offbeat.core.layout import Layout
from offbeat.core.model import Model
from offbeat.experiment import Experiment
from offbeat.local.description import sample_form
from offbeat.local.torch_learner import TorchLearner
from offbeat.net.audit import AuditLog
from offbeat.net.monitor.snapshot import title_of
from offbeat.net.secure.release_seeds import FreshSeeds, delete_secrets
from offbeat.net.server.checked_run import check_run
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.durable_store import CHECKPOINT_SECONDS, DurableStore
from offbeat.net.server.finished import FinishedRun
from offbeat.net.server.handlers import RunInfo
from offbeat.net.server.mirror import mirror_of
from offbeat.net.server.server_options import ServerOptions
from offbeat.net.server.service import OpenRun
from offbeat.runs.best import choose_model
from offbeat.runs.files import read_model
from offbeat.runs.record import RunRecord
from offbeat.runs.schema import MODEL

log = logging.getLogger(__name__)


def open_run(
    experiment: Experiment,
    directory: Path,
    options: ServerOptions,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    seeds: FreshSeeds | None = None,
    audit: AuditLog | None = None,
    mirror: Path | None = None,
) -> OpenRun | FinishedRun:
    """Open a run in its state directory, new or as it was left.

    The process computes with one thread from here on, as the simulator does: more would change the last bits.

    Args:
        experiment: What the run is; its learner is a server's.
        directory: The state directory.
        options: The server's options.
        checkpoint_seconds: Seconds between two checkpoints, at most.
        seeds: Gives the seeds of releases. None means fresh ones.
        audit: The run's audit. None means one that nobody adds to.
        mirror: A second state directory, which has all that is acknowledged. None means none.

    Returns:
        The run, which may have ended already.

    Raises:
        UsageError: What is asked cannot be served, or the directory holds another run.
        RunError: The directory holds a run that cannot go on.
    """
    beside = mirror_of(mirror, required=options.mirror_required)
    checked = check_run(experiment, directory, options)
    learner, record, spec, prepared = checked.learner, checked.record, checked.spec, checked.prepared
    if prepared is None:
        assert record is not None
        return _finished(record, options, checked.layout)
    tested = checked.tested
    if (reason := options.unguarded(tested=tested, bounded=checked.bounded)) is not None:
        log.warning(reason)
    complete = prepared.complete
    meta, run, label = None, token_hex(8), experiment.name
    if record is not None:
        run, label = str(record.entry("run")), record.label
    else:
        served = {"algorithm": spec.algorithm, "run": run, "plan": spec.document()}
        tried = learner.data.test if isinstance(learner, TorchLearner) else None
        meta = prepared.metadata() | served | {"clients": options.clients, "sample": sample_form(tried)}
    training = spec.training
    info = RunInfo(run, spec.document(), spec.classes, training.batch_size, training.drop_last)
    coordinator = Coordinator(prepared, options, info, seeds)
    # A run that goes on needs the memory of the initial model.
    del prepared, checked
    # Several threads use the learner.
    one_at_a_time = Lock()

    def completed(version: Model) -> Model:
        if complete is unchanged:
            return version
        with one_at_a_time:
            return complete(version)

    def evaluate(version: Model) -> Metrics:
        with one_at_a_time:
            return learner.evaluate(complete(version))

    store = DurableStore(directory, coordinator, meta, checkpoint_seconds, completed, audit, beside)

    return OpenRun(coordinator, store, evaluate if tested else None, label, title_of(experiment.recipe))


def _finished(record: RunRecord, options: ServerOptions, layout: Layout) -> FinishedRun:
    """A run that has ended, with the model that is shared."""
    # A server that died just then has left them.
    delete_secrets(record.path)
    shared = None
    if options.share_model is not None:
        final = read_model(record.path / MODEL, layout)
        shared = choose_model(options.share_model, final, record.path)
    return FinishedRun(str(record.entry("run")), record.stop_reason or "", shared)
