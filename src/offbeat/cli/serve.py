"""The command that serves a run to sites."""

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offbeat.cli import common_options
from offbeat.cli.allow import AllowOption, allowed_names, recipe_folder
from offbeat.cli.console import out, see_with
from offbeat.cli.dashboard import dashboard_of
from offbeat.cli.event_loop import run_until_interrupted
from offbeat.cli.keys import KeyGroup, split_sets
from offbeat.cli.own_credentials import with_own
from offbeat.cli.show_checks import show_checks
from offbeat.cli.state_dir import SERVER, SIGN_SECONDS, stopped_by, touch
from offbeat.core.errors import UsageError
from offbeat.core.extras import requires_extra
from offbeat.net.monitor.logs import setup_logs
from offbeat.net.notify import at_work
from offbeat.runs.own_files import write_own
from offbeat.units import duration_text

if TYPE_CHECKING:
    from offbeat.net.monitor.scrapes import Scrapes
    from offbeat.net.server.serve import RunServer
    from offbeat.net.server.server_options import ServerOptions
    from offbeat.recipes.recipe import Recipe

ADDRESS = "127.0.0.1:7117"
_OF_THE_RECIPE = "it is a key of the recipe, so give --set {}… without server"
GROUPS = {
    "server": KeyGroup(
        "offbeat.net.server.server_options", "ServerOptions",
        (
            ("clients", "give --sites N"),
            *((name, _OF_THE_RECIPE.format(name)) for name in ("until", "evaluate", "guard")),
        ),
    ),
    "server.unmasking": KeyGroup("offbeat.secure.unmasking", "UnmaskingTimes"),
}  # fmt: skip
SECTIONS = {
    "Run": (
        "recipe", "state", "mirror", "test", "sets", "scales", "callbacks", "allow",
        "server.rollback", "server.share_model", "server.keep_updates", "server.cache_memory",
        "server.mirror_required", "server.archive",
    ),
    "Sites": (
        "listen", "sites", "server.lease", "server.task_timeout", "server.evaluation_timeout",
        "server.norm_bound", "server.max_samples", "server.remembered", "server.max_consecutive_failures",
    ),
    "Privacy (experimental, not reviewed)": (
        "server.helpers", "server.unmasking.timeout", "server.unmasking.give_up",
    ),
    "TLS and access": (
        "certificate", "key", "client_ca", "revoked", "tokens", "insecure", "by",
    ),
    "Watching": ("dashboard",),
    "Logging": ("log", "log_level"),
    "Testing": ("check", "as_json"),
}  # fmt: skip
PLAIN = "http://"
"""Beginning of the address of a page without TLS."""


