"""The commands of a deployed run: serve it, join it, stop it, and let sites in."""

import asyncio
import json
import math
import os
import signal
import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from offbeat.console import out
from offbeat.core.errors import RunError, UsageError
from offbeat.core.model import Layout, Model
from offbeat.core.validation import explain, pick
from offbeat.data import load
from offbeat.models.registry import build as build_module
from offbeat.net.credentials import Gate, ServerCredentials, SiteCredentials, pem
from offbeat.net.limits import Limits
from offbeat.net.link import OnLink
from offbeat.net.logs import Style, setup_logs
from offbeat.net.patience import PATIENCE
from offbeat.net.serve import Listening
from offbeat.net.service import Service
from offbeat.net.terms import Terms
from offbeat.recipes.build import make_algorithm
from offbeat.recipes.load import document_of, load_recipe
from offbeat.recipes.recipe import Recipe
from offbeat.runs.lock import lock
from offbeat.runs.schema import DATABASE
from offbeat.site_data import site_data

if TYPE_CHECKING:
    from offbeat.net.grpc_server import Listener

ADDRESS = "127.0.0.1:7117"
SERVER, TOKENS, PAGE_TOKEN = "server.json", "tokens.json", "dashboard-token"  # in a state directory

StateDirectory = Annotated[Path, typer.Option("--state", metavar="DIR", help="the run's directory")]
Log = Annotated[Style, typer.Option("--log", help="auto, text or json")]
LogLevel = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error")]


def _file(option: str, text: str) -> Any:
    return typer.Option(option, metavar="FILE", help=text)


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
    tls_cert: Annotated[Path | None, _file("--tls-cert", "the server's certificate (PEM)")] = None,
    tls_key: Annotated[Path | None, _file("--tls-key", "its key (PEM)")] = None,
    client_ca: Annotated[Path | None, _file("--client-ca", "who signs the sites' certificates (PEM)")] = None,
    revoked: Annotated[
        Path | None, _file("--revoked", "serial numbers of sites' certificates that no longer count")
    ] = None,
    tokens: Annotated[Path | None, _file("--tokens", "sites' tokens, which `offbeat enrol` writes")] = None,
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
    from offbeat.net.serve import serve as serve_run

    setup_logs(log, log_level)
    loaded = load_recipe(recipe, sets=sets or (), scales=scales or (), seed=seed)
    terms = _terms(loaded, sites, lease, norm_bound)
    credentials = ServerCredentials(
        tls_cert, tls_key, client_ca, tokens,
        insecure_plaintext=insecure_plaintext, insecure_any_name=insecure_any_name, revoked=revoked,
    )  # fmt: skip
    credentials.check(listen)
    for file in (tls_cert, tls_key, client_ca):  # now, not when the run's directory has been made
        if file is not None:
            pem(file)
    Gate(credentials)
    if (state / DATABASE).is_file() and _held(state):
        raise UsageError(
            f"--state {state}: another process is serving this run; end it with offbeat stop {state}, or "
            "choose another directory"
        )
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

            async def open_door(on_link: OnLink) -> Listening:
                opened = await _listen(listen, credentials, limits, on_link)
                page = None
                if dashboard is not None:
                    watching = _dashboard(
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
                terms=terms, seed=loaded.seed, test=source.test,
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


def join(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="the server")],
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="DATA",
            help="DATASET, DATASET:GROUP, DATASET:K/N (the Kth of N equal shares), or module:function",
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="the site's name, where no credential says it")
    ] = None,
    state: Annotated[
        Path | None, typer.Option("--state", metavar="DIR", help="keep the site's state and update here")
    ] = None,
    token_file: Annotated[
        Path | None, _file("--token-file", "with the line that `offbeat enrol` printed")
    ] = None,
    ca: Annotated[
        Path | None, _file("--ca", "who signs the server's certificate (PEM); else the system's")
    ] = None,
    cert: Annotated[Path | None, _file("--cert", "the site's certificate (PEM)")] = None,
    key: Annotated[Path | None, _file("--key", "its key (PEM)")] = None,
    insecure_plaintext: Annotated[
        bool, typer.Option("--insecure-plaintext", help="no TLS beyond loopback: all can be read and changed")
    ] = False,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:N or mps")] = "cpu",
    threads: Annotated[
        int, typer.Option("--threads", min=1, help="of PyTorch; more change the last bits")
    ] = 1,
    patience: Annotated[
        float, typer.Option("--patience", help="give up after so many seconds without a server; inf: never")
    ] = PATIENCE,
    keep_labels: Annotated[
        bool, typer.Option("--keep-labels", help="do not tell the server the number of samples of each class")
    ] = False,
    pace: Annotated[
        float | None,
        typer.Option("--pace", help="seconds that a local step takes at least, to try things out"),
    ] = None,
    log: Log = "auto",
    log_level: LogLevel = "info",
) -> None:
    """Take part in a run as a site, with data that stay here."""
    from offbeat.net.join import join as join_run

    setup_logs(log, log_level)
    if pace is not None and not (math.isfinite(pace) and pace >= 0):
        raise UsageError(f"--pace {pace} is not allowed: give seconds, 0 or more")
    if not patience > 0:  # nan too
        raise UsageError(f"--patience {patience} is not allowed: give seconds above 0, or inf")
    credentials = SiteCredentials(name, _secret(token_file), ca, cert, key, insecure_plaintext)
    own = site_data(data)
    limits = Limits()

    async def run() -> str:
        return await join_run(
            lambda: _connect(address, credentials, limits), own,
            state=state, device=device, threads=threads, tell_labels=not keep_labels,
            patience=None if math.isinf(patience) else patience,
            pace=pace or 0.0,
        )  # fmt: skip

    reason = asyncio.run(run())
    out.print(f"the run has ended: {reason}", markup=False)


