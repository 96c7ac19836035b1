"""Taking part in a run as a site."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from offbeat.core.events import ClientId
from offbeat.data.dataset import Dataset
from offbeat.net.backoff import GIVE_UP_AFTER
from offbeat.net.client.client import Connect, SiteClient
from offbeat.net.client.store import SiteStore
from offbeat.net.client.task import SiteLearner, TrainingContext
from offbeat.net.client.throttle import Throttled
from offbeat.net.client.worker import Prepare
from offbeat.net.clock import Clock
from offbeat.net.run_spec import make_learner, read_run_spec


async def join(
    connect: Connect,
    data: Dataset,
    *,
    state: str | Path | None = None,
    device: str = "cpu",
    threads: int = 1,
    tell_labels: bool = True,
    patience: float | None = GIVE_UP_AFTER,
    pace: float = 0.0,
    clock: Clock | None = None,
) -> str:
    """Train on one's own data in a server's run until it ends; returns why it ended.

    `connect` opens a link to the server. With a directory `state` what the site keeps from task to task, and
    an update that is not acknowledged yet, survive its end. `threads` are PyTorch's: more may be faster, and
    change the last bits of the results. `tell_labels`: tell the server how many samples of each class there
    are. It gives up after `patience` seconds without a server (none: never). A local step takes at least
    `pace` seconds, to try out how an algorithm takes slow sites.

    Raises `UsageError` where the data are not what the run asks for, `RunError` where the server refuses.
    """
    await asyncio.to_thread(warm_up)
    labels = torch.bincount(data.y, minlength=data.classes).tolist() if tell_labels else None
    site = SiteClient(
        connect, make_context(data, device, threads, pace), len(data), tuple(labels) if labels else None,
        store=SiteStore(Path(state) if state is not None else None), clock=clock, patience=patience,
    )  # fmt: skip
    return await site.run()


def warm_up() -> None:
    """A step on nothing: PyTorch loads parts of itself at the first, which would look like a slow site."""
    layer = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    layer(torch.ones(1, 1)).sum().backward()
    optimizer.step()


def make_context(data: Dataset, device: str = "cpu", threads: int = 1, pace: float = 0.0) -> Prepare:
    """What makes a site's workshop of a server's plan: the plan's model and algorithm on these data."""

    def prepare(document: Mapping[str, Any], client: ClientId) -> TrainingContext:
        torch.set_num_threads(threads)
        plan = read_run_spec(document, data)
        algorithm = plan.make_algorithm()
        learner: SiteLearner = make_learner(plan, data, client, device)
        if pace:
            learner = Throttled(learner, pace)
        return TrainingContext(client, learner, algorithm.objective, algorithm.codec)

    return prepare