def serve(
    recipe: common_options.RecipeName,
    state: common_options.StateDirectory,
    mirror: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="a second directory, on another disk, that loses nothing acknowledged"
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="ADDRESS", help="address for sites: HOST:PORT, [IPV6]:PORT or unix:PATH")
    ] = ADDRESS,
    sites: Annotated[
        int | None, typer.Option(min=1, help="number of sites to wait for; default: the recipe's clients")
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(
            metavar="DATA", help="DATASET, module:function or none; default: the recipe's test data"
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="change the recipe, or one of the keys server.…"),
    ] = None,
    scales: common_options.Scales = None,
    certificate: Annotated[
        Path | None, typer.Option("--cert", metavar="FILE", help="the server's certificate (PEM)")
    ] = None,
    key: Annotated[Path | None, common_options.file_option("its key (PEM)")] = None,
    client_ca: Annotated[
        Path | None, common_options.file_option("who signs the sites' certificates (PEM)")
    ] = None,
    revoked: Annotated[
        Path | None,
        common_options.file_option("the sites' certificates that are revoked: a CRL, or serial numbers"),
    ] = None,
    tokens: Annotated[
        Path | None, common_options.file_option("sites' tokens, which `offbeat enrol` writes")
    ] = None,
    insecure: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT",
            help="beyond loopback, plaintext: no TLS, all can be read and changed; any-name: anyone may take "
            "part under any name; may be repeated",
        ),
    ] = None,
    dashboard: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="address of the live page and of /metrics; http://HOST:PORT means no TLS, so that its token "
            "can be read on the way",
        ),
    ] = None,
    callbacks: common_options.Callbacks = None,
    allow: AllowOption = None,
    by: common_options.AsPerson = None,
    log: common_options.Log = "auto",
    log_level: common_options.LogLevel = "info",
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="test the server's set-up, print the results, and end without opening it"
        ),
    ] = False,
    as_json: common_options.AsJson = False,
) -> None:
    """Serve a recipe's run to sites.

    The same state directory continues the run.

    Ctrl-C or `offbeat stop DIR` leaves the run as it is, and the same call continues it. The recipe's
    seconds are real.
    """
    common_options.check_recipe(recipe)
    with requires_extra("net"):
        from offbeat.cli import server_set_up
        from offbeat.cli.server_checks import SERVER_CHECKS
        from offbeat.net import descriptors
        from offbeat.net.auth.ca import OwnAuthority
        from offbeat.net.auth.certificate_dates import watch_certificate
        from offbeat.net.auth.certificate_renewal import keep_certificate, renew_certificate
        from offbeat.net.auth.credentials import ServerCredentials
        from offbeat.net.monitor.scrapes import Scrapes
        from offbeat.net.server.serve import serve as serve_run
    from offbeat.recipes.load import load_recipe, own_recipe
    from offbeat.recipes.names import check_names

    setup_logs(log, log_level)
    if unknown := set(insecure or ()) - {"plaintext", "any-name"}:
        raise UsageError(f"--insecure {min(unknown)} is not allowed: give plaintext or any-name")
    sets, settings = split_sets(sets, GROUPS)
    unencrypted = dashboard is not None and dashboard.startswith(PLAIN)
    dashboard = None if dashboard is None else dashboard.removeprefix(PLAIN)
    descriptors.raise_limit()
    changes = common_options.with_options(sets, callbacks)
    loaded = load_recipe(recipe, sets=changes, scales=scales or ())
    loaded = own_recipe(loaded, loaded.algorithm)
    allowed = allowed_names(allow, [recipe_folder(recipe)], changes)
    check_names(loaded, allowed)
    server_options = make_server_options(loaded, sites, settings.get("server", {}))
    credentials = ServerCredentials(
        certificate, key, client_ca, tokens,
        insecure_plaintext="plaintext" in (insecure or ()), insecure_any_name="any-name" in (insecure or ()),
        revoked=revoked,
    )  # fmt: skip
    credentials = with_own(credentials, state, listen)
    # The certificate may be the own one of another directory, whose run has ended.
    used = credentials.certificate
    authority = OwnAuthority(state if used is None else used.parent.parent)
    keeps_own = used == authority.certificate and authority.ca_key.exists()
    set_up = server_set_up.ServerSetUp(
        recipe=loaded, state=state, listen=listen, page=dashboard, unencrypted=unencrypted,
        credentials=credentials, given_tls=certificate is not None, options=server_options, test=test,
        allow=allowed, mirror=mirror,
    )  # fmt: skip
    if check:
        show_checks(SERVER_CHECKS, set_up, as_json=as_json)
        return
    if as_json:
        raise UsageError("--json is for the results of --check: give both, or neither")
    if keeps_own:
        renew_certificate(authority)
    server_set_up.check_access(set_up)
    server_set_up.check_address(set_up)
    server_set_up.check_not_served(state)
    # After a server has died, its process number may be another process's.
    with suppress(OSError):
        (state / SERVER).unlink()
    stopped_by(state)
    place = server_set_up.page_address(set_up)
    made = set_up.run

    async def run() -> str | None:
        async with AsyncExitStack() as stack:
            signs = asyncio.create_task(_signs_of_life(state))
            stack.callback(signs.cancel)
            if keeps_own:
                stack.callback(asyncio.create_task(keep_certificate(authority)).cancel)
            elif used is not None:
                watch = watch_certificate(used)
                stack.callback(asyncio.create_task(watch).cancel)
            server = serve_run(
                made.experiment, state, listen, options=server_options, credentials=credentials,
                callbacks=made.callbacks, mirror=mirror, by=by,
            )  # fmt: skip
            await stack.enter_async_context(server)
            _install_signal_handlers(server, state)
            page, scrapes = None, Scrapes()
            if place is not None:
                page = await stack.enter_async_context(dashboard_of(place, state, server, scrapes))
            awaited = _awaited(server_options, loaded)
            shown_at = _announce(state, listen, server, page, awaited, credentials.tokens)
            await stack.enter_async_context(at_work(f"listening on {shown_at}"))
            reason = await server.ended()
            if reason is not None:
                await stay_for(scrapes)
            return reason

    # Files that callbacks write are private.
    os.umask(0o077)
    reason = run_until_interrupted(run())
    with suppress(OSError):
        (state / SERVER).unlink()
    if reason is None:
        ending = f"stopped; the same command resumes the run: offbeat serve {recipe} --state {state} …"
    else:
        ending = f"the run has ended: {reason}; {see_with(state)}"
    out.print(ending, markup=False)


