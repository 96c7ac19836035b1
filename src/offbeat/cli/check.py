"""The command that tries out a site's set-up, and shows its kit."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.cli.common_options import AccessSets, AsJson, SiteName, SiteState
from offbeat.cli.join import make_policy
from offbeat.cli.keys import KeyGroup, grouped_sets
from offbeat.cli.kit import show_kit
from offbeat.cli.show_checks import show_checks
from offbeat.cli.site_access import ACCESS, Access, Target
from offbeat.core.errors import UsageError
from offbeat.core.extras import requires_extra

if TYPE_CHECKING:
    from offbeat.net.site_checks import SiteSetUp

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
        from offbeat.net.checks import Check
        from offbeat.net.proxy import proxy_for
        from offbeat.net.site_checks import SITE_CHECKS, SiteSetUp

        access = Access.of(target, name, settings.get("access", {}))
    proxy = proxy_for(access.place, access.options.proxy)
    set_up = SiteSetUp(access.place, access.credentials(), proxy, access.fingerprint, state, data, policy)
    show_checks((*SITE_CHECKS, Check("data", _data), Check("policy", _policy)), set_up, as_json=as_json)


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


def _data(set_up: "SiteSetUp") -> str | None:
    if set_up.data is None:
        return None
    from offbeat.data.site import site_data

    return f"{site_data(set_up.data).samples(0)} samples to train on"


def _policy(set_up: "SiteSetUp") -> str | None:
    if set_up.policy is None:
        return None
    make_policy(set_up.policy, None)
    return f"{set_up.policy} is a policy"
