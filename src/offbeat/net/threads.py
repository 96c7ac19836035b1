"""A coroutine in a thread of its own, for code without an event loop, such as a notebook's."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar

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
