"""The tasks of a site for a training loop in the caller's thread; the network is in another one."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread

import torch

from offbeat.core.errors import UsageError
from offbeat.core.model import Tensors
from offbeat.local.client_task import ClientTask
from offbeat.local.loop_learner import Initial, LoopLearner
from offbeat.net.auth.credentials import SiteCredentials
from offbeat.net.backoff import GIVE_UP_AFTER
from offbeat.net.client.join import KeepModel, join
from offbeat.net.client.policy import SitePolicy
from offbeat.net.client.reconnecting import Connect

log = logging.getLogger(__name__)


def client(
    server: str | Connect,
    samples: int,
    *,
    name: str | None = None,
    credentials: SiteCredentials | None = None,
    batch_size: int = 32,
    drop_last: bool = False,
    initial: Initial | None = None,
    labels: Sequence[int] | None = None,
    held_out: int = 0,
    evaluate: Callable[[Tensors], Mapping[str, float]] | None = None,
    allow: Sequence[str] = (),
    state: str | Path | None = None,
    threads: int | None = None,
    give_up_after: float | None = GIVE_UP_AFTER,
    keep_model: KeepModel | None = None,
    policy: SitePolicy | None = None,
    accept: Collection[str] = (),
) -> Iterator[ClientTask]:
    """Take part in a server's run as a site, with a training loop in the caller's own thread.

    The site takes part while the loop iterates: it registers at the first task asked for, and leaves when the
    loop is left, by `break`, an exception or Ctrl-C. A task that is cancelled ends its `steps`. One that ends
    without an update is reported to the server as failed, and the next comes.

    Args:
        server: "HOST:PORT", or a function that opens a connection.
        samples: Number of the site's training samples.
        name: The site's name, where no credential says it.
        credentials: The site's credentials, which then have its name.
        batch_size: Samples of a batch of the loop, from which the steps of an epoch follow.
        drop_last: Whether the loop leaves out the incomplete batch of each pass.
        initial: The loop's model, to be compared with the run's. None means that `load_into` compares it.
        labels: Number of samples of each class, to be told the server. None keeps them private.
        held_out: Number of samples that the site holds out, for evaluations at sites; 0 means none.
        evaluate: evaluate(state_dict) gives the metrics by name of a global model on them. It is called in
            another thread, beside the loop, so with a module of its own. Needed with `held_out`.
        allow: Names of modules whose functions the run may name, for an algorithm that is not built in.
        state: Directory of the site's state and pending update, which survive the process there.
        threads: PyTorch's threads. None leaves them as they are.
        give_up_after: Seconds without a server after which to fail; None for never.
        keep_model: Where the model that the run shares goes: a .safetensors file, or a function of its
            tensors by name, which is called before the loop ends. The run must share its model.
        policy: What the site refuses to train, to evaluate and to send. None means the default one.
        accept: Codes of what the site accepts by hand, as in `offbeat.net.join`.

    Yields:
        The site's tasks, until the run has ended.

    Raises:
        UsageError: The site does not fit what the run asks for.
        RunError: The server refuses the site, or cannot be reached.
    """
    if (held_out != 0) != (evaluate is not None):
        raise UsageError("held_out and evaluate belong together: give both, or neither")
    threads = threads or torch.get_num_threads()
    torch.set_num_threads(threads)
    exchange = _Exchange()
    learner = LoopLearner(
        exchange.train, initial, samples, batch_size=batch_size, drop_last=drop_last, held_out=held_out,
        evaluate_client=None if evaluate is None else lambda model, _: evaluate(model.state_dict()),
        labels=None if labels is None else [labels],
    )  # fmt: skip

    async def take_part() -> None:
        reason = await join(
            server, name=name, credentials=credentials, learner=learner,
            allow=allow, state=state, threads=threads, give_up_after=give_up_after,
            keep_model=keep_model, policy=policy, accept=accept,
        )  # fmt: skip
        log.info("the run has ended: %s", reason)

    network = _Network(take_part, exchange.end)
    try:
        yield from exchange.tasks()
    finally:
        network.stop()
        exchange.close()
    if network.error is not None:
        raise network.error


class _Exchange:
    """Hands tasks from the thread in which a learner trains to that of the loop, one at a time."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[tuple[ClientTask, Event] | None] = SimpleQueue()
        self._closed = False

    def train(self, task: ClientTask) -> None:
        """Hand a task over, and wait until the loop has done it."""
        done = Event()
        self._tasks.put((task, done))
        if not self._closed:
            done.wait()

    def tasks(self) -> Iterator[ClientTask]:
        """The tasks handed over, until there are no more."""
        while (found := self._tasks.get()) is not None:
            task, done = found
            try:
                yield task
            finally:
                done.set()

    def end(self) -> None:
        """There are no more tasks."""
        self._tasks.put(None)

    def close(self) -> None:
        """Wait for no task any more."""
        self._closed = True
        while not self._tasks.empty():
            if (found := self._tasks.get()) is not None:
                found[1].set()


class _Network:
    """A site's connection in a thread of its own, which ends when `take_part` does.

    `error` is what it has ended with; None means that the run has ended.
    """

    def __init__(self, take_part: Callable[[], Awaitable[None]], ended: Callable[[], None]) -> None:
        self.error: Exception | None = None
        self._take_part, self._ended, self._begun = take_part, ended, Event()
        self._thread = Thread(target=self._run, name="offbeat-network", daemon=True)
        self._thread.start()
        self._begun.wait()

    def stop(self) -> None:
        """Leave, and wait until the connection is closed."""
        # The event loop may have ended.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._connected())
        except asyncio.CancelledError:
            pass
        except Exception as error:
            # The error is raised where the tasks are asked for.
            self.error = error
        finally:
            self._ended()

    async def _connected(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._loop, self._task = asyncio.get_running_loop(), task
        self._begun.set()
        await self._take_part()
