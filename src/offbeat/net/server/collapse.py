"""Collapse of the global model, told by its evaluations on the server's test data.

Losses are held against the best that the run has had, which never rises: what happens in a collapse, or
slowly before it, does not become usual. l₀ is the first loss, which is of the initial model; l* is the lowest
median of `WINDOW` losses in a row, at first l₀. The model has collapsed

1. if a loss is not finite, or
2. if `WINDOW` losses in a row are above l* + 4 |l*| and above l₀, or
3. if `SLOW_WINDOW` losses in a row have lost more than seven eighths of what the run had gained, l₀ − l*,
   once it had gained two fifths of l₀: a model that is led away in small steps never does the second, or
4. if `WINDOW` losses in a row are above 2 l₀: the initial model, to which the run can go back, is nearer
   to a good one than a model that an early attack has left, or
5. if `WINDOW` evaluations in a row are of a model whose parameters' norm is less than a quarter of the
   initial model's, and whose loss has not gained a fifth of l₀, or whose norm is more than four times as
   large, and whose loss is above 1.2 l₀. From weights that are nearly zero, or very large, training begins
   anew, and more slowly than from the initial ones.

After a collapse the rule is more eager for `ALERT` evaluations, since an attack may go on, and its last
update may leave a model from which training is slow, with a loss a little above l₀. Then two losses in a row
above l₀ suffice, without the gain in accuracy of 4, and for 5 two evaluations. What is found so does not make
these evaluations more: a run whose losses begin above l₀ goes back a few times, and then no more.

A model that keeps its accuracy has not collapsed, whatever its loss: an overconfident one has a large loss.
So 2 and 3 say nothing of an evaluation whose accuracy has kept its share of what had been gained, measured in
the same way (a half for 2). And 4 and 5 say nothing of one that has gained a fifth, for 5 a third, of what
lies between the first accuracy and 1. With unequal data one update may spoil a version for a while; so one
evaluation alone says nothing. An evaluation without a metric "loss" says nothing either.

A rollback goes to the version with the lowest loss, of those that 5 says nothing of and whose loss has gained
a tenth of l₀, or whose accuracy a fifth of what lies between the first one and 1; else to the initial model.
What an attack from the beginning leaves may have a loss a little below l₀, and still be far from a good one.
"""

from collections import deque
from collections.abc import Mapping
from math import inf, isfinite
from typing import Protocol

from msgspec import Struct

from offbeat.core.events import Metrics
from offbeat.core.model import Model

WINDOW, SLOW_WINDOW = 5, 8
# A jump is a loss that exceeds the best one by this factor. A model that keeps this share of accuracy stands.
TIMES, KEPT = 4.0, 0.5
# A slow loss leaves less than the second share of a gain that was above the first share of l₀.
GAINED_MUCH, KEPT_SLOWLY = 0.4, 1 / 8
OVER, GAINED = 1.0, 0.2
# The number of evaluations after a collapse in which fewer losses in a row suffice, and that number.
ALERT, EAGERLY = 50, 2
# Share of l₀ that a version must have gained for a rollback to go to it.
WORTH = 0.1
# A norm is ordinary within this factor. One that has grown counts, unless the loss has gained the second
# share or the accuracy the third.
ORDINARY, GROWN, LEARNT = 4.0, -0.2, 1 / 3

RELATIVE_NORM = "relative_norm"
"""Metric of an evaluation, of a model that 5 speaks of: the norm of its parameters by the initial model's."""


class SavedCourse(Struct, frozen=True):
    """The state of a number over the evaluations."""

    first: float | None
    best: float
    recent: list[float]


class SavedCollapse(Struct, frozen=True):
    """The state of a `CollapseDetector`."""

    good: bool
    lowest: float
    losses: SavedCourse
    accuracies: SavedCourse
    jumps: int
    over: int
    strange: int
    above: int
    alert: int


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

    def to_record(self, metrics: Metrics, norm: float) -> Metrics:
        """What the record of an evaluation needs beside its metrics to be judged again.

        Args:
            metrics: The metrics.
            norm: Norm of the model's parameters by that of the initial model's; infinite where that is 0.
        """

    def withdraw(self) -> None:
        """The run has gone back: the latest evaluations are of versions that are withdrawn."""


