"""The tensors of a checkpoint, restored around a server that is where it was at that moment."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from offbeat.core.aggregator import Update
from offbeat.core.client_cache import CacheEntry
from offbeat.core.errors import DamageError
from offbeat.core.events import TaskId, Version
from offbeat.core.global_model import GlobalModel
from offbeat.core.good_version import GoodVersion
from offbeat.core.layout import Layout
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model, Tensors
from offbeat.core.number_types import NumberType
from offbeat.core.server import Server
from offbeat.runs.cached_vectors import read_vector
from offbeat.runs.damage import reading
from offbeat.runs.files import ON_DEVICE, read_file, read_tensors
from offbeat.runs.record import Checkpoint
from offbeat.runs.schema import update_file, version_file


def restore_model(
    tensors: GlobalModel,
    server: Server,
    directory: Path,
    checkpoint: Checkpoint,
    on_damage: Callable[[TaskId, DamageError], None] | None = None,
) -> None:
    """Restore the model, the versions in flight, the updates held, the parts' memories and the cache.

    The memory of the initial model is freed before the tensors are read.

    Args:
        tensors: What is restored. After an error they are of no use.
        server: The server, which is where it was at the checkpoint.
        directory: The run's directory.
        checkpoint: The checkpoint.
        on_damage: Called with each held update that is damaged, and its error; its task is then aggregated
            without it. None means that the error is raised.

    Raises:
        DamageError: A file is missing or damaged.
    """
    layout, device = tensors.model.layout, tensors.model.values.device
    tensors.good, tensors.model = None, tensors.model.to("meta")
    file = directory / checkpoint.state
    with reading(file):
        state, metadata = read_file(file)
        tensors.model = _model(layout, state).to(device)
        if device.type != "cpu":
            state = _moved(state, metadata.get(ON_DEVICE), device, layout)
    tensors.version = server.version
    if checkpoint.good is not None:
        tensors.good = _good_version(tensors, directory, checkpoint.good)
    tensors.memory.update(_under(state, "aggregator."))
    for i, memory in enumerate(tensors.step_memories):
        memory.update(_under(state, f"step.{i}."))
    tensors.release.memory.update(_under(state, "noise."))
    entries = {client: CacheEntry(*entry) for client, entry in checkpoint.cached.items()}
    tensors.release.cache.restore(entries, 4 * layout.values, partial(read_vector, directory))
    if tensors.guard is not None and checkpoint.guard is not None:
        tensors.guard.restore(checkpoint.guard)
    versions = {server.version: tensors.sent}

    def base(version: int) -> Model:
        if version not in versions:
            found = read_version(layout, directory, version, tensors.down).to(device)
            # What clients were sent is in the file; rounded again, it is the same.
            versions[version] = tensors.as_sent(found)
        return versions[version]

    tensors.bases = {task: (version, base(version)) for task, version in checkpoint.bases.items()}
    tensors.fresh = {task: (version, base(version)) for task, version in checkpoint.fresh.items()}
    for number, (version, lr, metrics) in checkpoint.updates.items():
        task, path = server.held[number], directory / update_file(number)
        try:
            with reading(path):
                saved = read_tensors(path)
                saved = {name: tensor.to(device) for name, tensor in saved.items()}
                delta, integers = saved["delta"], saved["integers"]
        except DamageError as error:
            if on_damage is None:
                raise
            on_damage(number, error)
            continue
        fresh = base(task.fresh) if task.fresh is not None else None
        tensors.updates[number] = Update(
            task, base(version), delta, integers, metrics, lr, saved.get("shared"), fresh,
            norms=tensors.measured(LocalResult(delta, integers, shared=saved.get("shared"))).norms,
        )  # fmt: skip


def checkpoint_model(layout: Layout, state: Path) -> Model:
    """Read the version of a checkpoint from its file. Raises `DamageError`."""
    with reading(state):
        return _model(layout, read_tensors(state))


def read_version(layout: Layout, directory: Path, version: Version, number: NumberType = "float32") -> Model:
    """Read a version, or what clients were sent of it, from its file. Raises `DamageError`."""
    path = directory / version_file(version, number)
    with reading(path):
        return _model(layout, read_tensors(path))


def _good_version(tensors: GlobalModel, directory: Path, version: Version) -> GoodVersion:
    """The version to which a rollback goes, whose content stays in its file until then."""
    layout, device = tensors.model.layout, tensors.model.values.device

    def load() -> Model:
        return read_version(layout, directory, version).to(device)

    try:
        # A file that is damaged is told of now, and not when it is needed.
        load()
    except DamageError:
        if version != tensors.version:
            raise
        # The checkpoint's own version is in its state too. A copy of a directory has it there only.
        return GoodVersion.in_memory(version, tensors.model)
    return GoodVersion(version, load)


def _moved(state: Mapping[str, Tensor], recorded: str | None, device: Any, layout: Layout) -> Tensors:
    """The state with those tensors on the device that were on one; of a run on a CPU, the long vectors."""
    if recorded is not None:
        on_device = set(json.loads(recorded))
    else:
        long = (layout.values, layout.parameters)
        on_device = {
            name for name, t in state.items() if t.is_floating_point() and t.shape in [(n,) for n in long]
        }
    return {name: tensor.to(device) if name in on_device else tensor for name, tensor in state.items()}


def _model(layout: Layout, saved: Mapping[str, Tensor]) -> Model:
    model = Model(layout, saved["values"], saved["integers"], saved["shared"])
    sizes = (model.values.shape, model.integers.shape, model.shared.shape)
    if sizes != ((layout.values,), (layout.integers,), (layout.shared,)):
        raise ValueError(f"its vectors have {[*map(tuple, sizes)]} elements, not those of the run's model")
    return model


def _under(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
