"""How many examples a property test draws."""

from typing import Any

from hypothesis import settings


def examples(number: int, **more: Any) -> settings:
    """So many under the profile `thorough`, a share of them under one that draws fewer than its 100."""
    return settings(max_examples=max(1, number * settings().max_examples // 100), **more)
