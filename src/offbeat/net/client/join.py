"""Join a run as a site."""

import asyncio
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from offbeat.allowed import NOTHING, Allow
from offbeat.core.errors import RunError, UsageError, reason_of
from offbeat.core.events import ClientId
from offbeat.core.model import Tensors
from offbeat.documents import user_path
from offbeat.local.examples_privacy import ExamplesPrivacy, check_delta
from offbeat.local.loop_learner import LoopLearner
from offbeat.local.torch_learner import TorchLearner
from offbeat.local.training import Training
from offbeat.net.auth.credentials import SiteCredentials
from offbeat.net.backoff import GIVE_UP_AFTER
from offbeat.net.client.connector import connector
from offbeat.net.client.examples_ledger import ExamplesLedger
from offbeat.net.client.first_batch import trying
from offbeat.net.client.policy import SitePolicy
from offbeat.net.client.reconnecting import Connect, OfSite
from offbeat.net.client.sent_log import SentLog
from offbeat.net.client.site import OwnModel, Site
from offbeat.net.client.site_client import SiteClient
from offbeat.net.client.store import SiteStore
from offbeat.net.client.task import TrainingContext
from offbeat.net.client.told_statistics import ToldStatistics
from offbeat.net.client.worker import Prepare
from offbeat.net.clock import Clock
from offbeat.net.run_spec import read_run_spec
from offbeat.net.wire.unfinished import DIRECTORY
from offbeat.runs.durable_files import sync_directory
from offbeat.runs.files import write_tensors
from offbeat.runs.permissions import why_unwritable

KeepModel = str | Path | Callable[[Tensors], object]
"""Where the model that a run shares goes: the name of a file, or a function of its tensors by name."""


