"""A run's model as a file that other programs read without Offbeat."""

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.allowed import NOTHING, Allow
from offbeat.core.errors import UsageError, reason_of
from offbeat.core.extras import requires_extra
from offbeat.core.module_tensors import unwrapped
from offbeat.documents import user_path
from offbeat.inference.model_card import model_card, write_card
from offbeat.inference.trained import TrainedModule, trained_module
from offbeat.runs.damage import reading
from offbeat.runs.files import write_tensors
from offbeat.runs.record import RunRecord, read_run
from offbeat.runs.schema import DATABASE

LARGEST = 2**28
"""Most numbers of a sample that a run's directory may have made."""


@dataclass(frozen=True)
class ExportedModel:
    """A file with a run's model.

    Attributes:
        path: The file.
        metadata: Origin and metrics of the weights. A .pt file does not hold them.
        missing: Names of the tensors that stay at the clients and are not in the file.
        card: The file's model card, in Markdown.
    """

    path: Path
    metadata: dict[str, str]
    missing: tuple[str, ...]
    card: Path


def export(
    run: str | Path | RunRecord,
    file: str | Path,
    *,
    module: nn.Module | Callable[[], nn.Module] | None = None,
    best: bool = False,
    example: Any = None,
    allow: Allow = NOTHING,
    name_clients: bool = False,
) -> ExportedModel:
    """Write a run's model to a file: all tensors of its module, including frozen ones.

    The file does not contain tensors that stay at the clients. A model card is written beside it.
    The card is `FILE.md`, or `FILE.new.md` if somebody has edited the card that is there.

    Args:
        run: The run, or its directory.
        file: The file, which is replaced. Its suffix chooses the format. .pt is a state_dict that
            `torch.load` reads with `weights_only=True`. .safetensors has metadata. .pt2 is a program that
            `torch.export.load` reads. .pt2 and .onnx take any number of samples and have the metadata.
        module: The run's module, into which the tensors are written, or a function that makes the module.
            None means the function that the run has recorded by name.
        best: Whether to take the best version, `best.safetensors`, in place of the final one.
        example: For .pt2 and .onnx, a batch of two samples or more as the module takes it, such as a tensor
            [N, ...]; a tuple holds several arguments. None means zeros of the recorded shape and type.
        allow: What the run's directory may name if `module` is None: "module", whose exposed functions
            (`offbeat.expose`) may be called, or "module:function".
        name_clients: Whether the model card names the clients, with their numbers of samples. False means
            that it counts them.

    Raises:
        UsageError: The run has no such version, its module cannot be made or exported, the suffix is
            unknown, or the file cannot be written.
    """
    path = user_path(file)
    write = _WRITERS.get(path.suffix)
    if write is None:
        known = ", ".join(_WRITERS)
        raise UsageError(f"{path} has no known format: give a file whose name ends with one of {known}")
    record = run if isinstance(run, RunRecord) else read_run(run)
    trained = trained_module(record, module, best, allow)
    with reading(record.path / DATABASE):
        text = model_card(record, trained, path.name, name_clients)
    try:
        write(trained, path, example)
        card = write_card(text, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {reason_of(error)}") from None
    return ExportedModel(path, trained.metadata, trained.missing, card)


def _write_pt(trained: TrainedModule, path: Path, _example: Any) -> None:
    with path.open("wb") as file:
        torch.save(trained.state_dict(), file)


def _write_safetensors(trained: TrainedModule, path: Path, _example: Any) -> None:
    write_tensors(path, trained.state_dict(), trained.metadata)


def _write_pt2(trained: TrainedModule, path: Path, example: Any) -> None:
    arguments, shapes = _arguments(trained, path, example)
    with _quiet(), _refused(trained, path):
        program = torch.export.export(unwrapped(trained.module), arguments, dynamic_shapes=shapes)
        torch.export.save(program, path, extra_files={"metadata.json": json.dumps(trained.metadata)})


def _write_onnx(trained: TrainedModule, path: Path, example: Any) -> None:
    arguments, shapes = _arguments(trained, path, example)
    with requires_extra("onnx", "ONNX: "):
        import onnxscript  # noqa: F401  what torch.onnx needs
    with _quiet(), _refused(trained, path):
        program = torch.onnx.export(
            unwrapped(trained.module), arguments, dynamo=True, verbose=False, dynamic_shapes=shapes
        )
    assert program is not None
    program.model.metadata_props.update(trained.metadata)
    program.save(path)


def _zeros(dtype: str, shape: tuple[int, ...], path: Path) -> Tensor:
    """Two samples of zeros. A recorded shape may be anything, so no more is allocated than samples take."""
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype) or not 0 < prod(shape) <= LARGEST:
        raise UsageError(
            f"{path} cannot be made: the run records a sample of {dtype} {list(shape)}, and 1 to {LARGEST:,} "
            "numbers of a type of PyTorch are allowed; export in Python, with example=batch"
        )
    return torch.zeros(2, *shape, dtype=kind)


def _arguments(trained: TrainedModule, path: Path, example: Any) -> tuple[tuple[Any, ...], Any]:
    """The module's arguments to follow, and which of their dimensions may have any size: the first."""
    if trained.missing:
        raise UsageError(
            f"{path} needs all tensors, and {', '.join(trained.missing)} stay at the clients: export to "
            ".safetensors, and load it into a client's module"
        )
    if example is None and trained.sample is None:
        raise UsageError(
            f"{path} needs the shape of a sample, which the run has not recorded: export in Python, with "
            "offbeat.export(run, file, example=batch); a server that has test data records it"
        )
    if example is None and trained.sample is not None:
        example = _zeros(*trained.sample, path)
    arguments = example if isinstance(example, tuple) else (example,)
    return arguments, tuple({0: torch.export.Dim("batch")} for _ in arguments)


@contextmanager
def _refused(trained: TrainedModule, path: Path) -> Iterator[None]:
    """Turn the errors of exporters, which have many kinds, into one line."""
    try:
        yield
    except (UsageError, OSError):
        raise
    except Exception as error:
        cause = error
        while isinstance(cause.__cause__, Exception):
            cause = cause.__cause__
        told = (str(cause).strip() or "no reason given").splitlines()[0]
        name = trained.metadata["architecture"]
        raise UsageError(f"{path}: {name} cannot be exported: {type(cause).__name__}: {told}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's notes on its own deprecated calls and on packages that are not installed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


_WRITERS: dict[str, Callable[[TrainedModule, Path, Any], None]] = {
    ".safetensors": _write_safetensors, ".pt": _write_pt, ".pt2": _write_pt2, ".onnx": _write_onnx
}  # fmt: skip
