"""The second rule of collapse, which runs go on by whose record has `guard_rule` 2.

Losses are held against the best that the run has had, which never rises: what happens in a collapse, or
slowly before it, does not become usual. l₀ is the first loss, which is of the initial model; l* is the lowest
median of `WINDOW` losses in a row, at first l₀. The model has collapsed

1. if a loss is not finite, or
2. if `JUMPS` losses in a row are above l* + 4 |l*| and above l₀, or
3. if `WINDOW` losses in a row have lost more than two thirds of what the run had gained, l₀ − l*, once it
   had gained two fifths of l₀: a model that is led away in small steps never does the second, or
4. if `WINDOW` losses in a row are above 1.75 l₀: the initial model, to which the run can go back, is nearer
   to a good one than a model that an early attack has left, or
5. if `WINDOW` evaluations in a row are of a model whose parameters' norm is less than a quarter of the
   initial model's, and whose loss has not gained a fifth of l₀, or whose norm is more than four times as
   large, and whose loss is above 1.2 l₀. From weights that are nearly zero, or very large, training begins
   anew, and more slowly than from the initial ones.

A model that keeps its accuracy has not collapsed, whatever its loss: an overconfident one has a large loss.
So 2 and 3 say nothing of an evaluation whose accuracy has kept its share of what had been gained, measured in
the same way (a half for 2). And 4 and 5 say nothing of one that has gained a fifth, for 5 a third, of what
lies between the first accuracy and 1. With unequal data one update may spoil a version for a while; so one
evaluation alone says nothing. An evaluation without a metric "loss" says nothing either.

A rollback goes to the version with the lowest loss, of those that 5 says nothing of.
"""

from collections import deque
from collections.abc import Mapping
from math import inf, isfinite

from offbeat.core.events import Metrics
from offbeat.net.server.collapse import RELATIVE_NORM

WINDOW, JUMPS = 5, 3
# A jump is a loss that exceeds the best one by this factor. A model that keeps this share of accuracy stands.
TIMES, KEPT = 4.0, 0.5
# A slow loss leaves less than the second share of a gain that was above the first share of l₀.
GAINED_MUCH, KEPT_SLOWLY = 0.4, 1 / 3
OVER, GAINED = 0.75, 0.2
# A norm is ordinary within this factor. One that has grown counts, unless the loss has gained the second
# share or the accuracy the third.
ORDINARY, GROWN, LEARNT = 4.0, -0.2, 1 / 3


class CollapseDetectorRule2:
    """Judges evaluations in their order; its state follows from their losses and accuracies alone.

    Attributes:
        good: Whether the last evaluation had the lowest loss so far.
    """

    judges_withdrawn = False
    warning: str | None = None

    def __init__(self) -> None:
        self.good = False
        self._lowest = inf
        self._losses, self._accuracies = _CourseRule2(), _CourseRule2()
        self._jumps = self._over = self._strange = 0

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
        over = self._losses.first is not None and loss > self._most() and not self._learnt(accuracy, GAINED)
        jump = self._losses.first is not None and loss > self._jump_limit() and not self._accurate(accuracy)
        self._losses.add(loss)
        if accuracy is not None and isfinite(accuracy):
            self._accuracies.add(-accuracy)
        strange = RELATIVE_NORM in metrics
        if not strange:
            self.good, self._lowest = loss < self._lowest, min(loss, self._lowest)
        self._jumps = self._jumps + 1 if jump else 0
        self._over = self._over + 1 if over else 0
        self._strange = self._strange + 1 if strange else 0
        reason = self._reason(loss)
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
        if self._jumps >= JUMPS:
            return f"its loss, {loss:.3g}, is above {self._jump_limit():.3g} at {JUMPS} evaluations in a row"
        if self._losses.has_lost() and (not self._accuracies.recent or self._accuracies.has_lost()):
            gain = f"what was gained from {first:.3g} to {best:.3g}"
            return f"its loss, {loss:.3g}, has lost more than two thirds of {gain}, at {in_a_row}"
        if self._over >= WINDOW:
            return f"its loss, {loss:.3g}, is above {self._most():.3g} at {in_a_row}"
        if self._strange >= WINDOW:
            return f"the norm of its parameters is far from the initial one, without a gain, at {in_a_row}"
        return None

    def withdraw(self) -> None:
        """The latest evaluations are of versions that are withdrawn: a new row of them begins."""
        self._jumps = self._over = self._strange = 0
        self._losses.recent.clear()
        self._accuracies.recent.clear()

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


class _CourseRule2:
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

    def gained(self, value: float, share: float) -> bool:
        """Whether a value has gained more than a share of the first."""
        return self.first is not None and value < self.first - share * abs(self.first)

    def keeps(self, value: float, share: float) -> bool:
        """Whether a value has kept more than a share of what was gained."""
        return self.first is not None and value < self.first - share * (self.first - self.best)

    def has_lost(self) -> bool:
        """Whether all of the last `WINDOW` have lost a gain that was large."""
        if self.first is None or len(self.recent) < WINDOW:
            return False
        large = self.first - self.best > GAINED_MUCH * abs(self.first)
        return large and not any(self.keeps(value, KEPT_SLOWLY) for value in self.recent)
