"""The event loop of a command that takes part in a run."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_until_interrupted(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in an event loop, as `asyncio.run` does; SIGTERM interrupts it as Ctrl-C does."""
    from offbeat.sim.signals import handled

    with handled(lambda _number, _frame: signal.raise_signal(signal.SIGINT), signal.SIGTERM):
        return asyncio.run(main)