def make_server_options(recipe: "Recipe", sites: int | None, given: Mapping[str, Any]) -> "ServerOptions":
    """The options of a server: those of the recipe, and `given` by `--set server.KEY=VALUE`."""
    from offbeat.core.validation import validated
    from offbeat.net.server.server_options import ServerOptions

    return validated(ServerOptions, {"clients": sites or recipe.clients, **given}, "--set server")


def helpers_of_run(options: "ServerOptions", recipe: "Recipe") -> tuple[str, ...]:
    """Names of the helpers of secure aggregation; none without it."""
    secure = None if recipe.privacy is None else recipe.privacy.secure
    return () if secure is None else options.helpers or secure.helpers


def _awaited(options: "ServerOptions", recipe: "Recipe") -> str:
    """The sites and helpers with which a run begins, in words."""
    helpers = helpers_of_run(options, recipe)
    return f"{options.clients} sites{' and the helpers ' if helpers else ''}{', '.join(helpers)}"


def _announce(
    state: Path, listen: str, server: "RunServer", page: str | None, awaited: str, tokens: Path | None
) -> str:
    """Print the server's address, and write it to the file that `offbeat stop` and `status` read."""
    # A Unix socket has no port.
    address = f"{listen.rpartition(':')[0]}:{server.port}" if server.port else listen
    place = None if tokens is None else str(tokens.absolute())
    document = {"pid": os.getpid(), "address": address, "dashboard": page, "tokens": place}
    write_own(state / SERVER, json.dumps(document))
    out.print(f"listening on {address}; {_what_comes(server, awaited)}", markup=False)
    if page is not None:
        out.print(f"live page: {page}", markup=False)
    return address


def _what_comes(server: "RunServer", awaited: str) -> str:
    """What the server does from now on, in words."""
    from offbeat.net.server.finished import FinishedService

    if server.service is None or isinstance(server.service, FinishedService):
        return "the run has ended already, which sites that come late are told"
    if server.service.snapshot().begins_with is None:
        return "the run goes on"
    return f"the run begins when {awaited} are there"


async def stay_for(scrapes: "Scrapes") -> None:
    """Wait until those that scrape the metrics know of the run's end; SIGINT or SIGTERM ends the wait."""
    if not scrapes.awaited:
        return
    seconds = duration_text(ceil(scrapes.awaited))
    out.print(f"the page stays until its metrics have been read once more, at most {seconds}", markup=False)
    told = asyncio.create_task(scrapes.told())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, told.cancel)
    await asyncio.wait([told])


async def _signs_of_life(state: Path) -> None:
    """Tell `offbeat status` that the server's loop turns."""
    while True:
        await asyncio.sleep(SIGN_SECONDS)
        touch(state)


def _install_signal_handlers(server: "RunServer", state: Path) -> None:
    """SIGINT and SIGTERM stop the server, SIGUSR1 ends the run."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: server.leave(stopped_by(state)))
    loop.add_signal_handler(
        signal.SIGUSR1, lambda: server.finish("stopped by its operator", stopped_by(state))
    )
