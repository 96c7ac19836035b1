"""A deterministic event loop: virtual time, processes that can be killed, threads that take turns.

A turn of the loop takes a microsecond; where nothing is ready to run, time jumps to the next timer. What
production code gives to threads runs in greenlets of one thread, at moments that the loop decides, so that
a run of the loop follows from its inputs alone.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

import greenlet

TURN = 1e-6
"""Seconds that a turn of the loop takes, at least."""
DEADLOCK = "nothing is left to run, and no timer is set"
_process: contextvars.ContextVar["Process | None"] = contextvars.ContextVar("process", default=None)


class Process:
    """A process of the simulated system: what is started in it belongs to it, and dies with it.

    Attributes:
        name: Its name.
        alive: Whether it runs. A dead one can neither write to a disk nor send anything, while its coroutines
            unwind.
    """

    def __init__(self, name: str) -> None:
        self.name, self.alive = name, True
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in the order of their creation

    def start(self, main: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run a coroutine in it."""
        context = contextvars.copy_context()
        context.run(_process.set, self)
        return context.run(asyncio.get_running_loop().create_task, main)

    def kill(self) -> None:
        """End it now: nothing that it does from here on reaches anybody."""
        if self.alive:
            self.alive = False
            for task in self._tasks:
                asyncio.get_running_loop().call_soon(task.cancel)

    async def ended(self) -> None:
        """Wait until all that ran in it has unwound."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def add(self, task: "asyncio.Task[Any]") -> None:
        """A task was started in it."""
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))


def current_process() -> Process | None:
    """The process that runs now. None means the observer, who is outside of the simulated system."""
    return _process.get()


class _Selector:
    """Waits by moving the loop's time."""

    def __init__(self, loop: "Loop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise RuntimeError(DEADLOCK)
        self._loop.now += max(timeout, TURN)
        return []


class Loop(asyncio.BaseEventLoop):
    """An event loop in virtual time.

    Args:
        rng: Draws how long work in threads takes.

    Attributes:
        now: Seconds since the loop was made.
        failures: What the loop's exception handler was given of processes that are alive.
    """

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self.now, self.rng = 0.0, rng
        self.failures: list[BaseException] = []
        self._selector = _Selector(self)
        self._clock_resolution = 1e-9
        self._default = Threads()
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._on_failure)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Run a function in a simulated thread."""
        return asyncio.wrap_future((executor or self._default).submit(func, *args), loop=self)

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _make_task(self, loop: Any, main: Any, context: Any = None) -> "asyncio.Task[Any]":
        task = asyncio.Task(main, loop=loop, context=context)
        process = _process.get() if context is None else context.get(_process)
        if process is not None:
            process.add(task)
            if not process.alive:
                loop.call_soon(task.cancel)
        return task

    def _on_failure(self, _: Any, context: dict[str, Any]) -> None:
        error = context.get("exception") or RuntimeError(context["message"])
        process = current_process()
        if process is None or process.alive:
            self.failures.append(error)


@contextmanager
def virtual_time(rng: Random) -> Iterator[Loop]:
    """A loop that is the thread's current one meanwhile."""
    loop = Loop(rng)
    asyncio.set_event_loop(loop)
    try:
        yield loop
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class LoopClock:
    """An `offbeat.net.clock.Clock` of the loop."""

    def now(self) -> float:
        """Seconds since the loop was made."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        await asyncio.sleep(seconds)


class Threads(Executor):
    """A thread pool of one thread, which takes turns with the loop.

    Work begins a moment after it is submitted, and the loop goes on meanwhile. `sleep` and `SimpleQueue.get`
    give the turn back to the loop.
    """

    def __init__(self, max_workers: int = 1, thread_name_prefix: str = "") -> None:
        self._waiting: deque[tuple[_Future, contextvars.Context, Callable[[], Any]]] = deque()
        self._busy = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Run a function after those submitted before."""
        future = _Future(self)
        self._waiting.append((future, contextvars.copy_context(), lambda: fn(*args, **kwargs)))
        loop = _loop()
        loop.call_later(loop.rng.random() * 0.002, self._next)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End what waits, by doing or by cancelling it."""
        if cancel_futures:
            for future, _, _ in self._waiting:
                future.cancel()
            self._waiting.clear()
        while wait and self._waiting and not self._busy:
            self._next()

    def force(self, future: "_Future") -> None:
        """Work until a future is done: another thread waits for it."""
        while not future.done():
            assert not self._busy, "a thread waits for one that waits"
            self._next()

    def _next(self) -> None:
        if self._busy or not self._waiting:
            return
        future, context, work = self._waiting.popleft()
        if not future.set_running_or_notify_cancel():
            return
        self._busy = True
        turn = greenlet.greenlet(lambda: self._run(future, context, work))
        turn.switch()

    def _run(self, future: "_Future", context: contextvars.Context, work: Callable[[], Any]) -> None:
        slow: list[float] = []
        context.run(_delays.set, slow)
        try:
            outcome = context.run(work)
        except greenlet.GreenletExit:
            raise
        except BaseException as error:
            self._finish(slow, partial(future.set_exception, error))
        else:
            self._finish(slow, partial(future.set_result, outcome))

    def _finish(self, slow: list[float], tell: Callable[[], Any]) -> None:
        """The work is done; it took as long as the disk was slow."""
        if sum(slow):
            _loop().call_later(sum(slow), self._done, tell)
        else:
            self._done(tell)

    def _done(self, tell: Callable[[], Any]) -> None:
        self._busy = False
        tell()
        if self._waiting:
            _loop().call_soon(self._next)


class _Future(Future[Any]):
    def __init__(self, threads: Threads) -> None:
        super().__init__()
        self._threads = threads

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self._threads.force(self)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.done():
            self._threads.force(self)
        return super().exception(0)


_delays: contextvars.ContextVar[list[float] | None] = contextvars.ContextVar("delays", default=None)


def take_longer(seconds: float) -> None:
    """The work of the thread that runs now takes longer; nothing where the loop runs."""
    delays = _delays.get()
    if delays is not None:
        delays.append(seconds)


def sleep(seconds: float) -> None:
    """Let the thread that runs now sleep; others run meanwhile."""
    turn = greenlet.getcurrent()
    assert turn.parent is not None
    _loop().call_later(seconds, turn.switch)
    turn.parent.switch()


class SimpleQueue:
    """A `queue.SimpleQueue` whose `get` lets others run until there is something."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._getter: greenlet.greenlet | None = None

    def put(self, item: Any) -> None:
        """Add an item, and wake the thread that waits for one."""
        self._items.append(item)
        if self._getter is not None:
            _loop().call_soon(self._getter.switch)
            self._getter = None

    def get(self) -> Any:
        """Wait for an item."""
        while not self._items:
            self._getter = greenlet.getcurrent()
            assert self._getter.parent is not None
            self._getter.parent.switch()
        return self._items.popleft()


def _loop() -> Loop:
    loop = asyncio.get_event_loop()
    assert isinstance(loop, Loop)
    return loop
