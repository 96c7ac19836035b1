"""The event loop of a command that takes part in a run."""

import asyncio
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

from offbeat.signals import handled, interrupts

T = TypeVar("T")


def run_until_interrupted(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in an event loop, as `asyncio.run` does; SIGTERM interrupts it as Ctrl-C does.

    The first signal cancels the coroutine, and a second one interrupts at once. `asyncio.run` alone would
    handle SIGINT only, and only where no other handler is installed.
    """
    asked = False

    async def cancellable() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def interrupt(_number: int, _frame: FrameType | None) -> None:
            nonlocal asked
            if asked:
                raise KeyboardInterrupt
            asked = True
            # This call wakes the loop.
            loop.call_soon_threadsafe(task.cancel)

        with handled(interrupt, *interrupts()):
            return await main

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        if not asked:
            raise
        raise KeyboardInterrupt from None
    finally:
        # An interruption may come before the coroutine has begun.
        main.close()
