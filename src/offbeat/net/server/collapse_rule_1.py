"""The first rule of collapse, which runs recorded without the number of a rule go on with.

An evaluation is *far worse* if its loss is above both m + 4 |m|, where m is the median of the last `RECENT`
losses (the lower one of two), and l₀ − |l₀| / 10, where l₀ is the loss of the first evaluation, which is of
the initial model. So a model that is better than the untrained one never is; before the loss has fallen to a
fifth, only a loss several times the usual one is. The model has collapsed if a loss is not finite, or if two
evaluations one after another are far worse: with unequal data one update may spoil a version for a while.

The losses of a collapse are among the recent ones: where a run stays worse, that is soon the usual. An
evaluation without a metric "loss" says nothing.
"""

from collections import deque
from collections.abc import Mapping
from math import isfinite

from offbeat.core.events import Metrics

RECENT, TIMES, OF_FIRST, IN_A_ROW = 10, 4.0, 0.1, 2


class CollapseDetectorRule1:
    """Judges evaluations in their order; its state follows from their losses alone.

    Attributes:
        good: Whether the last evaluation was neither far worse nor not finite.
    """

    judges_withdrawn = True
    warning: str | None = None

    def __init__(self) -> None:
        self.good = False
        self._first: float | None = None
        self._recent: deque[float] = deque(maxlen=RECENT)
        # Number of evaluations one after another that were far worse.
        self._worse = 0

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
        loss = metrics["loss"]
        if loss is None or not isfinite(loss):
            self._worse = 0
            return "its loss is not finite"
        limit = self._limit()
        self._recent.append(loss)
        if self._first is None:
            self._first = loss
        self.good = limit is None or loss <= limit
        self._worse = 0 if self.good else self._worse + 1
        if self._worse < IN_A_ROW:
            return None
        self._worse = 0
        return f"its loss, {loss:.3g}, is above {limit:.3g} at {IN_A_ROW} evaluations in a row"

    def withdraw(self) -> None:
        """Keep the losses of the versions that are withdrawn."""

    def _limit(self) -> float | None:
        """The largest loss that is not far worse. None means that there is nothing to compare with."""
        if self._first is None:
            return None
        usual = sorted(self._recent)[(len(self._recent) - 1) // 2]
        return max(usual + TIMES * abs(usual), self._first - OF_FIRST * abs(self._first))

    def to_record(self, metrics: Metrics, norm: float) -> Metrics:
        """Nothing.

        Args:
            metrics: The metrics.
            norm: Norm of the model's parameters by that of the initial model's.
        """
        return {}
