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
above l₀ suffice, without a fifth of what metrics can gain, and for 5 two evaluations. What is found so does
not make these evaluations more: a run whose losses begin above l₀ goes back a few times, and then no more.

A model that keeps its metrics has not collapsed, whatever its loss: an overconfident one has a large loss.
So metrics excuse an evaluation: the one by which the run is compared, and most of those that have a say.
These are that one, once it has gained, and others of which more is better, which keep a gain, or have lost
one of two fifths of their first values. So the specificity of a constant model, which is 1, excuses nothing
beside an AUROC that is lost. A gain is counted from the first value to the best median of `WINDOW` values in
a row, where the loss is below 1.2 l₀: what an early attack leaves may have a better metric by chance. What
clients measure has no say, since they may invent it.

- 2 says nothing of an evaluation whose metrics keep half of their gains.
- 3 says nothing unless the metrics have lost their gains in the same way. Where no metric has a say, an
  honest run may overfit: a loss that has lost its gain is then a warning, and the run goes on.
- 4 and 5 say nothing of one whose metrics have gained a fifth, for 5 a third, of what lies between their
  first values and 1, or 0 where less is better. A metric with a best value above 1 has no such end. A fifth
  of the gain is as much, but for small weights in 5.

With unequal data one update may spoil a version for a while; so one evaluation alone says nothing. An
evaluation without a metric "loss" says nothing either.

