"""Ctrl-C and SIGTERM: at a moment that suits, after the step at hand, or both in the same way."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_interrupts() -> Iterator[Callable[[], bool]]:
    """While inside, the first SIGINT or SIGTERM only sets what the yielded function tells.

    A second one interrupts at once. Outside the main thread, which alone gets signals, it tells False.
    """
    asked = False

    def ask(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """While inside, SIGTERM raises `KeyboardInterrupt` as SIGINT does; in other threads nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
