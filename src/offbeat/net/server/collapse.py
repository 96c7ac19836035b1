"""Collapse of the global model, told by its evaluations on the server's test data.

Losses are held against the best that the run has had, which never rises: what happens in a collapse, or
slowly before it, does not become usual. l₀ is the first loss, which is of the initial model; l* is the lowest
median of `WINDOW` losses in a row, at first l₀. The model has collapsed

1. if a loss is not finite, or
2. if `JUMPS` losses in a row are above l* + 4 |l*| and above l₀ − |l₀| / 10, or
3. if `WINDOW` losses in a row have lost more than half of what the run had gained, l₀ − l*, once it had
   gained a fifth of l₀: a model that is led away in small steps never does the second, or
4. if `WINDOW` losses in a row are above l₀ + |l₀| / 4: the initial model, to which the run can go back, is
   nearer to a good one than a model that an early attack has left.

A model that keeps its accuracy has not collapsed, whatever its loss: an overconfident one has a large loss.
So 2 and 3 say nothing of an evaluation whose accuracy has kept more than half of what had been gained,
measured in the same way, and 4 of one that has gained a fifth of what lies between the first and 1. With
unequal data one update may spoil a version for a while; so one evaluation alone says nothing. An evaluation
without a metric "loss" says nothing either.

A rollback goes to the version with the lowest loss.
"""

from collections import deque
from collections.abc import Mapping
from math import inf, isfinite
from typing import Protocol

WINDOW, JUMPS, TIMES, OF_FIRST, GAINED, KEPT, OVER = 5, 2, 4.0, 0.1, 0.2, 0.5, 0.25


class Collapse(Protocol):
    """What the coordinator asks of a rule of collapse.

    Attributes:
        good: Whether a rollback is to go to the version that was judged last.
        judges_withdrawn: Whether it judges versions that are withdrawn by the time they have been evaluated.
    """

    good: bool
    judges_withdrawn: bool

    def judge(self, metrics: Mapping[str, float | None]) -> str | None:
        """Judge the next evaluation; why the model has collapsed, or None."""

    def withdraw(self) -> None:
        """The run has gone back: the latest evaluations are of versions that are withdrawn."""


class CollapseDetector:
    """Judges evaluations in their order; its state follows from their losses and accuracies alone.

    Attributes:
        good: Whether the last evaluation had the lowest loss so far.
    """

    judges_withdrawn = False

    def __init__(self) -> None:
        self.good = False
        self._lowest = inf
        self._losses, self._accuracies = _Course(), _Course()
        self._jumps = self._over = 0

    def judge(self, metrics: Mapping[str, float | None]) -> str | None:
        """Judge the next evaluation.

        Args:
            metrics: Its metrics by name; None means one that is not finite.

        Returns:
            Why the model has collapsed; None means that it has not.
        """
        self.good = False
        if "loss" not in metrics:
            return None
        loss, accuracy = metrics["loss"], metrics.get("accuracy")
        if loss is None or not isfinite(loss):
            self.withdraw()
            return "its loss is not finite"
        self.good, self._lowest = loss < self._lowest, min(loss, self._lowest)
        over = self._losses.first is not None and loss > self._most() and not self._learnt(accuracy)
        jump = self._losses.first is not None and loss > self._jump_limit() and not self._accurate(accuracy)
        self._losses.add(loss)
        if accuracy is not None and isfinite(accuracy):
            self._accuracies.add(-accuracy)
        self._jumps = self._jumps + 1 if jump else 0
        self._over = self._over + 1 if over else 0
        if self._jumps >= JUMPS:
            reason = (
                f"its loss, {loss:.3g}, is above {self._jump_limit():.3g} at {JUMPS} evaluations in a row"
            )
            self.withdraw()
            return reason
        if self._losses.has_lost() and (not self._accuracies.recent or self._accuracies.has_lost()):
            reason = (
                f"its loss, {loss:.3g}, has lost more than half of what was gained from "
                f"{self._losses.first:.3g} to {self._losses.best:.3g}, at {WINDOW} evaluations in a row"
            )
            self.withdraw()
            return reason
        if self._over >= WINDOW:
            self.withdraw()
            return f"its loss, {loss:.3g}, is above {self._most():.3g} at {WINDOW} evaluations in a row"
        return None

    def withdraw(self) -> None:
        """The latest evaluations are of versions that are withdrawn: a new row of them begins."""
        self._jumps = self._over = 0
        self._losses.recent.clear()
        self._accuracies.recent.clear()

    def _jump_limit(self) -> float:
        first, best = self._losses.first or 0.0, self._losses.best
        return max(best + TIMES * abs(best), first - OF_FIRST * abs(first))

    def _most(self) -> float:
        first = self._losses.first or 0.0
        return first + OVER * abs(first)

    def _learnt(self, accuracy: float | None) -> bool:
        first = self._accuracies.first
        return accuracy is not None and first is not None and accuracy > -first + GAINED * (1 + first)

    def _accurate(self, accuracy: float | None) -> bool:
        return accuracy is not None and self._accuracies.keeps(-accuracy)


class _Course:
    """A number over the evaluations, of which less is better.

    Attributes:
        first: The first; None before it.
        best: The lowest median of `WINDOW` in a row; at first the first.
        recent: The last `WINDOW`.
    """

    def __init__(self) -> None:
        self.first: float | None = None
        self.best = inf
        self.recent: deque[float] = deque(maxlen=WINDOW)

    def add(self, value: float) -> None:
        """Add the next."""
        if self.first is None:
            self.first = self.best = value
        self.recent.append(value)
        if len(self.recent) == WINDOW:
            self.best = min(self.best, sorted(self.recent)[WINDOW // 2])

    def keeps(self, value: float) -> bool:
        """Whether a value has kept more than half of what was gained."""
        return self.first is not None and value < self.first - KEPT * (self.first - self.best)

    def has_lost(self) -> bool:
        """Whether all of the last `WINDOW` have lost more than half, of a gain worth the name."""
        if self.first is None or len(self.recent) < WINDOW:
            return False
        gain = self.first - self.best
        return gain > GAINED * abs(self.first) and not any(self.keeps(value) for value in self.recent)
