"""Threads that end with the process: one for a coroutine, and one for calls in their order."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def in_thread(coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
    """Run a coroutine to its end, in an event loop of its own, while the caller goes on.

    Returns:
        Its result, when there is one: `in_thread(join(address, data)).result()` waits for it, and raises what
        the coroutine raises. The thread ends with the process.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(asyncio.run(coroutine))
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name="offbeat-loop", daemon=True).start()
    return future


class DaemonThread:
    """A thread that makes calls in their order.

    The process does not wait for it at its end, as it does for the threads of `concurrent.futures`: one whose
    disk does not answer would hold the process for ever.

    Args:
        name: Its name.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> "Future[T]":
        """Make a call after those before it; returns its result, when there is one."""
        future: Future[T] = Future()

        def call() -> None:
            try:
                future.set_result(function(*args, **named))
            except BaseException as error:
                future.set_exception(error)

        self._calls.put(call)
        return future

    def end(self) -> None:
        """Let the thread end after the calls before."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
