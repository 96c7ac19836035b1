"""Join a run as a site."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from offbeat.core.events import ClientId
from offbeat.data.dataset import Dataset, label_counts
from offbeat.net.backoff import GIVE_UP_AFTER
from offbeat.net.client.client import Connect, SiteClient
from offbeat.net.client.store import SiteStore
from offbeat.net.client.task import TrainingContext
from offbeat.net.client.worker import Prepare
from offbeat.net.clock import Clock
from offbeat.net.run_spec import read_run_spec


async def join(
    connect: Connect,
    data: Dataset,
    *,
    state: str | Path | None = None,
    device: str = "cpu",
    threads: int = 1,
    tell_labels: bool = True,
    give_up_after: float | None = GIVE_UP_AFTER,
    min_step_seconds: float = 0.0,
    clock: Clock | None = None,
) -> str:
    """Train on one's own data in a server's run until it finishes.

    Args:
        connect: Opens a connection to the server.
        data: The site's training data.
        state: Directory of the site's state and pending update, which survive the process there.
        device: PyTorch device.
        threads: PyTorch's threads; more may be faster, and change the last bits of the results.
        tell_labels: Tell the server the number of samples of each class.
        give_up_after: Seconds without a server after which to fail; None for never.
        min_step_seconds: Least duration of a local step, to try out an algorithm with slow sites.
        clock: Source of time.

    Returns:
        The reason of the run's end.

    Raises:
        UsageError: The data do not fit what the run asks for.
        RunError: The server refuses the site, or cannot be reached.
    """
    await asyncio.to_thread(warm_up)
    labels = label_counts(data) if tell_labels else None
    site = SiteClient(
        connect, make_context(data, device, threads, min_step_seconds), len(data),
        tuple(labels) if labels else None,
        store=SiteStore(Path(state) if state is not None else None), clock=clock, give_up_after=give_up_after,
    )  # fmt: skip
    return await site.run()


def warm_up() -> None:
    """Take a step on nothing: PyTorch loads parts of itself at the first, as if the site were slow."""
    layer = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    layer(torch.ones(1, 1)).sum().backward()
    optimizer.step()


def make_context(
    data: Dataset, device: str = "cpu", threads: int = 1, min_step_seconds: float = 0.0
) -> Prepare:
    """A function that makes a training context from a server's run spec and these data."""

    def prepare(document: Mapping[str, Any], client: ClientId) -> TrainingContext:
        torch.set_num_threads(threads)
        return TrainingContext.of(read_run_spec(document, data), data, client, device, min_step_seconds)

    return prepare
