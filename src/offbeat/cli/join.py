"""The command that takes part in a run as a site."""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offbeat.cli.allow import AllowOption, allowed_names
from offbeat.cli.common_options import (
    Certificate,
    CertificateKey,
    GiveUpAfter,
    InsecurePlaintext,
    Log,
    LogLevel,
    ProxyOption,
    ServerCA,
    TokenFile,
    file_option,
    seconds_or_never,
)
from offbeat.cli.console import out
from offbeat.cli.event_loop import run_until_interrupted
from offbeat.cli.keys import KeyGroup, split_sets
from offbeat.cli.site_access import Access, Address, KitOption
from offbeat.core.errors import UsageError, reason_of
from offbeat.core.extras import requires_extra
from offbeat.net.backoff import GIVE_UP_AFTER
from offbeat.net.monitor.logs import setup_logs
from offbeat.net.notify import at_work

if TYPE_CHECKING:
    from offbeat.local.loop_learner import LoopLearner
    from offbeat.local.torch_learner import TorchLearner
    from offbeat.net.client.policy import SitePolicy

_log = logging.getLogger(__name__)
GROUPS = {
    "policy": KeyGroup("offbeat.net.client.policy", "SitePolicy"),
    "examples": KeyGroup("offbeat.local.examples_privacy", "ExamplesPrivacy"),
    "site": KeyGroup("offbeat.net.client.site_options", "SiteOptions"),
}
SECTIONS = {
    "Run": (
        "address", "data", "validation", "model", "learner", "allow", "name", "state", "keep_model", "device",
        "give_up_after", "sets", "site.*",
    ),
    "Privacy (experimental, not reviewed)": (
        "policy", "accept", "helper", "helper_state", "helper_token_file", "policy.*", "examples.*",
    ),
    "TLS and access": ("kit", "token_file", "ca", "cert", "key", "proxy", "insecure_plaintext"),
    "Logging": ("log", "log_level"),
}  # fmt: skip


def join(
    address: Address = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="DATASET, DATASET:GROUP, DATASET:K/N (the Kth of N equal shares), or module:function",
        ),
    ] = None,
    validation: Annotated[
        float, typer.Option(min=0.0, help="share of the data that is held out for evaluations")
    ] = 0.0,
    model: Annotated[
        str | None,
        typer.Option(metavar="module:function", help="the site's own model, in place of the run's"),
    ] = None,
    learner: Annotated[
        str | None,
        typer.Option(metavar="module:function", help="the site's own data, model, loss and training"),
    ] = None,
    allow: AllowOption = None,
    name: Annotated[str | None, typer.Option(help="the site's name, if no credential contains it")] = None,
    state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="directory for the site's state and pending update")
    ] = None,
    kit: KitOption = None,
    token_file: TokenFile = None,
    ca: ServerCA = None,
    cert: Certificate = None,
    key: CertificateKey = None,
    proxy: ProxyOption = None,
    insecure_plaintext: InsecurePlaintext = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N or mps")] = "cpu",
    give_up_after: GiveUpAfter = GIVE_UP_AFTER,
    keep_model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="file for the model that the run shares (.safetensors)"),
    ] = None,
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
    helper: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="also help with secure aggregation, under this name"),
    ] = None,
    helper_state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="directory for the helper's key; never restore it from a copy"),
    ] = None,
    helper_token_file: Annotated[
        Path | None, file_option("of the helper, as `offbeat enrol` made it")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="one of the keys site.… and policy.…, or of examples.…: privacy of each example from "
            "everybody (DP-SGD), which needs --state",
        ),
    ] = None,
    log: Log = "auto",
    log_level: LogLevel = "info",
) -> None:
    """Take part in a run as a site; its data stay there."""
    setup_logs(log, log_level)
    ungrouped, settings = split_sets(sets, GROUPS)
    if ungrouped:
        raise UsageError(
            f"--set {ungrouped[0]} is not allowed: give one of {', '.join(f'{g}.KEY' for g in GROUPS)}"
        )
    if (helper is None) != (helper_state is None):
        raise UsageError("--helper and --helper-state belong together: give both, or neither")
    if (data is None) == (learner is None):
        raise UsageError("give --data, or --learner, which has data of its own")
    if model is not None and (learner is not None or ":" not in model):
        raise UsageError(f"--model {model}: give module:function, and no --learner, which has its own")
    give_up = seconds_or_never(give_up_after)
    source = f"--data {data}" if learner is None else f"--learner {learner}"
    if address is not None or kit is not None:
        # Loading PyTorch may take a slow machine a minute.
        _log.info("joining %s with %s: loading PyTorch", address or f"the server of {kit}", source)
    with requires_extra("net"):
        from offbeat.net.client.connector import connector
        from offbeat.net.client.join import join as join_run
        from offbeat.net.client.site_options import SiteOptions
    from offbeat.core.validation import validated
    from offbeat.data.site import site_data
    from offbeat.local.device import check_device
    from offbeat.local.examples_privacy import ExamplesPrivacy
    from offbeat.models.specs import NamedModel

    site_options = validated(SiteOptions, settings.get("site", {}), "--set site")
    access = Access(address, kit, name, token_file, ca, cert, key, proxy, insecure_plaintext, state)
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
        validation=validation, state=state, device=device, threads=site_options.threads,
        give_up_after=give_up,
        keep_model=keep_model, min_step_seconds=site_options.min_step_seconds, policy=own_policy,
        examples_privacy=examples, accept=accept or (),
    )  # fmt: skip
    _log.info("connecting to %s", access.place)
    # Files that the site's own code writes are private.
    os.umask(0o077)
    site = _as_service(taking_part, access.place)
    if helper is None:
        reason = run_until_interrupted(site)
    else:
        with requires_extra("secure", "secure aggregation: "):
            from offbeat.net.secure.helping import help_run
        own_helper = access.credentials_of(helper, helper_token_file)
        assert helper_state is not None
        helping = help_run(
            connector(access.place, credentials=own_helper, proxy=proxy),
            helper,
            helper_state,
            give_up_after=give_up,
        )
        reason = run_until_interrupted(_both(site, helping))
    out.print(f"the run has ended: {reason}", markup=False)


async def _as_service(taking_part: Callable[[], Coroutine[Any, Any, str]], address: str) -> str:
    """Take part, and tell the service manager that started this process how it stands."""
    async with at_work(f"takes part in a run at {address}"):
        return await taking_part()


async def _both(taking_part: Coroutine[Any, Any, str], helping: Coroutine[Any, Any, str]) -> str:
    """Take part as a site, and help; a helper that fails ends both, and so does a site."""
    reasons = await asyncio.gather(taking_part, helping)
    return reasons[0]


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