A rollback goes to the version with the lowest loss, of those that 5 says nothing of and whose loss has gained
a tenth of l₀, or whose metrics a fifth of what they can gain; else to the initial model. What an attack
from the beginning leaves may have a loss a little below l₀, and still be far from a good one.
"""

from collections import deque
from collections.abc import Callable, Mapping
from math import inf, isfinite

from msgspec import Struct

from offbeat.core.events import Metrics
from offbeat.core.metric_names import CLIENTS, NamedMetric, first_shown
from offbeat.core.model import Model

WINDOW, SLOW_WINDOW = 5, 8
# A jump is a loss that exceeds the best one by this factor. A model that keeps this share of gains stands.
TIMES, KEPT = 4.0, 0.5
# What is lost slowly leaves less than the second share of a gain above the first share of the first value.
GAINED_MUCH, KEPT_SLOWLY = 0.4, 1 / 8
OVER, GAINED = 1.0, 0.2
# The number of evaluations after a collapse in which fewer losses in a row suffice, and that number.
ALERT, EAGERLY = 50, 2
# Share of l₀ that a version must have gained for a rollback to go to it.
WORTH = 0.1
# A norm is ordinary within this factor. One that has grown counts, unless the loss has gained the second
# share or the metrics the third.
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
    metrics: dict[str, SavedCourse]
    jumps: int
    over: int
    strange: int
    above: int
    alert: int


def parameter_norm(model: Model) -> float:
    """Norm of a model's parameters."""
    return float(model.values[: model.layout.parameters].norm())


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

    def add(self, value: float, *, counts: bool = True) -> None:
        """Add the next; `counts` says whether it may be of a gain."""
        if self.first is None:
            self.first = self.best = value
        self.recent.append(value)
        if counts and len(self.recent) >= WINDOW:
            self.best = min(self.best, sorted(list(self.recent)[-WINDOW:])[WINDOW // 2])

    @property
    def gain(self) -> float:
        """What was gained, from the first to the best."""
        return 0.0 if self.first is None else self.first - self.best

    def gained(self, value: float, share: float) -> bool:
        """Whether a value has gained more than a share of the first."""
        return self.first is not None and value < self.first - share * abs(self.first)

    def gained_much(self) -> bool:
        """Whether the gain was large."""
        return self.first is not None and self.gain > GAINED_MUCH * abs(self.first)

    def keeps(self, value: float, share: float) -> bool:
        """Whether a value has kept more than a share of what was gained."""
        return self.first is not None and value < self.first - share * self.gain

    def gained_towards(self, end: float, value: float, share: float) -> bool:
        """Whether a value has gained more than a share of the way to an end, which none has passed."""
        return self.first is not None and self.best >= end and value < self.first - share * (self.first - end)

    def has_lost(self) -> bool:
        """Whether all of the last `SLOW_WINDOW` have lost a gain that was large."""
        if len(self.recent) < SLOW_WINDOW:
            return False
        return self.gained_much() and not any(self.keeps(value, KEPT_SLOWLY) for value in self.recent)


class CollapseDetector:
    """Judges evaluations in their order; its state follows from their metrics alone.

    Args:
        metric: The metric by which the run is compared. None means the one that is shown first.
        higher_is_better: Whether more is better of the metrics whose names do not tell.

    Attributes:
        good: Whether the last evaluation had the lowest loss so far.
    """

    def __init__(self, metric: str | None = None, higher_is_better: Mapping[str, bool] = {}) -> None:
        self._metric, self._higher_is_better = metric, higher_is_better
        self.good = False
        self._lowest = inf
        self._losses, self._metrics = _Course(), dict[str, _Course]()
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
        loss, values = metrics["loss"], self._values(metrics)
        if loss is None or not isfinite(loss):
            self.withdraw()
            self._alert = ALERT
            return "its loss is not finite"
        over = (
            self._losses.first is not None
            and loss > self._most()
            and not self._learnt(values, GAINED, GAINED)
        )
        jump = self._losses.first is not None and loss > self._jump_limit() and not self._kept(values)
        self._losses.add(loss)
        for name, value in values.items():
            self._metrics.setdefault(name, _Course()).add(value, counts=self._losses.gained(loss, GROWN))
        strange = RELATIVE_NORM in metrics
        gained = self._losses.gained(loss, WORTH) or self._learnt(values, GAINED)
        if self._lowest == inf or (gained and not strange):
            self.good, self._lowest = loss < self._lowest, min(loss, self._lowest)
        self._jumps = self._jumps + 1 if jump else 0
        self._over = self._over + 1 if over else 0
        above = loss > self._first_loss and not self._learnt(values, GAINED)
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
        gained = gained or self._learnt(self._values(metrics), LEARNT, inf if shrunk else GAINED)
        return {} if gained else {RELATIVE_NORM: norm}

    @property
    def warning(self) -> str | None:
        """What the loss has lost slowly, where no metric has a say; None means nothing."""
        lost = self._losses.has_lost() and self._slowly_kept() is None
        return f"{self._lost_slowly()}: the model overfits, or an attack leads it away" if lost else None

    def _reason(self, loss: float) -> str | None:
        """Why the model has collapsed, after the last evaluation was counted; None means that it has not."""
        in_a_row = f"{WINDOW} evaluations in a row"
        if self._jumps >= WINDOW:
            return f"its loss, {loss:.3g}, is above {self._jump_limit():.3g} at {in_a_row}"
        if self._losses.has_lost() and self._slowly_kept() is False:
            return self._lost_slowly()
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
        for course in (self._losses, *self._metrics.values()):
            course.recent.clear()

    def save(self) -> SavedCollapse:
        """The state."""
        counts = (self._jumps, self._over, self._strange, self._above, self._alert)
        metrics = {name: course.save() for name, course in self._metrics.items()}
        return SavedCollapse(self.good, self._lowest, self._losses.save(), metrics, *counts)

    def restore(self, saved: SavedCollapse) -> None:
        """Go on from a state."""
        self.good, self._lowest = saved.good, saved.lowest
        self._losses.restore(saved.losses)
        self._metrics = {name: _Course() for name in saved.metrics}
        for name, course in self._metrics.items():
            course.restore(saved.metrics[name])
        self._jumps, self._over, self._strange = saved.jumps, saved.over, saved.strange
        self._above, self._alert = saved.above, saved.alert

    def _jump_limit(self) -> float:
        best = self._losses.best
        return max(best + TIMES * abs(best), self._first_loss)

    def _most(self) -> float:
        return self._first_loss + OVER * abs(self._first_loss)

    @property
    def _first_loss(self) -> float:
        return self._losses.first or 0.0

    # ---- what the metrics say ----

    def _values(self, metrics: Mapping[str, float | None]) -> dict[str, float]:
        """The finite metrics beside the loss that the server has measured, of which less is better."""
        return {
            name: -value if self._more_is_better(name) else value
            for name, value in metrics.items()
            if name not in ("loss", RELATIVE_NORM) and not name.startswith(CLIENTS)
            if value is not None and isfinite(value)
        }

    def _more_is_better(self, name: str) -> bool:
        return NamedMetric.of(name, self._higher_is_better).higher_is_better

    def _excused(self, keeps: Callable[[str, _Course], bool], *, much: bool = False) -> bool | None:
        """Whether the metric by which the run is compared, and most of those with a say, keep their gains.

        Args:
            keeps: Whether a metric does.
            much: Whether only a large gain gives a say.

        Returns:
            Whether they excuse; None means that none has a say.
        """
        compared = self._metric if self._metric in self._metrics else first_shown(self._metrics)
        found = {}
        for name, course in self._metrics.items():
            kept = keeps(name, course)
            little = not much and (
                (kept or course.gain > 0) if name == compared else kept and course.gain > 0
            )
            if (course.gained_much() or little) and (name == compared or self._more_is_better(name)):
                found[name] = kept
        return (found.get(compared, True) and 2 * sum(found.values()) > len(found)) if found else None

    def _kept(self, values: Mapping[str, float]) -> bool:
        """Whether the metrics keep a model whose loss has jumped."""
        return self._excused(lambda name, course: course.keeps(values.get(name, inf), KEPT)) is True

    def _learnt(self, values: Mapping[str, float], share: float, kept: float = inf) -> bool:
        """Whether the metrics have gained a share of what can be gained, or keep one of what was gained."""

        def keeps(name: str, course: _Course) -> bool:
            value, end = values.get(name, inf), -1.0 if self._more_is_better(name) else 0.0
            return course.gained_towards(end, value, share) or (course.gain > 0 and course.keeps(value, kept))

        return self._excused(keeps) is True

    def _slowly_kept(self) -> bool | None:
        """Whether the metrics keep a model whose loss has lost its gain slowly; None: none has a say."""
        return self._excused(lambda _, course: not course.has_lost(), much=True)

    def _lost_slowly(self) -> str:
        loss, gain = self._losses.recent[-1], f"from {self._losses.first:.3g} to {self._losses.best:.3g}"
        return (
            f"its loss, {loss:.3g}, has lost more than 7/8 of what was gained {gain}, "
            f"at {SLOW_WINDOW} evaluations in a row"
        )