def stop(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="the state directory of a running server")],
    end: Annotated[
        bool, typer.Option("--end", help="end the run: its model as it is becomes the final one")
    ] = False,
    wait: Annotated[
        float, typer.Option("--wait", help="seconds to wait until the server has stopped")
    ] = 60.0,
) -> None:
    """Stop a server of this machine: leave its run to go on another time, or end it."""
    told = _running(directory)
    os.kill(told, signal.SIGUSR1 if end else signal.SIGTERM)
    deadline = time.monotonic() + wait
    while time.monotonic() < deadline:
        if not _held(directory):
            out.print("the run has ended" if end else "the server has left; the run can be served again")
            return
        time.sleep(0.1)
    raise RunError(f"the server (process {told}) has not stopped in {wait:g} s; it still writes {directory}")


def enrol(
    site: Annotated[str, typer.Argument(metavar="SITE", help="the site's name")],
    state: Annotated[
        Path | None, typer.Option("--state", metavar="DIR", help="the run's directory; its tokens.json")
    ] = None,
    tokens: Annotated[Path | None, _file("--tokens", "the tokens' file, instead of --state")] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="the site's last token stays good beside the new one")
    ] = False,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="make the site's tokens worthless instead")
    ] = False,
) -> None:
    """Make a token for a site and print it: it is kept nowhere, only its hash is."""
    from offbeat.net import tokens as files

    if (state is None) == (tokens is None):
        raise UsageError("give --state DIR or --tokens FILE: one of them")
    path = tokens if tokens is not None else _tokens_of(state)
    if revoke:
        files.revoke(path, site)
        out.print(f"{site} has no token any more", markup=False)
    else:
        print(files.enrol(path, site, keep=keep))  # noqa: T201


def dashboard_token(state: StateDirectory) -> None:
    """Make the token of a run's live page and print it; the one before is no longer good."""
    from offbeat.net.access import make_token

    _make(state)
    print(make_token(state / PAGE_TOKEN))  # noqa: T201


# ---- serving ----


def _terms(recipe: Recipe, sites: int | None, lease: float, norm_bound: float | None) -> Terms:
    until, every = recipe.until, recipe.evaluate
    try:
        return Terms(
            clients=sites or recipe.clients, lease=lease, norm_bound=norm_bound,
            seconds=until.seconds, versions=until.versions, tasks=until.tasks, accuracy=until.accuracy,
            evaluate_versions=every.versions, evaluate_seconds=every.seconds,
        )  # fmt: skip
    except ValidationError as error:
        option = str(pick(error)["loc"][0])
        raise UsageError(f"--{option.replace('_', '-')}: {explain(error)}") from None


def _layout(recipe: Recipe, shape: tuple[int, ...], classes: int, shared_vectors: int) -> Layout:
    return Model.of(build_module(recipe.model, shape, classes)).sharing(shared_vectors).layout


def _listen(
    address: str, credentials: ServerCredentials, limits: Limits, on_link: OnLink
) -> Awaitable["Listener"]:
    try:
        from offbeat.net.grpc_server import listen
    except ImportError as error:
        raise _no_extra(error) from None
    return listen(address, credentials, limits, on_link)


def _connect(address: str, credentials: SiteCredentials, limits: Limits) -> Awaitable[Any]:
    try:
        from offbeat.net.grpc_site import connect
    except ImportError as error:
        raise _no_extra(error) from None
    return connect(address, credentials, limits)


def _no_extra(error: ImportError) -> UsageError:
    return UsageError(f"{error.name} is not installed: pip install 'offbeat[net]'")


def _dashboard(
    address: str, state: Path, service: Service | None, door: Any,
    cert: Path | None, key: Path | None, unencrypted: bool,
) -> Any:  # fmt: skip
    try:
        from offbeat.net.access import read_token_hash
        from offbeat.net.certificates import page_tls
        from offbeat.net.dashboard import Listen, Watched, dashboard
    except ImportError as error:
        raise _no_extra(error) from None
    from offbeat.net.address import split
    from offbeat.net.recorded import snapshot_of
    from offbeat.runs.record import read_run

    host, port = split(address)
    tls = page_tls(cert, key) if cert is not None and key is not None else None
    known = read_token_hash(state / PAGE_TOKEN) if (state / PAGE_TOKEN).exists() else None

    def snapshot() -> Any:
        if service is None:  # the run is over: its directory is all there is
            return snapshot_of(read_run(state))
        shown = service.snapshot()
        return replace(shown, rejected={**door.rejected, **shown.rejected})

    return dashboard(Watched(snapshot, state), Listen(host, port, known, tls, unencrypted))


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


# ---- files ----


def _running(directory: Path) -> int:
    """The process that serves a directory."""
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory: give the state directory of a running server")
    if not (directory / DATABASE).is_file() or not _held(directory):
        raise UsageError(f"no server is running on {directory}")
    try:
        return int(json.loads((directory / SERVER).read_text(encoding="utf-8"))["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(
            f"{directory} is in use, but not by a server of this machine that can be stopped"
        ) from None


def _held(directory: Path) -> bool:
    """Does a process write this run?"""
    try:
        lock(directory).close()
    except UsageError:
        return True
    return False


def _tokens_of(state: Path | None) -> Path:
    assert state is not None
    _make(state)
    return state / TOKENS


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{directory} cannot be made: {error}") from None


def _secret(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {file} cannot be read: {error}") from None
