"""Ledger of the privacy that a site's examples have spent, in all runs; a file of the site's state.

The steps of a task are charged, durably, before the first of them is made: a site that dies in a task has
spent what the task may have spent. Batches and noise of a task follow from 32 fresh bytes, which are never
written: a task that is begun again, after a crash, has other noise, and is charged again.
"""

import logging
import os
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, Self

from offbeat.core.errors import RunError, UsageError, reason_of
from offbeat.local.examples_privacy import ExamplesPrivacy, History, examples_epsilon, steps_within
from offbeat.net.client.packed_mapping import packed, unpacked
from offbeat.runs.damage import reading
from offbeat.runs.durable_files import sync_directory
from offbeat.runs.files import read_tensors, write_tensors

log = logging.getLogger(__name__)
FILE = "examples.safetensors"
# At most one part in this number of the time goes into computing ε for the log.
_SHARE = 20


@dataclass(frozen=True)
class ExamplesSpent:
    """Privacy spent by the examples of a site.

    Attributes:
        history: The steps that were charged.
        epsilon: The budget. None means that there is none.
        delta: δ.
    """

    history: History = ()
    epsilon: float | None = None
    delta: float = ExamplesPrivacy().delta

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Read the file of a site's state; None where it is missing. It may be read at any time.

        Raises:
            DamageError: The file cannot be read.
        """
        path = directory / FILE
        if not path.exists():
            return None
        with reading(path):
            about: Any = unpacked(read_tensors(path)["about"])
            history = [(float(noise), float(rate), int(n)) for noise, rate, n in about["steps"]]
            epsilon = about["epsilon"]
            return cls(history, None if epsilon is None else float(epsilon), float(about["delta"]))

    @property
    def steps(self) -> int:
        """Steps of all runs."""
        return sum(steps for _, _, steps in self.history)

    @property
    def text(self) -> str:
        """The spending in words; computing it takes a moment. Raises `UsageError` without Opacus."""
        limit = "" if self.epsilon is None else f" of {self.epsilon:g}"
        spent = examples_epsilon(self.history, self.delta)
        return f"ε = {spent:.2f}{limit} (δ = {self.delta:g}; {self.steps} local steps)"


class ExamplesLedger:
    """The steps that a site has made on its examples.

    Args:
        options: The site's options.
        directory: The directory of the site's state.

    Attributes:
        options: The site's options.
        secret: The 32 bytes of the task that was begun last.

    Raises:
        DamageError: The file cannot be read.
    """

    def __init__(self, options: ExamplesPrivacy, directory: Path) -> None:
        self.options, self.secret = options, b""
        self._path, self._rate, self._left = directory / FILE, 1.0, 0.0
        # When ε was logged last, and how long that took.
        self._told, self._took = -inf, 0.0
        before = ExamplesSpent.read(directory) or ExamplesSpent()
        self._steps = {(noise, rate): steps for noise, rate, steps in before.history}

    def prepare(self, rate: float) -> None:
        """Find how many steps are left: that takes seconds, and is done before the first task.

        Args:
            rate: Probability with which a step takes an example.
        """
        self._rate, self._left = rate, steps_within(self.options, self.spent.history, rate)
        self.tell()

    def begin(self, steps: int) -> None:
        """Charge a task's steps, durably, and draw its secret.

        Raises:
            UsageError: The budget does not allow so many steps.
            RunError: The file cannot be written.
        """
        if steps > self._left:
            beyond = f"ε = {self.options.epsilon:g} (δ = {self.options.delta:g})"
            log.error("a task of %d steps goes beyond %s: %s", steps, beyond, self.spent.text)
            # The server gets this text.
            raise UsageError(f"its privacy budget is spent: it allows no task of {steps} steps")
        kind = self.options.noise, self._rate
        self._steps[kind] = self._steps.get(kind, 0) + steps
        self._left -= steps
        spent = self.spent
        about = packed({"steps": spent.history, "epsilon": spent.epsilon, "delta": spent.delta})
        try:
            write_tensors(self._path, {"about": about})
            sync_directory(self._path.parent)
        except OSError as error:
            raise RunError(f"cannot write what is spent to {self._path}: {reason_of(error)}") from None
        self.secret = os.urandom(32)

    def tell(self) -> None:
        """Log the spending, unless that would take more than a twentieth of the time since the last log."""
        begun = monotonic()
        if begun - self._told < _SHARE * self._took:
            return
        left = "no limit" if self._left == inf else f"{self._left:.0f} more are allowed"
        try:
            log.info("privacy of examples: %s, %s", self.spent.text, left)
        except Exception:
            # If the error failed the task, the task would be charged again.
            log.exception("what the examples have spent cannot be told: %d local steps", self.spent.steps)
        self._told = monotonic()
        self._took = self._told - begun

    @property
    def spent(self) -> ExamplesSpent:
        """The charges so far."""
        history = [(noise, rate, steps) for (noise, rate), steps in self._steps.items()]
        return ExamplesSpent(history, self.options.epsilon, self.options.delta)
