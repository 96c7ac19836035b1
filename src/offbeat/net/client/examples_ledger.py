"""What a site's examples have spent, in all runs; in a file of the site's state.

The steps of a task are charged, durably, before the first of them is made: a site that dies in a task has
spent what the task may have spent. Batches and noise of a task follow from 32 fresh bytes, which are never
written: a task that is begun again, after a crash, has other noise, and is charged again.
"""

import logging
import os
from math import inf
from pathlib import Path
from typing import Any

from offbeat.core.errors import RunError, UsageError
from offbeat.local.examples_privacy import ExamplesPrivacy, examples_epsilon, steps_within
from offbeat.net.client.store import packed, unpacked
from offbeat.runs.damage import reading
from offbeat.runs.files import read_tensors, sync_directory, write_tensors

log = logging.getLogger(__name__)
FILE = "examples.safetensors"


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
        self._steps: dict[tuple[float, float], int] = {}  # by noise and rate
        if self._path.exists():
            with reading(self._path):
                about: Any = unpacked(read_tensors(self._path)["about"])
                self._steps = {(float(noise), float(rate)): int(n) for noise, rate, n in about["steps"]}

    def prepare(self, rate: float) -> None:
        """Find how many steps are left: that takes seconds, and is done before the first task.

        Args:
            rate: Probability with which a step takes an example.
        """
        self._rate, self._left = rate, steps_within(self.options, self._history, rate)
        spent = examples_epsilon(self._history, self.options.delta)
        log.info("each example has spent ε = %.2f (δ = %g) so far", spent, self.options.delta)

    def begin(self, steps: int) -> None:
        """Charge a task's steps, durably, and draw its secret.

        Raises:
            UsageError: The budget does not allow so many steps.
            RunError: The file cannot be written.
        """
        if steps > self._left:
            raise UsageError(
                f"its privacy budget is spent: a task of {steps} steps goes beyond "
                f"ε = {self.options.epsilon:g} at δ = {self.options.delta:g}"
            )
        kind = self.options.noise, self._rate
        self._steps[kind] = self._steps.get(kind, 0) + steps
        self._left -= steps
        about = packed({"steps": self._history})
        try:
            write_tensors(self._path, {"about": about})
            sync_directory(self._path.parent)
        except OSError as error:
            raise RunError(f"cannot write what is spent to {self._path}: {error}") from None
        left = "no limit" if self._left == inf else f"{self._left:.0f} are left"
        log.info("privacy of examples: %d local steps are charged, %s", self.charged, left)
        self.secret = os.urandom(32)

    @property
    def _history(self) -> list[tuple[float, float, int]]:
        return [(noise, rate, steps) for (noise, rate), steps in self._steps.items()]

    @property
    def charged(self) -> int:
        """Steps of all runs."""
        return sum(self._steps.values())
