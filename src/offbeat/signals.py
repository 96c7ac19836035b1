"""SIGINT (Ctrl-C) and SIGTERM: raised in the same way, handled after the current step, or kept away."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object] | int | signal.Handlers | None
"""A handler as `signal.signal` takes it."""


def interrupts() -> tuple[signal.Signals, ...]:
    """The signals that interrupt this process.

    A script's background command starts with SIGINT ignored. The Ctrl-C of its terminal is not meant for it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return (signal.SIGTERM,)
    return signal.SIGINT, signal.SIGTERM


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

    with handled(ask, *interrupts()):
        yield lambda: asked


def raised_interrupts() -> AbstractContextManager[None]:
    """While inside, SIGINT and SIGTERM raise `KeyboardInterrupt`; in other threads nothing changes."""
    return handled(signal.default_int_handler, *interrupts())


@contextmanager
def kept_from_children() -> Iterator[None]:
    """Processes that are started inside never get SIGINT; this process gets it afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
