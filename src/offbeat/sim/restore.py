"""Resuming an interrupted run: its history from the journal, its tensors from the checkpoint."""

from offbeat.core.layout import Layout
from offbeat.core.model import Model
from offbeat.core.recorded import ReplayError
from offbeat.runs.files import read_model
from offbeat.runs.record import RunRecord
from offbeat.runs.restore import follow_recorded_rules, restore_model
from offbeat.runs.schema import MODEL
from offbeat.sim.backend import LiveBackend, ReplayBackend
from offbeat.sim.simulation import Recorder, Simulation


def restore(simulation: Simulation, backend: LiveBackend, recorder: Recorder, record: RunRecord) -> None:
    """Bring a simulation that has not started to the last checkpoint of its record, if there is one.

    Everything up to there is repeated without training. From there on `backend` trains, which gets the
    tensors and the tasks in training, and the rows go to `recorder`.

    Raises:
        ReplayError: At the first row that is not the recorded one.
    """
    follow_recorded_rules(backend.tensors, record, backend.guard, record.meta["clients"])
    checkpoint = record.checkpoint()
    if checkpoint is None:
        return
    past = ReplayBackend(record)
    simulation.connect(past, past)
    simulation.start()
    while simulation.engine.rows < checkpoint.journal and simulation.stop_reason is None:
        simulation.step()
    rows, evaluations = simulation.engine.rows, simulation.evaluations.count
    if (rows, evaluations) != (checkpoint.journal, checkpoint.metrics):
        raise ReplayError(
            f"it now has {rows} journal rows and {evaluations} evaluations where its checkpoint has "
            f"{checkpoint.journal} and {checkpoint.metrics}"
        )
    restore_model(backend.tensors, simulation.server, record.path, checkpoint)
    backend.clients.restore(checkpoint.clients, checkpoint.client_bytes)
    simulation.connect(backend, recorder)
    simulation.submit_all()


def final_model(record: RunRecord, layout: Layout) -> Model:
    """The model of a finished run."""
    return read_model(record.path / MODEL, layout)
