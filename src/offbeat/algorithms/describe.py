"""An algorithm's parts and requirements, as text for people.

>>> from offbeat.algorithms import ALGORITHMS
>>> [part.role for part in parts(ALGORITHMS["fedavgm"]())]
['schedule', 'aggregator', 'server step', 'objective', 'buffers']
>>> [part.name for part in parts(ALGORITHMS["fedavgm"]())]
['Rounds', 'MeanOfModels', 'Momentum', 'Plain', 'follow']
"""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from itertools import takewhile
from typing import Any

from offbeat.algorithms.factory import Factory, year
from offbeat.algorithms.privacy.private import check_sums
from offbeat.core.aggregator import Aggregator
from offbeat.core.algorithm import Algorithm, ServerStep
from offbeat.core.buffers import POLICIES, unwrap_buffers
from offbeat.core.errors import UsageError
from offbeat.core.features import DRIVERS, NONE, Feature
from offbeat.core.objective import Objective
from offbeat.core.privacy.privacy_options import Privacy, Secure
from offbeat.core.schedule import Schedule

_CONTRACTS = (Schedule, Aggregator, ServerStep, Objective)


@dataclass(frozen=True)
class Part:
    """One part of an algorithm, or its policy for buffers.

    `summary` is the first line of its class's docstring; `exchange` says for what it can be exchanged.
    `depth` is 0, or 1 and more for a part inside another, such as the schedule inside a wrapper.
    """

    role: str
    name: str
    summary: str
    exchange: str
    depth: int = 0


def parts(algorithm: Algorithm) -> list[Part]:
    """The parts of an algorithm, each followed by those it wraps."""
    members = [
        ("schedule", algorithm.schedule),
        ("aggregator", algorithm.aggregator),
        *(("server step", step) for step in algorithm.server_steps),
        ("objective", unwrap_buffers(algorithm.objective)),
    ]
    listed = [
        part
        for role, member in members
        for part in _with_those_inside(role, member, _conditions(member, algorithm), 0)
    ]
    others = [policy for policy in POLICIES if policy != algorithm.buffers]
    return [*listed, Part("buffers", algorithm.buffers, POLICIES[algorithm.buffers], ", ".join(others))]


def driver_needs(algorithm: Algorithm) -> list[Feature]:
    """Features that an algorithm needs of its driver, in the order of `Feature`."""
    return [feature for feature in Feature if feature in algorithm.requires]


def with_privacy_text(algorithm: Algorithm) -> str:
    """Whether sums of updates are enough for an algorithm, or why it is refused with privacy."""
    try:
        check_sums(algorithm, Privacy(clip=1.0, secure=Secure()))
    except UsageError as error:
        return str(error)
    return "sums of updates are enough"


def made_with_defaults(factory: Factory[...]) -> Algorithm | str:
    """The algorithm with its defaults, or why it cannot be made without options."""
    required = [option.name for option in factory.hyperparameters if option.default == "required"]
    if required:
        return f"give {', '.join(required)}"
    try:
        return factory()
    except UsageError as error:
        return str(error)


def short_paper(paper: str) -> str:
    """Authors and year of a paper: "Nguyen et al. 2022"."""
    first, *rest = [part.strip() for part in paper.split(",")]
    more = [] if first.endswith("et al.") else list(takewhile(lambda part: " " not in part, rest))
    authors = " and ".join([first, *more])
    return f"{authors} {year(paper)}".rstrip()


def _with_those_inside(role: str, member: Any, exchange: str, depth: int) -> Iterator[Part]:
    summary = (inspect.getdoc(type(member)) or "").split("\n")[0]
    yield Part(role, type(member).__name__, summary, exchange, depth)
    for inner in _inside(member):
        kind = next(c for c in _CONTRACTS if c in type(inner).__mro__)
        yield from _with_those_inside(f"its {_name(kind)}", inner, f"any {_name(kind)}", depth + 1)


def _inside(member: Any) -> list[Any]:
    if not is_dataclass(member):
        return []
    values = [getattr(member, field.name) for field in fields(member)]
    flat = [v for value in values for v in (value if isinstance(value, tuple) else (value,))]
    return [v for v in flat if any(c in type(v).__mro__ for c in _CONTRACTS)]


def _conditions(member: Any, algorithm: Algorithm) -> str:
    """Conditions under which a part can be exchanged, by its own requirements and those of the others."""
    three = (algorithm.schedule, algorithm.aggregator, unwrap_buffers(algorithm.objective))
    others = [p for p in three if p is not member]
    kind = next((_name(c) for c in _CONTRACTS if c in type(member).__mro__), "part")
    said = []
    for feature in sorted(getattr(member, "provides", NONE)):
        if waiting := [type(other).__name__ for other in others if feature in other.requires]:
            said.append(f"{feature.description}; {', '.join(waiting)} needs it")
    own = sorted(getattr(member, "requires", NONE) - DRIVERS)
    return "; ".join([*(said or [f"any {kind}"]), *(f"this one needs {f.description}" for f in own)])


def _name(contract: type) -> str:
    return "server step" if contract is ServerStep else contract.__name__.lower()
