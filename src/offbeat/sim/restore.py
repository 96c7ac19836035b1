"""Bringing an interrupted run back: its history from the journal, its tensors from the checkpoint."""

from pathlib import Path

from offbeat.core.errors import RunError
from offbeat.core.model import Layout, Model
from offbeat.runs.files import read_tensors
from offbeat.runs.record import Checkpoint, RunRecord
from offbeat.runs.restore import restore_model
from offbeat.runs.schema import MODEL
from offbeat.sim.backend import LiveBackend, ReplayBackend
from offbeat.sim.simulation import Simulation


def recorded_past(record: RunRecord) -> ReplayBackend:
    """The journal and the evaluations of a run, to go through again."""
    return ReplayBackend(record.rows(), record.evaluations())


def catch_up(simulation: Simulation, checkpoint: Checkpoint) -> None:
    """Let everything up to the checkpoint happen again, without training.

    Raises `RunError` at the first row that is not the recorded one.
    """
    simulation.start()
    while simulation.rows < checkpoint.journal and simulation.stop_reason is None:
        simulation.step()
    if (simulation.rows, simulation.evaluations.count) != (checkpoint.journal, checkpoint.metrics):
        raise RunError(
            f"the run cannot be brought back: it now has {simulation.rows} journal rows and "
            f"{simulation.evaluations.count} evaluations where its checkpoint has {checkpoint.journal} and "
            f"{checkpoint.metrics}. Use the version of Offbeat and the configuration it was started with"
        )


def restore_tensors(
    work: LiveBackend, simulation: Simulation, directory: Path, checkpoint: Checkpoint
) -> None:
    """Put the checkpoint's tensors back, and submit the tasks in training again."""
    restore_model(work.tensors, simulation.server, directory, checkpoint)
    work.clients.restore(checkpoint.clients, checkpoint.client_bytes)
    simulation.submit_all(work)


def final_model(record: RunRecord, layout: Layout) -> Model:
    """The model of a finished run."""
    state = read_tensors(record.path / MODEL)
    model = Model.empty(layout)
    for entry, view in layout.views(model.values, model.integers):
        view.copy_(state[entry.name])
    return model