def parameter_norm(model: Model) -> float:
    """Norm of a model's parameters."""
    return float(model.values[: model.layout.parameters].norm())


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
        self._jumps = self._over = self._strange = self._above = self._alert = 0

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
            self._alert = ALERT
            return "its loss is not finite"
        over = self._losses.first is not None and loss > self._most() and not self._learnt(accuracy, GAINED)
        jump = self._losses.first is not None and loss > self._jump_limit() and not self._accurate(accuracy)
        self._losses.add(loss)
        if accuracy is not None and isfinite(accuracy):
            self._accuracies.add(-accuracy)
        strange = RELATIVE_NORM in metrics
        gained = self._losses.gained(loss, WORTH) or self._learnt(accuracy, GAINED)
        if self._lowest == inf or (gained and not strange):
            self.good, self._lowest = loss < self._lowest, min(loss, self._lowest)
        self._jumps = self._jumps + 1 if jump else 0
        self._over = self._over + 1 if over else 0
        above = loss > (self._losses.first or 0.0) and not self._learnt(accuracy, GAINED)
        self._above = self._above + 1 if above else 0
        self._strange = self._strange + 1 if strange else 0
        reason = self._reason(loss)
        if reason is not None:
            self._alert = ALERT
        elif self._alert:
            self._alert -= 1
            reason = self._eager_reason(loss)
        if reason is not None:
            self.withdraw()
        return reason

    def to_record(self, metrics: Metrics, norm: float) -> Metrics:
        """`RELATIVE_NORM` where it is not ordinary, and the loss has not gained.

        Args:
            metrics: The metrics.
            norm: Norm of the model's parameters by that of the initial model's; infinite where that is 0.
        """
        shrunk, grown = norm < 1 / ORDINARY, ORDINARY < norm < inf
        if "loss" not in metrics or not (shrunk or grown):
            return {}
        gained = self._losses.gained(metrics["loss"], GAINED if shrunk else GROWN)
        gained = gained or self._learnt(metrics.get("accuracy"), LEARNT)
        return {} if gained else {RELATIVE_NORM: norm}

    def _reason(self, loss: float) -> str | None:
        """Why the model has collapsed, after the last evaluation was counted; None means that it has not."""
        first, best, in_a_row = self._losses.first, self._losses.best, f"{WINDOW} evaluations in a row"
        if self._jumps >= WINDOW:
            return f"its loss, {loss:.3g}, is above {self._jump_limit():.3g} at {in_a_row}"
        if self._losses.has_lost() and (not self._accuracies.recent or self._accuracies.has_lost()):
            gain = f"what was gained from {first:.3g} to {best:.3g}"
            at = f"at {SLOW_WINDOW} evaluations in a row"
            return f"its loss, {loss:.3g}, has lost more than 7/8 of {gain}, {at}"
        if self._over >= WINDOW:
            return f"its loss, {loss:.3g}, is above {self._most():.3g} at {in_a_row}"
        if self._strange >= WINDOW:
            return f"the norm of its parameters is far from the initial one, without a gain, at {in_a_row}"
        return None

    def _eager_reason(self, loss: float) -> str | None:
        """The same, soon after a collapse."""
        soon = f"at {EAGERLY} evaluations in a row, soon after a collapse"
        if self._above >= EAGERLY:
            return f"its loss, {loss:.3g}, is above the first one, {soon}"
        if self._strange >= EAGERLY:
            return f"the norm of its parameters is far from the initial one, without a gain, {soon}"
        return None

    def withdraw(self) -> None:
        """The latest evaluations are of versions that are withdrawn: a new row of them begins."""
        self._jumps = self._over = self._strange = self._above = 0
        self._losses.recent.clear()
        self._accuracies.recent.clear()

    def save(self) -> SavedCollapse:
        """The state."""
        counts = (self._jumps, self._over, self._strange, self._above, self._alert)
        courses = self._losses.save(), self._accuracies.save()
        return SavedCollapse(self.good, self._lowest, *courses, *counts)

    def restore(self, saved: SavedCollapse) -> None:
        """Go on from a state."""
        self.good, self._lowest = saved.good, saved.lowest
        self._losses.restore(saved.losses)
        self._accuracies.restore(saved.accuracies)
        self._jumps, self._over, self._strange = saved.jumps, saved.over, saved.strange
        self._above, self._alert = saved.above, saved.alert

    def _jump_limit(self) -> float:
        best = self._losses.best
        return max(best + TIMES * abs(best), self._losses.first or 0.0)

    def _most(self) -> float:
        first = self._losses.first or 0.0
        return first + OVER * abs(first)

    def _learnt(self, accuracy: float | None, share: float) -> bool:
        first = self._accuracies.first
        return accuracy is not None and first is not None and accuracy > -first + share * (1 + first)

    def _accurate(self, accuracy: float | None) -> bool:
        return accuracy is not None and self._accuracies.keeps(-accuracy, KEPT)


class _Course:
    """A number over the evaluations, of which less is better.

    Attributes:
        first: The first; None before it.
        best: The lowest median of `WINDOW` in a row; at first the first.
        recent: The last `SLOW_WINDOW`.
    """

    def __init__(self) -> None:
        self.first: float | None = None
        self.best = inf
        self.recent: deque[float] = deque(maxlen=SLOW_WINDOW)

    def save(self) -> SavedCourse:
        """The state."""
        return SavedCourse(self.first, self.best, list(self.recent))

    def restore(self, saved: SavedCourse) -> None:
        """Go on from a state."""
        self.first, self.best = saved.first, saved.best
        self.recent = deque(saved.recent, maxlen=SLOW_WINDOW)

    def add(self, value: float) -> None:
        """Add the next."""
        if self.first is None:
            self.first = self.best = value
        self.recent.append(value)
        if len(self.recent) >= WINDOW:
            self.best = min(self.best, sorted(list(self.recent)[-WINDOW:])[WINDOW // 2])

    def gained(self, value: float, share: float) -> bool:
        """Whether a value has gained more than a share of the first."""
        return self.first is not None and value < self.first - share * abs(self.first)

    def keeps(self, value: float, share: float) -> bool:
        """Whether a value has kept more than a share of what was gained."""
        return self.first is not None and value < self.first - share * (self.first - self.best)

    def has_lost(self) -> bool:
        """Whether all of the last `SLOW_WINDOW` have lost a gain that was large."""
        if self.first is None or len(self.recent) < SLOW_WINDOW:
            return False
        large = self.first - self.best > GAINED_MUCH * abs(self.first)
        return large and not any(self.keeps(value, KEPT_SLOWLY) for value in self.recent)
