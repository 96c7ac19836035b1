"""Tolerance of golden numbers."""

from typing import Any

import pytest


def near(*expected: float) -> Any:
    """A list that equals `expected` up to the rounding of float32."""
    return pytest.approx(list(expected), rel=2e-6, abs=2e-6)
