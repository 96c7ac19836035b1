"""Factories of published algorithms: checked, documented from their signatures, found by name."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass, replace
from functools import wraps
from types import MappingProxyType
from typing import Annotated, Any, Generic, ParamSpec, get_args, get_origin

from pydantic import Field, ValidationError, validate_call
from pydantic.fields import FieldInfo

from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import UsageError
from offbeat.core.validation import did_you_mean, format_error, most_relevant

P = ParamSpec("P")

Steps = Annotated[int | None, Field(ge=1, description="local steps Q of a task")]
Epochs = Annotated[int | None, Field(ge=1, description="local epochs E of a task, instead of steps")]
Concurrency = Annotated[int | None, Field(ge=1, description="clients training at the same time; none: all")]
ServerRate = Annotated[float, Field(gt=0, allow_inf_nan=False, description="server learning rate η_g")]


@dataclass(frozen=True)
class HyperParameter:
    """One option of an algorithm: its name, default, allowed range and meaning, as text."""

    name: str
    default: str
    allowed: str
    meaning: str


@dataclass(frozen=True)
class Factory(Generic[P]):
    """A published algorithm: call it with hyper-parameters to get an `Algorithm`."""

    name: str
    paper: str
    summary: str
    make: Callable[P, Algorithm]
    signature: inspect.Signature

    @property
    def __signature__(self) -> inspect.Signature:  # what help() and editors show: without the ranges
        plain = (p.replace(annotation=_bare(p.annotation)) for p in self.signature.parameters.values())
        return self.signature.replace(parameters=list(plain))

    @property
    def description(self) -> str:
        """What the factory's docstring says after its first line."""
        return "\n".join((inspect.getdoc(self.make) or "").splitlines()[2:])

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Algorithm:
        """Compose the algorithm; a value that is not allowed raises `UsageError`."""
        return self.make(*args, **kwargs)

    @property
    def hyperparameters(self) -> list[HyperParameter]:
        """The options, in the order of the signature."""
        return [_describe(p) for p in self.signature.parameters.values()]


def algorithm(
    paper: str, *, removed: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Callable[P, Algorithm]], Factory[P]]:
    """Make a factory function a published algorithm, with its paper.

    Arguments are checked against their annotations (types and `Field` ranges) at every call, and the
    result remembers its name and hyper-parameters, so that a run can be recorded and repeated. `removed` says
    of each option there was before, which recorded runs and recipes may have, what to give in its place.
    """

    def decorate(factory: Callable[P, Algorithm]) -> Factory[P]:
        name = factory.__name__
        signature = inspect.signature(factory)
        checked = validate_call(factory)

        @wraps(factory)
        def make(*args: P.args, **kwargs: P.kwargs) -> Algorithm:
            for option in removed.keys() & kwargs.keys():
                raise UsageError(f"{name}: there is no option {option} any more: {removed[option]}")
            try:
                made = checked(*args, **kwargs)
            except ValidationError as error:
                known = _siblings(signature, most_relevant(error)["loc"])
                raise UsageError(
                    f"{name}: {format_error(error, known, list(signature.parameters))}"
                ) from None
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return replace(made, name=name, hyperparameters=_plain(bound.arguments))

        summary = (inspect.getdoc(factory) or name).splitlines()[0]
        return Factory(name, paper, summary, make, signature)

    return decorate


def factory_of(factories: Mapping[str, Factory[...]], name: object) -> Factory[...]:
    """The factory of a name."""
    if not isinstance(name, str) or name not in factories:
        raise UsageError(f"algorithm {name!r} is unknown{did_you_mean(str(name or ''), factories)}")
    return factories[name]


def _siblings(signature: inspect.Signature, location: tuple[int | str, ...]) -> list[str]:
    """The options there are where an unknown one was found, such as in `staleness`."""
    names = list(signature.parameters)
    if len(location) < 2:
        return names
    first = location[0]  # an argument given by its place has a number
    kinds = get_args(
        get_args(signature.parameters[names[first] if isinstance(first, int) else first].annotation)[0]
    )
    fields = [getattr(kind, "__pydantic_fields__", {}) for kind in kinds]
    return [name for own in fields if "kind" in own and own["kind"].default == location[1] for name in own]


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as a run records them: mappings, and Python's numbers in place of NumPy's or PyTorch's."""
    return {name: _plain_value(value) for name, value in arguments.items()}


def _plain_value(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return _plain(value)
    return value.item() if hasattr(value, "item") else value


_BOUNDS = {"Ge": "≥", "Gt": ">", "Le": "≤", "Lt": "<"}


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _describe(parameter: inspect.Parameter) -> HyperParameter:
    annotation, info = parameter.annotation, FieldInfo()
    if get_origin(annotation) is Annotated:
        annotation, *extras = get_args(annotation)
        info = next((e for e in extras if isinstance(e, FieldInfo)), info)
    bounds = [
        f"{symbol} {getattr(m, name.lower())}"
        for m in info.metadata
        for name, symbol in _BOUNDS.items()
        if type(m).__name__ == name
    ]
    kind = _kind(annotation)
    required = parameter.default is inspect.Parameter.empty
    return HyperParameter(
        parameter.name,
        "required" if required else _show(parameter.default),
        ", ".join([kind, *bounds]),
        info.description or "",
    )


def _kind(annotation: Any) -> str:
    """A type for people: without modules, and the values of a choice by themselves."""
    text = re.sub(
        r"\b\w+(?:\.\w+)+\b", lambda name: name[0].split(".")[-1], inspect.formatannotation(annotation)
    )
    text = re.sub(
        r"Literal\[([^]]*)\]", lambda choice: choice[1].replace("'", "").replace(", ", " or "), text
    )
    return text.removesuffix(" | None")


def _show(value: Any) -> str:
    if value is None:
        return "none"
    if is_dataclass(value) and not isinstance(value, type):
        fields = asdict(value)
        kind = fields.pop("kind", type(value).__name__.lower())
        return f"{kind}({', '.join(f'{k}={v}' for k, v in fields.items())})"
    return str(value)
