"""Measures versions of the model in a thread of its own: one at a time, of those that wait the newest."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from offbeat.core.events import Metrics, Version
from offbeat.core.model import Model
from offbeat.net.server.effects import Evaluation

Evaluate = Callable[[Model], Metrics]
Measurements = list[tuple[Evaluation, Metrics]]


class Evaluator:
    """Evaluates with `evaluate` (none: never), and calls `stirred` when something has been measured."""

    def __init__(self, evaluate: Evaluate | None, stirred: Callable[[], None]) -> None:
        self._evaluate, self._stirred = evaluate, stirred
        self._thread = ThreadPoolExecutor(1, "offbeat-evaluation")
        self._next: Evaluation | None = None
        self._running: asyncio.Task[None] | None = None
        self._measured: Measurements = []
        self._last: Version = -1

    def due(self, evaluation: Evaluation) -> None:
        """This version is to be measured, rather than an older one that still waits."""
        if self._evaluate is not None:
            self._next = evaluation
            self._begin()

    def take(self) -> Measurements:
        """What has been measured since the last call. Raises what the evaluation raised."""
        if self._running is not None and self._running.done():
            self._running.result()
        measured, self._measured = self._measured, []
        return measured

    async def last(self, evaluation: Evaluation | None) -> Measurements:
        """Finish with what is being measured, and with this version if it is given and was not the last."""
        self._next = None
        if self._running is not None:
            await self._running
        if evaluation is not None and evaluation.version != self._last:
            await self._measure(evaluation)
        self._next = None
        return self.take()

    async def close(self) -> None:
        """No more, not of what is due either; waits for the thread."""
        self._next = None
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._running
        self._thread.shutdown(wait=True)

    def _begin(self) -> None:
        """Evaluate what is due, if nothing is being evaluated."""
        if self._next is not None and (self._running is None or self._running.done()):
            evaluation, self._next = self._next, None
            self._running = asyncio.create_task(self._measure(evaluation))

    async def _measure(self, evaluation: Evaluation) -> None:
        if self._evaluate is None:
            return
        loop = asyncio.get_running_loop()
        try:
            metrics = await loop.run_in_executor(self._thread, self._evaluate, evaluation.model)
            self._last = evaluation.version
            self._measured.append((evaluation, metrics))
        finally:
            self._stirred()
        loop.call_soon(self._begin)
