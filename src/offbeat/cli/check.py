"""The command that tries out a site's set-up, and shows its kit."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.check_results import show_results
from offbeat.cli.common_options import AccessSets, AsJson, SiteName, SiteState
from offbeat.cli.join import make_policy
from offbeat.cli.keys import KeyGroup, grouped_sets
from offbeat.cli.kit import show_kit
from offbeat.cli.site_access import ACCESS, Access, Target
from offbeat.core.errors import UsageError
from offbeat.core.extras import requires_extra

GROUPS = {"access": KeyGroup(ACCESS.module, ACCESS.cls, (("give_up_after", "check connects once"),))}
SECTIONS = {
    "Site": ("target", "data", "state", "policy", "name", "sets"),
    "Kit": ("offline", "policy_out"),
    "TLS and access": ("access.*",),
}


def check(
    target: Target,
    data: Annotated[str | None, typer.Option(metavar="DATA", help="the site's data, as for join")] = None,
    state: SiteState = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="the site's policy (YAML), as for join")
    ] = None,
    name: SiteName = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="connect to nothing: show the kit, all but its secret")
    ] = False,
    policy_out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="with --offline: file for the policy in the kit"),
    ] = None,
    sets: AccessSets = None,
    as_json: AsJson = False,
) -> None:
    """Test a site's set-up without taking part.

    Tested are the address, TLS, the token, the clock, the throughput, the disk and the data.
    """
    settings = grouped_sets(sets, GROUPS)
    if offline:
        _show(Path(target), policy_out, as_json)
        return
    if policy_out is not None:
        raise UsageError(f"--out {policy_out} is for the policy in a kit: give KIT --offline too")
    with requires_extra("net"):
        from offbeat.net.check import (
            CheckResult,
            check_access,
            check_disk,
            check_loading,
            check_throughput,
            check_way,
        )
        from offbeat.net.proxy import proxy_for

        access = Access.of(target, name, settings.get("access", {}))
    credentials, way = access.credentials(), proxy_for(access.place, access.options.proxy)
    results = list(check_way(access.place, credentials, way))
    reached = all(result.passed for result in results)
    if access.fingerprint is not None:
        # What the site and the server compare, before anything that the server answers.
        results.insert(0, CheckResult("fingerprint", True, access.fingerprint))
    if reached:
        results += asyncio.run(check_access(access.place, credentials, way))
    if all(result.passed for result in results):
        results.append(asyncio.run(check_throughput(access.place, credentials, way)))
    if state is not None:
        results.append(check_disk(state))
    if data is not None:
        results.append(check_loading("data", lambda: _samples(data)))
    if policy is not None:
        results.append(check_loading("policy", lambda: _policy(policy)))
    show_results(results, as_json=as_json)


def _show(kit: Path, policy_out: Path | None, as_json: bool) -> None:
    """Print a kit, and write the policy in it."""
    with requires_extra("net"):
        from offbeat.net.kit import KitFile

    found = KitFile(kit).read()
    if policy_out is not None:
        if policy_out.exists():
            raise UsageError(f"--out {policy_out} is there already: delete it, or choose another name")
        policy_out.write_text(found.policy, encoding="utf-8")
    show_kit(found, as_json=as_json)


def _samples(data: str) -> str:
    from offbeat.data.site import site_data

    return f"{site_data(data).samples(0)} samples to train on"


def _policy(file: Path) -> str:
    make_policy(file, None)
    return f"{file} is a policy"
