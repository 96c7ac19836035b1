"""Resuming an interrupted run: its history from the journal, its tensors from the checkpoint."""

from pathlib import Path

from offbeat.core.model import Layout, Model
from offbeat.core.recorded import RecordedJournal, ReplayError
from offbeat.runs.files import read_tensors
from offbeat.runs.record import Checkpoint, RunRecord
from offbeat.runs.restore import restore_model
from offbeat.runs.schema import MODEL
from offbeat.sim.backend import LiveBackend, ReplayBackend
from offbeat.sim.simulation import Simulation


def recorded_past(record: RunRecord) -> ReplayBackend:
    """The journal and the evaluations of a run, to be repeated."""
    return ReplayBackend(RecordedJournal(record.rows()), record.evaluations())


def repeat(simulation: Simulation, checkpoint: Checkpoint) -> None:
    """Repeat everything up to the checkpoint, without training.

    Raises:
        ReplayError: At the first row that is not the recorded one.
    """
    simulation.start()
    while simulation.engine.rows < checkpoint.journal and simulation.stop_reason is None:
        simulation.step()
    rows, evaluations = simulation.engine.rows, simulation.evaluations.log.count
    if (rows, evaluations) != (checkpoint.journal, checkpoint.metrics):
        raise ReplayError(
            f"it now has {rows} journal rows and {evaluations} evaluations where its checkpoint has "
            f"{checkpoint.journal} and {checkpoint.metrics}"
        )


def restore_tensors(
    backend: LiveBackend, simulation: Simulation, directory: Path, checkpoint: Checkpoint
) -> None:
    """Restore the checkpoint's tensors, and submit the tasks in training again."""
    restore_model(backend.tensors, simulation.server, directory, checkpoint)
    backend.clients.restore(checkpoint.clients, checkpoint.client_bytes)
    simulation.submit_all(backend)


def final_model(record: RunRecord, layout: Layout) -> Model:
    """The model of a finished run."""
    state = read_tensors(record.path / MODEL)
    model = Model.empty(layout)
    for entry, view in layout.views(model.values, model.integers):
        view.copy_(state[entry.name])
    return model
