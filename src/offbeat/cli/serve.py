"""The command that serves a run to sites."""

import asyncio
import json
import os
import signal
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from offbeat.cli.console import out
from offbeat.cli.options import Log, LogLevel, StateDirectory, file_option
from offbeat.cli.state_dir import SERVER, held
from offbeat.cli.transport import check_free, dashboard_of, listen_at
from offbeat.core.errors import UsageError
from offbeat.core.model import Layout, Model
from offbeat.core.validation import format_error, most_relevant
from offbeat.data import load
from offbeat.models.registry import build as build_module
from offbeat.net.auth.credentials import Authenticator, ServerCredentials, pem
from offbeat.net.monitor.logs import setup_logs
from offbeat.net.server.options import ServerOptions
from offbeat.net.server.serve import Listener
from offbeat.net.server.service import Service
from offbeat.net.transport import OnChannel
from offbeat.net.wire.limits import Limits
from offbeat.recipes.build import make_algorithm
from offbeat.recipes.load import document_of, load_recipe
from offbeat.recipes.recipe import Recipe
from offbeat.runs.schema import DATABASE

ADDRESS = "127.0.0.1:7117"


def serve(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="a recipe file, or a built-in one's name")],
    state: StateDirectory,
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="where sites come")] = ADDRESS,
    sites: Annotated[
        int | None, typer.Option("--sites", min=1, help="begin when so many are there; the recipe's clients")
    ] = None,
    lease: Annotated[
        float, typer.Option("--lease", help="seconds of silence after which a site is gone")
    ] = 60.0,
    norm_bound: Annotated[
        float | None, typer.Option("--norm-bound", help="refuse updates whose norm is above")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change the recipe")
    ] = None,
    scales: Annotated[
        list[str] | None, typer.Option("--scale", help="one of the recipe's own sets of changes")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="the run's seed")] = None,
    tls_cert: Annotated[Path | None, file_option("--tls-cert", "the server's certificate (PEM)")] = None,
    tls_key: Annotated[Path | None, file_option("--tls-key", "its key (PEM)")] = None,
    client_ca: Annotated[
        Path | None, file_option("--client-ca", "who signs the sites' certificates (PEM)")
    ] = None,
    revoked: Annotated[
        Path | None, file_option("--revoked", "serial numbers of sites' certificates that no longer count")
    ] = None,
    tokens: Annotated[
        Path | None, file_option("--tokens", "sites' tokens, which `offbeat enrol` writes")
    ] = None,
    insecure_plaintext: Annotated[
        bool, typer.Option("--insecure-plaintext", help="no TLS beyond loopback: all can be read and changed")
    ] = False,
    insecure_any_name: Annotated[
        bool, typer.Option("--insecure-any-name", help="anybody beyond loopback may take part, as anybody")
    ] = False,
    dashboard: Annotated[
        str | None, typer.Option("--dashboard", metavar="HOST:PORT", help="a live page, and /metrics")
    ] = None,
    dashboard_unencrypted: Annotated[
        bool, typer.Option("--dashboard-unencrypted", help="the page's token can be read on its way")
    ] = False,
    log: Log = "auto",
    log_level: LogLevel = "info",
) -> None:
    """Serve a recipe's run to sites; called again with the same directory it goes on.

    Ctrl-C or `offbeat stop DIR` leaves the run as it is, to be served again. The recipe's seconds are real.
    """
    from offbeat.net.server.serve import serve as serve_run

    setup_logs(log, log_level)
    loaded = load_recipe(recipe, sets=sets or (), scales=scales or (), seed=seed)
    options = _options(loaded, sites, lease, norm_bound)
    credentials = ServerCredentials(
        tls_cert, tls_key, client_ca, tokens,
        insecure_plaintext=insecure_plaintext, insecure_any_name=insecure_any_name, revoked=revoked,
    )  # fmt: skip
    credentials.check(listen)
    for file in (tls_cert, tls_key, client_ca):  # now, not when the run's directory has been made
        if file is not None:
            pem(file)
    Authenticator(credentials)
    if (state / DATABASE).is_file() and held(state):
        raise UsageError(
            f"--state {state}: another process is serving this run; end it with offbeat stop {state}, or "
            "choose another directory"
        )
    with suppress(OSError):  # of one that died: its process number may be somebody else's now
        (state / SERVER).unlink()
    check_free("--listen", listen)
    if dashboard is not None:
        check_free("--dashboard", dashboard)
    algorithm = make_algorithm(loaded.algorithm)
    source = load(
        loaded.data.dataset,
        samples=loaded.data.samples,
        test_samples=loaded.data.test_samples,
        seed=loaded.seed,
    )
    layout = _layout(
        loaded, source.test.sample_shape, source.test.classes, algorithm.objective.shared_vectors
    )
    limits = Limits(layout=layout)

    async def run() -> str | None:
        async with AsyncExitStack() as stack:
            services: list[Service] = []

            async def open_door(on_link: OnChannel) -> Listener:
                opened = await listen_at(listen, credentials, limits, on_link)
                page = None
                if dashboard is not None:
                    watching = dashboard_of(
                        dashboard, state, services[0] if services else None, opened,
                        tls_cert, tls_key, dashboard_unencrypted,
                    )  # fmt: skip
                    page = await stack.enter_async_context(watching)
                _announce(state, listen, opened.port, page, sites or loaded.clients)
                return opened

            def started(service: Service) -> None:
                services.append(service)
                _obey(service)

            return await serve_run(
                algorithm, loaded.model, loaded.training, state, open_door,
                options=options, seed=loaded.seed, test=source.test,
                label=str(loaded.algorithm.get("label", algorithm.name)), recipe=document_of(loaded),
                started=started,
            )  # fmt: skip

    reason = asyncio.run(run())
    with suppress(OSError):
        (state / SERVER).unlink()
    if reason is None:
        out.print(
            f"left; the same command goes on with it: offbeat serve {recipe} --state {state} …", markup=False
        )
    else:
        out.print(f"the run has ended: {reason}; see it with: offbeat report {state}", markup=False)


def _options(recipe: Recipe, sites: int | None, lease: float, norm_bound: float | None) -> ServerOptions:
    try:
        return ServerOptions(
            clients=sites or recipe.clients, lease=lease, norm_bound=norm_bound,
            until=recipe.until, evaluate=recipe.evaluate,
        )  # fmt: skip
    except ValidationError as error:
        option = str(most_relevant(error)["loc"][0])
        raise UsageError(f"--{option.replace('_', '-')}: {format_error(error)}") from None


def _layout(recipe: Recipe, shape: tuple[int, ...], classes: int, shared_vectors: int) -> Layout:
    return Model.of(build_module(recipe.model, shape, classes)).sharing(shared_vectors).layout


def _announce(state: Path, listen: str, port: int, page: str | None, sites: int) -> None:
    """Say where the server is, to whoever reads and to `offbeat stop`."""
    host = listen.rpartition(":")[0]
    told = {"pid": os.getpid(), "address": f"{host}:{port}", "dashboard": page}
    (state / SERVER).write_text(json.dumps(told), encoding="utf-8")
    out.print(f"listening on {host}:{port}; the run begins when {sites} sites are there", markup=False)
    if page is not None:
        out.print(f"live page: {page}", markup=False)


def _obey(service: Service) -> None:
    """SIGINT and SIGTERM leave the run, SIGUSR1 ends it."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, service.leave)
    loop.add_signal_handler(signal.SIGUSR1, service.stop, "stopped by its operator")
