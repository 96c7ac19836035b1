"""Initial weights of a run: another run's model, or a file of tensors."""

from pathlib import Path

from offbeat.core.errors import DamageError, UsageError
from offbeat.core.layout import Layout
from offbeat.core.model import Model, Tensors
from offbeat.core.module_tensors import found_by_name
from offbeat.documents import user_path
from offbeat.runs.checkpoint_tensors import checkpoint_model
from offbeat.runs.files import read_tensors
from offbeat.runs.record import holds_run, read_run
from offbeat.runs.schema import MODEL

Initial = str | Path | Model
"""A `.safetensors` file with the tensors by name, the directory of a run, or a model."""


def start_from(layout: Layout, initial: Initial) -> Model:
    """The model with which a run starts from other weights than the learner's own.

    Args:
        layout: The layout of the learner's model.
        initial: Where the weights come from. A file may have more tensors, such as those that are frozen,
            which are not used.

    Returns:
        A model of the layout.

    Raises:
        UsageError: The file cannot be read, or a tensor is not there or has another shape.
    """
    if isinstance(initial, Model):
        return fitted(layout, initial.state_dict(), "initial = the model given")
    path = user_path(initial)
    if path.is_dir() and not (path / MODEL).exists() and holds_run(path):
        checkpoint = read_run(path).checkpoint()
        if checkpoint is not None:
            return checkpoint_model(layout, path / checkpoint.state)
    path = path / MODEL if path.is_dir() else path
    try:
        tensors = read_tensors(path)
    except DamageError as error:
        raise UsageError(
            f"initial = {initial} cannot be read ({path} {error.problem}): give a .safetensors file, or the "
            "directory of a run that has ended or has a checkpoint"
        ) from None
    return fitted(layout, tensors, f"initial = {initial}")


def fitted(layout: Layout, tensors: Tensors, source: str) -> Model:
    """The model of a layout from tensors by name, of which there may be more.

    Names may have the prefixes of `torch.compile` or `DataParallel`, `_orig_mod.` and `module.`.

    Args:
        layout: The layout.
        tensors: The tensors.
        source: What names them in messages.

    Raises:
        UsageError: A tensor is not there or has another shape.
    """
    named = {entry.name: found_by_name(tensors, entry.name) for entry in layout.entries}
    for entry in layout.entries:
        found = named[entry.name]
        if found is None or tuple(found.shape) != entry.shape:
            told = "is not there" if found is None else f"has shape {list(found.shape)} there"
            raise UsageError(f"{source} does not fit: {entry.name} {list(entry.shape)} of the model {told}")
    return Model.of_tensors(layout, {name: found for name, found in named.items() if found is not None})
