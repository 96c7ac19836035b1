"""How much a test tries: little in `make test`, everything in `make test-thorough`."""

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import settings


def examples(number: int, **more: Any) -> settings:
    """Settings of a property test: `number` examples if thorough, by default a share of them."""
    return settings(max_examples=max(1, number * settings().max_examples // 100), **more)


def thorough(*cases: Any) -> list[Any]:
    """Cases of a parametrized test that only `make test-thorough` runs; a tuple is several arguments."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.thorough)
        for case in cases
    ]


def diagonal(*dimensions: Iterable[Any]) -> list[tuple[Any, ...]]:
    """As many cases of a grid as its longest dimension has values: each value of each dimension is in one."""
    values = [list(dimension) for dimension in dimensions]
    return [tuple(own[i % len(own)] for own in values) for i in range(max(map(len, values)))]


def mostly_thorough(cases: Any, kept: Any) -> list[Any]:
    """All cases; those not in `kept` are thorough."""
    return [case if case in kept else thorough(case)[0] for case in cases]


def needs(module: str) -> None:
    """Skip a file of tests where a library is not installed, without the seconds that its import takes."""
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed", allow_module_level=True)
