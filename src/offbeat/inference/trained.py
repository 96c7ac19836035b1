"""The module of a recorded run, made again, with the weights that the run has given it."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from torch import nn

from offbeat.allowed import NOTHING, Allow, Allowed
from offbeat.core.errors import UsageError
from offbeat.core.layout import Layout, frozen_digest, matches
from offbeat.core.metric_names import finite
from offbeat.core.model import Model, Tensors
from offbeat.core.module_tensors import plain_state_dict, without_prefixes
from offbeat.local.errors import check_module
from offbeat.local.seeding import seeded
from offbeat.models.specs import AnyModel, ModelMaker, NamedModel
from offbeat.runs.damage import reading
from offbeat.runs.files import read_file
from offbeat.runs.initial import fitted
from offbeat.runs.record import RunRecord
from offbeat.runs.schema import BEST, DATABASE, MODEL

_MODEL: TypeAdapter[Any] = TypeAdapter(AnyModel)
_GIVE = "give --model module:function (in Python module=…)"


@dataclass(frozen=True)
class TrainedModule:
    """A run's module with its weights.

    Attributes:
        module: The module, in evaluation mode.
        missing: Names of its tensors that stay at the clients: in the module they are as it was made.
        sample: dtype and shape of one sample, where they are known.
        metadata: Where the weights come from and how good they are, as texts by name.
    """

    module: nn.Module
    missing: tuple[str, ...]
    sample: tuple[str, tuple[int, ...]] | None
    metadata: dict[str, str]

    def state_dict(self) -> Tensors:
        """The module's tensors by name, each with memory of its own, without those that are missing.

        The names are those of the plain module, where `torch.compile` or another wrapper is around it.
        """
        named = plain_state_dict(self.module)
        return {name: tensor.clone() for name, tensor in named.items() if name not in self.missing}


def trained_module(
    record: RunRecord, module: nn.Module | Callable[[], nn.Module] | None = None, best: bool = False,
    allow: Allow = NOTHING,
) -> TrainedModule:  # fmt: skip
    """Make a run's module and put the run's weights in it.

    Args:
        record: The run.
        module: The module, into which the weights are written, or a function that makes it, with the draws
            of the run's seed. None means the function that the run has recorded by name, with its options.
        best: Whether to take the best version, `best.safetensors`, in place of the final one.
        allow: Code that the run's directory may name, to make the module.

    Raises:
        UsageError: The run has no such version, its module cannot be made, or the module is another one.
    """
    path = _weights(record, best)
    described = record.meta.get("plan") or record.meta.get("learner") or {}
    if not isinstance(module, nn.Module):
        module = check_module(seeded(module or _maker(record, described, allow), record.seed))
    if described.get("frozen", "") not in ("", frozen_digest(module)):
        raise UsageError(
            f"the frozen parameters of the {type(module).__name__} made here are not those of {record.path}: "
            "load the same pretrained weights, or use the run's version of PyTorch where the seed draws them"
        )
    personal = tuple(described.get("personal", ()))
    tensors, kept = read_file(path)
    model = fitted(Layout.of(module, personal), tensors, str(path))
    aliases = [without_prefixes(name) for name, _ in model.layout.aliases]
    known = {*aliases, *(without_prefixes(entry.name) for entry in model.layout.entries)}
    if extra := sorted(name for name in tensors if without_prefixes(name) not in known):
        raise UsageError(f"{path} does not fit: it has {extra[0]}, which the {type(module).__name__} has not")
    model.load_into(module).eval()
    recorded = described.get("sample") or record.meta.get("sample")
    dtype, shape = recorded or ("float32", described.get("sample_shape"))
    return TrainedModule(
        module=module,
        missing=tuple(name for name in plain_state_dict(module) if matches(name, personal)),
        sample=None if shape is None else (dtype, tuple(shape)),
        metadata=_metadata(record, described, module, model, kept),
    )


def _weights(record: RunRecord, best: bool) -> Path:
    """The file of the run's weights."""
    path = record.path / (BEST if best else MODEL)
    if best and not path.exists():
        raise UsageError(
            f"{record.path} has no {BEST}: leave out --best, or have a run keep it, with evaluate.keep_best"
        )
    if not best and record.status != "finished":
        command = "the same offbeat serve" if record.served else "offbeat resume"
        raise UsageError(
            f"{record.path} is {record.status}, and a run writes its model when it finishes: let it finish "
            f"({command}), or take the best version so far with --best, where evaluate.keep_best is set"
        )
    return path


def _maker(record: RunRecord, described: dict[str, Any], allow: Allow) -> ModelMaker:
    """Makes the module that the run has recorded."""
    spec = described.get("model")
    if spec is None:
        raise UsageError(f"{record.path} does not say by which name its module is made: {_GIVE}")
    with reading(record.path / DATABASE):
        model = _MODEL.validate_python(spec)
    maker = ModelMaker(
        model, described.get("sample_shape"), described.get("classes"),
        f"the model of {record.path},", Allowed.of(allow).load,
    )  # fmt: skip
    if isinstance(maker.spec, NamedModel):
        module, _, name = maker.spec.name.partition(":")
        if module == "" or (module == "__main__" and not hasattr(sys.modules["__main__"], name)):
            raise UsageError(
                f"the model of {record.path}, {name}, was not made by a function of an importable module: "
                f"{_GIVE}"
            )
    return maker


def _metadata(
    record: RunRecord, described: dict[str, Any], module: nn.Module, model: Model, kept: dict[str, str]
) -> dict[str, str]:
    """Metadata beside the weights; values that are no texts as JSON."""
    spec = dict(described.get("model") or {"name": type(module).__name__})
    name, arguments = spec.pop("name"), spec.pop("options", spec)
    for given in ("sample_shape", "classes"):
        if described.get(given) is not None:
            arguments = {**arguments, given: described[given]}
    version = int(kept.get("version", record.meta.get("summary", {}).get("versions", 0)))
    evaluations = [evaluation.found for evaluation in record.evaluations() if evaluation.version == version]
    values = {
        # Loaders of safetensors files expect this entry.
        "format": "pt",
        "architecture": name,
        "arguments": arguments,
        "loss": described.get("loss", ""),
        "step": described.get("step", ""),
        "metrics": {metric: finite(value) for made in evaluations[-1:] for metric, value in made.items()},
        "columns": record.columns or "",
        "version": version,
        "digest": model.digest(),
        "run": record.meta.get("run", record.path.resolve().name),
        "label": record.label,
        "seed": record.seed,
        "algorithm": record.entry("algorithm"),
        "offbeat": record.meta.get("offbeat", ""),
    }
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in values.items() if v != ""}
    # A record may have half a surrogate pair in a text, which no file can hold.
    return {name: text.encode(errors="replace").decode() for name, text in texts.items()}
