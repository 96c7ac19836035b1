"""Resuming an interrupted run: its history from the journal, its tensors from the checkpoint."""

from offbeat.core.errors import RunError
from offbeat.core.layout import Layout
from offbeat.core.limits import Until
from offbeat.core.model import Model
from offbeat.core.recorded import ReplayError
from offbeat.runs.checkpoint_tensors import restore_model
from offbeat.runs.files import read_model
from offbeat.runs.record import RunRecord
from offbeat.runs.schema import MODEL
from offbeat.sim.backend import LiveBackend, ReplayBackend
from offbeat.sim.simulation import Recorder, Simulation


def restore(simulation: Simulation, backend: LiveBackend, recorder: Recorder, record: RunRecord) -> int:
    """Bring a simulation that has not started to the last checkpoint of its record, if there is one.

    Everything up to there is repeated without training. From there on `backend` trains, which gets the
    tensors and the tasks in training, and the rows go to `recorder`.

    Returns:
        Number of evaluations until there. A run that had ended has recorded more: those of its end.

    Raises:
        ReplayError: At the first row that is not the recorded one.
        RunError: The run is over at its checkpoint, whatever its limits, or under the limits that it has now.
    """
    checkpoint = record.checkpoint()
    if checkpoint is None:
        return 0
    past = ReplayBackend(record)
    simulation.connect(past, past)
    engine, until = simulation.engine, simulation.engine.until
    # The recorded events have happened, whatever the limits are now.
    engine.until = Until()
    simulation.start()
    while engine.rows < checkpoint.journal and simulation.stop_reason is None:
        simulation.step()
    engine.until = until
    rows, evaluations = engine.rows, simulation.evaluations.count
    late = until.out_of_time if until.seconds is not None and simulation.now > until.seconds else None
    if (over := simulation.stop_reason or engine.stop_reason() or late) is not None:
        raise RunError(
            f"{record.path} cannot go on from its checkpoint, which is at version "
            f"{simulation.server.version}: {over}"
        )
    recorded = evaluations if record.status == "finished" else checkpoint.metrics
    if (rows, evaluations) != (checkpoint.journal, recorded):
        raise ReplayError(
            f"it now has {rows} journal rows and {evaluations} evaluations where its checkpoint has "
            f"{checkpoint.journal} and {checkpoint.metrics}"
        )
    restore_model(backend.tensors, simulation.server, record.path, checkpoint)
    backend.clients.restore(checkpoint.clients, checkpoint.client_bytes)
    simulation.connect(backend, recorder)
    if (over := backend.diverged) is not None:
        raise RunError(f"{record.path} cannot go on from its checkpoint: {over}")
    simulation.submit_all()
    return evaluations


def final_model(record: RunRecord, layout: Layout) -> Model:
    """The model of a finished run."""
    return read_model(record.path / MODEL, layout)
