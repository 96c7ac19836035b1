"""Ctrl-C and SIGTERM: handled after the current step, or both in the same way."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object] | int | signal.Handlers | None
"""A handler as `signal.signal` takes it."""


@contextmanager
def handled(handler: Handler, *numbers: signal.Signals) -> Iterator[None]:
    """While inside, `handler` handles these signals. In threads other than the main one, which alone gets
    signals, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, kept in before.items():
            signal.signal(number, kept)


@contextmanager
def deferred_interrupts() -> Iterator[Callable[[], bool]]:
    """While inside, the first SIGINT or SIGTERM only makes the yielded function return True.

    A second one interrupts at once. Outside the main thread it tells False.
    """
    asked = False

    def ask(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    with handled(ask, signal.SIGINT, signal.SIGTERM):
        yield lambda: asked


def terminated_as_interrupted() -> AbstractContextManager[None]:
    """While inside, SIGTERM raises `KeyboardInterrupt` as SIGINT does; in other threads nothing changes."""
    return handled(signal.default_int_handler, signal.SIGTERM)
