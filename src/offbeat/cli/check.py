"""The command that tries out a site's set-up."""

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
from offbeat.cli.site_access import Access, Address, KitOption
from offbeat.core.extras import requires_extra


def check(
    address: Address = None,
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
    as_json: AsJson = False,
) -> None:
    """Test a site's set-up without taking part.

    Tested are the address, TLS, the token, the clock, the throughput, the disk and the data.
    """
    with requires_extra("net"):
        from offbeat.net.check import check_access, check_disk, check_loading, check_throughput, check_way
        from offbeat.net.proxy import proxy_for

    access = Access(address, kit, name, token_file, ca, cert, key, proxy, insecure_plaintext)
    credentials, way = access.credentials(), proxy_for(access.place, proxy)
    results = list(check_way(access.place, credentials, way))
    if all(result.passed for result in results):
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


def _samples(data: str) -> str:
    from offbeat.data.site import site_data

    return f"{site_data(data).samples(0)} samples to train on"


def _policy(file: Path) -> str:
    make_policy(file, None)
    return f"{file} is a policy"
