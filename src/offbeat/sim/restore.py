"""Bringing an interrupted run back: its history from the journal, its tensors from the checkpoint."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from offbeat.core.algorithm import Update
from offbeat.core.errors import RunError
from offbeat.core.learner import LocalTask
from offbeat.core.model import Layout, Model
from offbeat.runs.files import read_tensors
from offbeat.runs.record import Checkpoint, RunRecord
from offbeat.runs.schema import MODEL
from offbeat.runs.store import update_file, version_file
from offbeat.sim.simulation import Simulation
from offbeat.sim.work import Live, Recorded


def recorded_past(record: RunRecord) -> Recorded:
    """The journal and the evaluations of a run, to go through again."""
    return Recorded(record.rows(), record.evaluations())


def catch_up(simulation: Simulation, checkpoint: Checkpoint) -> None:
    """Let everything up to the checkpoint happen again, without training.

    Raises `RunError` at the first row that is not the recorded one.
    """
    simulation.start()
    while simulation.rows < checkpoint.journal and simulation.stop_reason is None:
        simulation.step()
    if (simulation.rows, simulation.evaluations) != (checkpoint.journal, checkpoint.metrics):
        raise RunError(
            f"the run cannot be brought back: it now has {simulation.rows} journal rows and "
            f"{simulation.evaluations} evaluations where its checkpoint has {checkpoint.journal} and "
            f"{checkpoint.metrics}. Use the version of Offbeat and the configuration it was started with"
        )


def restore_tensors(
    work: Live, simulation: Simulation, directory: Path, checkpoint: Checkpoint, seed: int
) -> None:
    """Put the checkpoint's tensors back, and submit the tasks in training again."""
    server, tensors = simulation.server, work.tensors
    layout = tensors.model.layout
    state = read_tensors(directory / checkpoint.state)
    tensors.model = Model(layout, state["values"], state["integers"])
    tensors.version = server.version
    tensors.memory.update(_under(state, "aggregator."))
    for i, memory in enumerate(tensors.step_memories):
        memory.update(_under(state, f"step.{i}."))
    versions = {server.version: tensors.model}

    def base(version: int) -> Model:
        if version not in versions:
            saved = read_tensors(directory / version_file(version))
            versions[version] = Model(layout, saved["values"], saved["integers"])
        return versions[version]

    tensors.bases = {task: (version, base(version)) for task, version in checkpoint.bases.items()}
    for task, version in checkpoint.updates.items():
        saved = read_tensors(directory / update_file(task))
        tensors.updates[task] = Update(server.held[task], base(version), saved["delta"], saved["integers"])
    for t in server.tasks.values():
        if t.id in simulation.dues:  # else the world has it lost
            task_ = LocalTask(t.id, t.client, t.base, t.steps, seed)
            work.submit(task_, tensors.bases[t.id][1], simulation.dues[t.id])


def final_model(record: RunRecord, layout: Layout) -> Model:
    """The model of a finished run."""
    state = read_tensors(record.path / MODEL)
    model = Model.empty(layout)
    for entry, view in layout.views(model.values, model.integers):
        view.copy_(state[entry.name])
    return model


def _under(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
