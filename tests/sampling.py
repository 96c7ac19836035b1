"""How much a test tries: little in `make test`, everything in `make test-thorough`."""

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


def mostly_thorough(cases: Any, kept: Any) -> list[Any]:
    """All cases; those not in `kept` are thorough."""
    return [case if case in kept else thorough(case)[0] for case in cases]
