"""Factories of published algorithms: checked, documented from their signatures, listed by name."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass, replace
from functools import wraps
from types import MappingProxyType
from typing import Any, Generic, Literal, ParamSpec, Self, get_args

from pydantic import ValidationError, validate_call

from offbeat.algorithms.effects import option_without_effect
from offbeat.algorithms.hyperparameters import HyperParameter, kind_of, option_classes, options_of, plain
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import UsageError
from offbeat.core.validation import OptionError, did_you_mean, format_error, most_relevant
from offbeat.named import EXPOSED

P = ParamSpec("P")
_OF_A_FUNCTION = ("__doc__", "__module__", "__name__", "__qualname__")

Kind = Literal["synchronous", "asynchronous", "semi-asynchronous"]
"""When updates make a version: all of a round together, each one as it comes, or several together."""


@dataclass(frozen=True)
class Factory(Generic[P]):
    """A published algorithm, or a user's own: call it with hyper-parameters to get an `Algorithm`.

    `help()`, editors and notebooks show it as they show a function, with the docstring and the signature of
    the function that `algorithm` decorates.
    """

    name: str
    paper: str
    kind: Kind | None
    make: Callable[P, Algorithm]
    signature: inspect.Signature

    def __post_init__(self) -> None:
        self.__dict__.update((name, getattr(self.make, name)) for name in _OF_A_FUNCTION)
        # An algorithm is made to be named in recipes, and checks what it is given.
        self.__dict__[EXPOSED] = True

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        """The factory itself. `pydoc` takes what has `__get__` for a routine and shows its signature."""
        return self

    def __repr__(self) -> str:
        return f"<algorithm {self.name}>"

    @property
    def __signature__(self) -> inspect.Signature:
        bare = (p.replace(annotation=plain(p.annotation)) for p in self.signature.parameters.values())
        return self.signature.replace(parameters=list(bare))

    @property
    def __wrapped__(self) -> Callable[P, Algorithm]:
        return self.make

    @property
    def summary(self) -> str:
        """The first line of the factory's docstring."""
        return (inspect.getdoc(self.make) or self.name).splitlines()[0]

    @property
    def description(self) -> str:
        """The factory's docstring after its first line."""
        return "\n".join((inspect.getdoc(self.make) or "").splitlines()[2:])

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Algorithm:
        """Compose the algorithm.

        Raises:
            UsageError: for a value that is not allowed, and for an option that is unknown.
        """
        return self.make(*args, **kwargs)

    @property
    def hyperparameters(self) -> list[HyperParameter]:
        """The options, in the order of the signature, each followed by those within it."""
        return list(options_of(self.signature))


def algorithm(
    paper: str, kind: Kind, *, removed: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Callable[P, Algorithm]], Factory[P]]:
    """Make a factory function a published algorithm.

    Arguments are checked against their annotations (types and `Field` ranges) at every call, and the
    result remembers its name and hyper-parameters, so that a run can be recorded and repeated.

    Args:
        paper: Authors, title, venue and year, and the algorithm or the equations in the paper.
        kind: When updates make a version; `offbeat algorithms` orders its list by it.
        removed: The replacement of each removed option, which recorded runs and recipes may still have.
    """

    def decorate(factory: Callable[P, Algorithm]) -> Factory[P]:
        name = factory.__name__
        signature = inspect.signature(factory)
        checked = validate_call(factory)

        @wraps(factory)
        def make(*args: P.args, **kwargs: P.kwargs) -> Algorithm:
            if (option := next((old for old in removed if old in kwargs), None)) is not None:
                raise UsageError(f"{name}: there is no option {option} any more: {removed[option]}")
            try:
                made = checked(*args, **kwargs)
            except (ValidationError, OptionError) as caught:
                error = caught if isinstance(caught, ValidationError) else caught.__context__
                assert isinstance(error, ValidationError)
                known = _siblings(signature, most_relevant(error)["loc"])
                given: dict[Any, Any] = dict(enumerate(args)) | kwargs
                raise UsageError(
                    f"{name}: {format_error(error, known, list(signature.parameters), given)}"
                ) from None
            bound = signature.bind(*args, **kwargs)
            _check_effects(name, made, checked, signature, bound.arguments)
            bound.apply_defaults()
            return replace(made, name=name, hyperparameters=_plain(bound.arguments))

        return Factory(name, paper, kind, make, signature)

    return decorate


def in_order(factories: list[Factory[...]]) -> dict[str, Factory[...]]:
    """Factories by name: synchronous ones first, within a kind from the earliest paper on."""
    kinds = get_args(Kind)
    ordered = sorted(factories, key=lambda f: (kinds.index(f.kind), year(f.paper), f.name))
    return {factory.name: factory for factory in ordered}


def year(paper: str) -> str:
    """The year in which a paper came out; empty where it does not say."""
    found = re.search(r"\b(?:19|20)\d\d\b", paper)
    return found.group() if found else ""


def factory_of(factories: Mapping[str, Factory[...]], name: object) -> Factory[...]:
    """The factory of a name."""
    if not isinstance(name, str) or name not in factories:
        raise UsageError(f"algorithm {name!r} is unknown{did_you_mean(str(name or ''), factories)}")
    return factories[name]


def _siblings(signature: inspect.Signature, location: tuple[int | str, ...]) -> list[str]:
    """The options beside an unknown one, such as those of `staleness`."""
    names = list(signature.parameters)
    if len(location) < 2:
        return names
    first, *inner = location
    # The location of an argument given by its place is a number.
    owner = names[first] if isinstance(first, int) else first
    classes = option_classes(signature.parameters[owner].annotation)
    return [name for c in classes if kind_of(c) in (None, inner[0]) for name in c.__pydantic_fields__]


def _check_effects(
    name: str,
    made: Algorithm,
    make: Callable[..., Algorithm],
    signature: inspect.Signature,
    given: Mapping[str, Any],
) -> None:
    """Raises `UsageError` for an option that is not its default and changes nothing beside the others."""
    plain_given = {option: _plain(value) for option, value in given.items()}
    defaults = {option: _plain(signature.parameters[option].default) for option in given}
    chosen = [(option,) for option, value in plain_given.items() if value != defaults[option]]
    idle = option_without_effect(made, lambda options: make(**options), plain_given, chosen)
    if idle is not None:
        (option,) = idle
        others = ", ".join(f"{key} = {value!r}" for key, value in plain_given.items() if key != option)
        raise UsageError(f"{name}: {option} = {given[option]!r} has no effect with {others}: leave it out")


def _plain(value: Any) -> Any:
    """A value as a run records it: mappings, and Python's numbers in place of NumPy's or PyTorch's."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return {name: _plain(own) for name, own in value.items()}
    return value.item() if hasattr(value, "item") else value
