"""The command that takes part in a run as a site."""

import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offbeat.cli.allow import AllowOption, allowed_names
from offbeat.cli.common_options import Device, Log, LogLevel, SiteName, SiteState
from offbeat.cli.completion import dataset_names
from offbeat.cli.console import out
from offbeat.cli.event_loop import run_until_interrupted
from offbeat.cli.keys import KeyGroup, grouped_sets
from offbeat.cli.site_access import ACCESS, Access, Target
from offbeat.core.errors import UsageError, reason_of
from offbeat.core.extras import requires_extra
from offbeat.net.monitor.logs import setup_logs
from offbeat.net.notify import at_work

if TYPE_CHECKING:
    from offbeat.local.loop_learner import LoopLearner
    from offbeat.local.torch_learner import TorchLearner
    from offbeat.net.client.policy import SitePolicy

_log = logging.getLogger(__name__)
GROUPS = {
    "access": ACCESS,
    "policy": KeyGroup("offbeat.net.client.policy", "SitePolicy"),
    "examples": KeyGroup("offbeat.local.examples_privacy", "ExamplesPrivacy"),
    "site": KeyGroup("offbeat.net.client.site_options", "SiteOptions"),
}
SECTIONS = {
    "Run": ("target", "data", "model", "learner", "allow", "name", "state", "device", "sets", "site.*"),
    "Privacy (experimental, not reviewed)": ("policy", "accept", "policy.*", "examples.*"),
    "TLS and access": ("access.*",),
    "Logging": ("log", "log_level"),
}


def join(
    target: Target,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="DATASET, DATASET:GROUP, DATASET:K/N (the Kth of N equal shares), or module:function",
            autocompletion=dataset_names,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="module:function", help="the site's own model, in place of the run's"),
    ] = None,
    learner: Annotated[
        str | None,
        typer.Option(metavar="module:function", help="the site's own data, model, loss and training"),
    ] = None,
    allow: AllowOption = None,
    name: SiteName = None,
    state: SiteState = None,
    device: Device = "cpu",
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="the site's policy (YAML); the keys policy.… take precedence"),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CODE",
            help="accept less privacy, other helpers' keys or another run, by the code in a refusal; "
            "may be repeated",
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="one of the keys site.…, access.… and policy.…, or of examples.…: privacy of each example "
            "from everybody (DP-SGD), which needs --state",
        ),
    ] = None,
    log: Log = "auto",
    log_level: LogLevel = "info",
) -> None:
    """Take part in a run as a site; its data stay there."""
    setup_logs(log, log_level)
    settings = grouped_sets(sets, GROUPS)
    if (data is None) == (learner is None):
        raise UsageError("give --data, or --learner, which has data of its own")
    if model is not None and (learner is not None or ":" not in model):
        raise UsageError(f"--model {model}: give module:function, and no --learner, which has its own")
    from offbeat.core.validation import validated
    from offbeat.runs.record import is_site

    with requires_extra("net"):
        access = Access.of(target, name, settings.get("access", {}), state)
        from offbeat.net.client.site_options import SiteOptions
    options = validated(SiteOptions, settings.get("site", {}), "--set site")
    if state is None or not is_site(state):
        # A site that the server has accepted before tries again, whatever is wrong meanwhile.
        access.check_way()
    source = f"--data {data}" if learner is None else f"--learner {learner}"
    # Loading PyTorch may take a slow machine a minute.
    _log.info("joining %s with %s: loading PyTorch", access.place, source)
    with requires_extra("net"):
        from offbeat.net.client.join import join as join_run
    from offbeat.data.site import site_data
    from offbeat.local.device import check_device
    from offbeat.local.examples_privacy import ExamplesPrivacy
    from offbeat.models.specs import NamedModel

    connect = access.connect()
    check_device(device, "--device")
    allowed = allowed_names(allow)
    _log.info("loading %s", source)
    dataset = None if data is None else site_data(data)
    own_learner = None if learner is None else _make_learner(learner)
    own_policy = make_policy(policy, settings.get("policy"))
    examples = None
    if "examples" in settings:
        examples = validated(ExamplesPrivacy, settings["examples"], "--set examples")
    if examples is not None and state is None:
        raise UsageError("--set examples needs --state: what is spent must outlive the process")
    taking_part = partial(
        join_run, connect, dataset,
        model=None if model is None else NamedModel(model), learner=own_learner, allow=allowed,
        validation=options.validation, state=state, device=device, threads=options.threads,
        give_up_after=access.options.give_up_after, keep_model=options.keep_model,
        min_step_seconds=options.min_step_seconds, policy=own_policy, examples_privacy=examples,
        accept=accept or (),
    )  # fmt: skip
    _log.info("connecting to %s", access.place)
    # Files that the site's own code writes are private.
    os.umask(0o077)
    reason = run_until_interrupted(_as_service(taking_part, access.place))
    out.print(f"the run has ended: {reason}", markup=False)


async def _as_service(taking_part: Callable[[], Coroutine[Any, Any, str]], address: str) -> str:
    """Take part, and tell the service manager that started this process how it stands."""
    async with at_work(f"takes part in a run at {address}"):
        return await taking_part()


def make_policy(file: Path | None, changes: Mapping[str, Any] | None) -> "SitePolicy | None":
    """The policy of the file of `--policy` with the changes of `--set`; None without either."""
    from offbeat.core.validation import validated
    from offbeat.documents import parse_yaml, read_text
    from offbeat.net.client.policy import SitePolicy

    if file is None:
        return None if changes is None else validated(SitePolicy, changes, "--set policy")
    try:
        document = parse_yaml(read_text(file), f"--policy {file}")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--policy {file} cannot be read: {reason_of(error)}") from None
    # A template is empty for YAML, since each of its keys is a comment.
    document = {} if document is None else document
    if not isinstance(document, dict):
        raise UsageError(f"--policy {file} is not a mapping, such as min_batch_size: 8")
    changed = "" if changes is None else ", changed by --set"
    return validated(SitePolicy, document | dict(changes or {}), f"--policy {file}{changed}")


def _make_learner(text: str) -> "TorchLearner | LoopLearner":
    """The learner that a function of the site's makes."""
    from offbeat.local.loop_learner import LoopLearner
    from offbeat.local.torch_learner import TorchLearner
    from offbeat.named import load_named, named_errors

    make = load_named(text, "--learner")
    with named_errors(text, "--learner"):
        learner = make()
    if not isinstance(learner, TorchLearner | LoopLearner):
        raise UsageError(
            f"--learner {text} returned a {type(learner).__name__}: it must return a TorchLearner or a "
            "LoopLearner"
        )
    return learner
