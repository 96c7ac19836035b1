"""Hypothesis strategies of random worlds; a failing world is shrunk to a simple one."""

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st

from offbeat.testing.worlds import make_world
from offbeat.world.world import World

__all__ = ["worlds"]

T = TypeVar("T")


class _HypothesisChoices:
    """Choices drawn by Hypothesis; the first option and small numbers are the simplest."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def one_of(self, options: Sequence[T]) -> T:
        return self._draw(st.sampled_from(options))

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def number(self, low: float, high: float) -> float:
        return self._draw(st.floats(low, high))


@st.composite
def worlds(draw: st.DrawFn, clients: tuple[int, int] = (1, 5)) -> World:
    """A strategy of worlds with clients[0] to clients[1] clients."""
    return make_world(_HypothesisChoices(draw), clients)
