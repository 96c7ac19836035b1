"""The tensors of a checkpoint, restored around a server that is where it was at that moment."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from offbeat.core.algorithm import Update
from offbeat.core.events import Version
from offbeat.core.global_model import GlobalModel
from offbeat.core.model import Layout, Model
from offbeat.core.server import Server
from offbeat.runs.files import read_tensors
from offbeat.runs.record import Checkpoint
from offbeat.runs.store import update_file, version_file


def restore_model(tensors: GlobalModel, server: Server, directory: Path, checkpoint: Checkpoint) -> None:
    """Restore the model, the versions in flight, the updates held and the parts' memories."""
    layout = tensors.model.layout
    state = read_tensors(directory / checkpoint.state)
    tensors.model = _model(layout, state)
    tensors.version = server.version
    tensors.memory.update(_under(state, "aggregator."))
    for i, memory in enumerate(tensors.step_memories):
        memory.update(_under(state, f"step.{i}."))
    if tensors.guard is not None and checkpoint.guard is not None:
        tensors.guard.restore(checkpoint.guard)
    versions = {server.version: tensors.model}

    def base(version: int) -> Model:
        if version not in versions:
            versions[version] = read_version(layout, directory, version)
        return versions[version]

    if checkpoint.good is not None:
        tensors.good = checkpoint.good, base(checkpoint.good)
    tensors.bases = {task: (version, base(version)) for task, version in checkpoint.bases.items()}
    tensors.fresh = {task: (version, base(version)) for task, version in checkpoint.fresh.items()}
    for number, (version, lr, metrics) in checkpoint.updates.items():
        task, saved = server.held[number], read_tensors(directory / update_file(number))
        fresh = base(task.fresh) if task.fresh is not None else None
        tensors.updates[number] = Update(
            task, base(version), saved["delta"], saved["integers"], metrics, lr, saved.get("shared"), fresh
        )  # fmt: skip


def read_version(layout: Layout, directory: Path, version: Version) -> Model:
    """Read the content of a version from its file."""
    return _model(layout, read_tensors(directory / version_file(version)))


def _model(layout: Layout, saved: Mapping[str, Tensor]) -> Model:
    return Model(layout, saved["values"], saved["integers"], saved["shared"])


def _under(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
