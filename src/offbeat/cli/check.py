"""The command that tries out a site's set-up, and shows its kit."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.check_results import show_results
from offbeat.cli.common_options import (
    AsJson,
    Certificate,
    CertificateKey,
    InsecurePlaintext,
    ProxyOption,
    ServerCA,
    TokenFile,
)
from offbeat.cli.join import make_policy
from offbeat.cli.kit import show_kit
from offbeat.cli.site_access import Access, KitOption
from offbeat.core.errors import UsageError
from offbeat.core.extras import requires_extra

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="KIT|ADDRESS", help="the site's kit, or the server: HOST:PORT, [IPV6]:PORT or unix:PATH"
    ),
]


def check(
    target: Target = None,
    data: Annotated[str | None, typer.Option(metavar="DATA", help="the site's data, as for join")] = None,
    state: Annotated[Path | None, typer.Option(metavar="DIR", help="directory for the site's state")] = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="the site's policy (YAML), as for join")
    ] = None,
    name: Annotated[str | None, typer.Option(help="the site's name, if no credential contains it")] = None,
    kit: KitOption = None,
    token_file: TokenFile = None,
    ca: ServerCA = None,
    cert: Certificate = None,
    key: CertificateKey = None,
    proxy: ProxyOption = None,
    insecure_plaintext: InsecurePlaintext = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="connect to nothing: show the kit, all but its secret")
    ] = False,
    print_policy: Annotated[
        bool, typer.Option("--print-policy", help="connect to nothing: print the policy in the kit")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Test a site's set-up without taking part.

    Tested are the address, TLS, the token, the clock, the throughput, the disk and the data.
    """
    if offline or print_policy:
        _show(kit or (None if target is None else Path(target)), print_policy, as_json)
        return
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

    if kit is None and target is not None and Path(target).is_file():
        kit, target = Path(target), None
    access = Access(target, kit, name, token_file, ca, cert, key, proxy, insecure_plaintext)
    credentials, way = access.credentials(), proxy_for(access.place, proxy)
    results = list(check_way(access.place, credentials, way))
    reached = all(result.passed for result in results)
    if kit is not None:
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


def _show(kit: Path | None, print_policy: bool, as_json: bool) -> None:
    """Print a kit, or the policy in it."""
    with requires_extra("net"):
        from offbeat.net.kit import KitFile

    if kit is None:
        raise UsageError("--offline and --print-policy show a kit: give KIT, the kit's file")
    found = KitFile(kit).read()
    if print_policy:
        print(found.policy, end="")  # noqa: T201
    else:
        show_kit(found, as_json=as_json)


def _samples(data: str) -> str:
    from offbeat.data.site import site_data

    return f"{site_data(data).samples(0)} samples to train on"


def _policy(file: Path) -> str:
    make_policy(file, None)
    return f"{file} is a policy"