async def join(
    server: str | Connect,
    data: Any = None,
    *,
    name: str | None = None,
    credentials: SiteCredentials | None = None,
    model: OwnModel | None = None,
    learner: TorchLearner | LoopLearner | None = None,
    allow: Allow = NOTHING,
    validation: float = 0.0,
    state: str | Path | None = None,
    device: str = "cpu",
    threads: int = 1,
    tell_labels: bool = True,
    give_up_after: float | None = GIVE_UP_AFTER,
    keep_model: KeepModel | None = None,
    min_step_seconds: float = 0.0,
    policy: SitePolicy | None = None,
    examples_privacy: ExamplesPrivacy | None = None,
    accept: Collection[str] = (),
    clock: Clock | None = None,
) -> str:
    """Train on one's own data in a server's run until it finishes.

    Args:
        server: "HOST:PORT", or a function that opens a connection.
        data: The site's data, whatever `as_samples` takes, or a pair of these: to train and to evaluate on.
        name: The site's name, if no credential has it.
        credentials: The site's credentials for an address. They have the site's name.
        model: The site's own model, in place of the run's: a module, or a function that makes a module from
            the run's options. None means the model that the run names.
        learner: The site's own learner of one client: data, model, loss and training options in place of the
            run's. Its layout, frozen parameters, loss and metrics must be the run's. For a `LoopLearner`,
            which trains with the site's own loop, only the layout must be the run's.
        allow: Names that the run may use: "module", whose exposed functions (`offbeat.expose`) may be called,
            or "module:function". A name from the server alone never makes a site import anything.
        validation: Share of `data` in [0, 1) on which the site does not train. The site evaluates models on
            these samples when the server asks, and sends numbers only. They are the same samples in every
            run.
        state: Directory of the site's state, its pending update and the record of what has left the site,
            which outlive the process there. It is of one site: another one's is refused.
        device: PyTorch device. A learner has its own.
        threads: Number of PyTorch's threads. More threads may be faster, and change the last bits of the
            results.
        tell_labels: Whether to tell the server the number of samples of each class.
        give_up_after: Seconds without a server, or in which one message does not get through, after which to
            fail. None means never.
        keep_model: Where to keep the model that the run shares: a .safetensors file, or a function of the
            tensors by name. The tensors include those that stay at the site (personal ones, its own buffers),
            and not the frozen ones. The run must share its model (`ServerOptions.share_model`).
        min_step_seconds: Shortest duration of a local step, to try out an algorithm with slow sites.
        policy: What the site refuses to train, to evaluate and to send. None means the default policy.
        examples_privacy: Protection of each of the site's examples from everybody, including the server. The
            site keeps in `state` what is spent. None means no such protection.
        accept: Codes of what the site's operator accepts: less privacy than a run has promised, other keys of
            the helpers, another run with the same data, statistics of other data, or a new name of the site
            whose `state` it is. The error message of each refusal has its code.
        clock: Source of time.

    Returns:
        The reason of the run's end.

    Raises:
        UsageError: Data, model or learner do not fit what the run asks for, or the policy refuses it.
        RunError: The server refuses the site, or cannot be reached.
    """
    connect = connector(server, name, credentials, state=None if state is None else user_path(state))
    keep = None if keep_model is None else model_keeper(keep_model)
    site = Site.of(data, model, learner, allow, device, validation, policy)
    await asyncio.to_thread(warm_up)
    if examples_privacy is not None and state is None:
        raise UsageError("examples privacy needs state: what is spent must outlive the process")
    if examples_privacy is not None:
        # The check comes before any connection: its message to a server would give the number of examples.
        check_delta(examples_privacy, site.samples)
    own_name = connect.site if isinstance(connect, OfSite) else None
    store = SiteStore(None if state is None else user_path(state), own_name, accept)
    examples = None
    if state is not None:
        try:
            # Until this process held the directory, another one may have written there.
            site = replace(site, told=ToldStatistics(user_path(state), accept))
            if examples_privacy is not None:
                examples = ExamplesLedger(examples_privacy, user_path(state))
        except BaseException:
            store.close()
            raise
    labels = site.labels if tell_labels and examples is None else None
    client = SiteClient(
        connect, make_context(site, threads, min_step_seconds, examples), site.told_samples,
        tuple(labels) if labels else None, steps_per_epoch=site.steps_per_epoch,
        held_out=0 if examples is not None else site.held_out, store=store, clock=clock,
        give_up_after=give_up_after, keep=keep,
        sent_log=SentLog(None if state is None else user_path(state), site.policy),
    )  # fmt: skip
    reason = await client.run()
    if state is not None:
        # Nobody goes on with a model of a run that has ended.
        await asyncio.to_thread(shutil.rmtree, user_path(state) / DIRECTORY, ignore_errors=True)
    return reason


def model_keeper(target: KeepModel) -> Callable[[Tensors], object]:
    """The function that keeps the model: `target` if it is a function, else one that writes a file.

    Raises:
        UsageError: No such file can be written.
    """
    if callable(target):
        return target
    path = user_path(target)
    why = why_unwritable(path.parent)
    if path.suffix != ".safetensors" or path.is_dir():
        why = "give a name that ends in .safetensors, in a directory that is there"
    if why is not None:
        raise UsageError(f"keep_model = {path} cannot be written: {why}")

    def write(tensors: Tensors) -> None:
        try:
            write_tensors(path, tensors)
            sync_directory(path.parent)
        except OSError as error:
            raise RunError(f"cannot write the model to {path}: {reason_of(error)}") from None

    return write


def warm_up() -> None:
    """Take a step on nothing: PyTorch loads parts of itself at the first, as if the site were slow."""
    layer = nn.Linear(1, 1)
    optimizer = Training().build(layer.parameters(), 0.1)
    layer(torch.ones(1, 1)).sum().backward()
    optimizer.step()


def make_context(
    site: Site, threads: int = 1, min_step_seconds: float = 0.0, examples: ExamplesLedger | None = None
) -> Prepare:
    """A function that makes a site's training context from a server's run spec."""

    def prepare(document: Mapping[str, Any], client: ClientId) -> TrainingContext:
        torch.set_num_threads(threads)
        with trying():
            spec = read_run_spec(document)
            context = TrainingContext.of(spec, site, client, min_step_seconds, examples)
            context.check_data()
            return context.evaluating(threads)

    return prepare
