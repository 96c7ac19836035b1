"""Try nginx, haproxy and squid between a site and its server.

    python deploy/try/proxies.py [--large]

A run is made directly, then through each installed proxy, which is killed in the middle and started again.
The model must be that of the direct run, byte for byte. Then a site that is connected through a proxy is
revoked, and must be sent away. Names and ports of the files are replaced, and nothing else of them.

With --large a model of 100 MB goes down and up instead, and in between the site says nothing for 75 s: longer
than the usual timeouts of proxies. All proxies are tried at the same time.
"""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from federation import DEPLOY, Trial, certificates, free_ports, lacking, passed, trial, wait_until
from torch import nn

import offbeat as ob
from offbeat.core.errors import OffbeatError
from offbeat.models.specs import LogisticSpec
from offbeat.net import (
    RunServer,
    ServerCredentials,
    ServerOptions,
    SiteCredentials,
    connector,
    join,
    serve,
    server_learner,
)
from offbeat.net.auth.tokens import make_token, revoke
from offbeat.net.client.reconnecting import Connect

VERSIONS = 60
LARGE, SILENT = 100_000_000, 75.0
"""Bytes of a large model, and seconds in which nothing is said."""
PASSWORD = "a secret of two"


@dataclass(frozen=True)
class Way:
    """A proxy, and how server and site meet through it.

    Attributes:
        name: What is tried.
        program: The proxy's program.
        configure: Writes the proxy's files, given the port that it listens on and the server's address;
            returns the command that starts it.
        through: Whether the site names the proxy as such, and not as its server.
        ends_tls: Whether the proxy has the certificate, and the server a socket.
        login: User and password in the proxy's URL.
    """

    name: str
    program: str
    configure: Callable[[Trial, int, str], list[str | Path]]
    through: bool = False
    ends_tls: bool = False
    login: str = ""


def replaced(file: str, *names: tuple[str, str]) -> str:
    """The text of a file with names and ports of the trial; each must be there."""
    text = (DEPLOY / file).read_text()
    for name, own in names:
        assert name in text, f"{file} has no {name}"
        text = text.replace(name, own)
    return text


def nginx(here: Trial, text: str) -> list[str | Path]:
    """A whole configuration of nginx with one of the files in its place."""
    modules = Path(shutil.which("nginx") or "").resolve().parents[1] / "lib/nginx/modules"
    modules = modules if modules.is_dir() else Path("/usr/lib/nginx/modules")
    temporary = "".join(
        f"    {kind}_temp_path {here.folder}/nginx-{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    streams = "" if "grpc_pass" in text else text
    servers = "" if streams else text
    file = here.folder / "nginx.conf"
    file.write_text(
        f"load_module {modules}/ngx_stream_module.so;\n"
        f"{'user root;' if os.getuid() == 0 else ''}\npid {here.folder}/nginx.pid;\nworker_processes 1;\n"
        f"daemon off;\nerror_log stderr warn;\nevents {{}}\n{streams}\n"
        f"http {{\n    access_log off;\n{temporary}{servers}\n}}\n"
    )
    return ["nginx", "-e", "stderr", "-p", here.folder, "-c", file]


def nginx_passthrough(here: Trial, port: int, server: str) -> list[str | Path]:
    """TLS passed through by name."""
    return nginx(
        here,
        replaced(
            "nginx/passthrough.conf",
            ("fl.example.org", "localhost"), ("127.0.0.1:7117", server), ("listen 443", f"listen {port}"),
        ),
    )  # fmt: skip


def nginx_terminate(here: Trial, port: int, server: str) -> list[str | Path]:
    """TLS ended, and the calls passed to a Unix socket."""
    return nginx(
        here,
        replaced(
            "nginx/terminate.conf",
            ("listen 443", f"listen {port}"), ("fl.example.org", "localhost"),
            ("server.pem", f"{here.folder}/server.pem"), ("server.key", f"{here.folder}/server.key"),
            ("unix:/run/offbeat/heart.sock", server),
        ),
    )  # fmt: skip


def haproxy(here: Trial, port: int, server: str) -> list[str | Path]:
    """TLS passed through by name."""
    file = here.folder / "haproxy.cfg"
    file.write_text(
        replaced(
            "haproxy/passthrough.cfg",
            ("fl.example.org", "localhost"), ("127.0.0.1:7117", server), ("bind :443", f"bind :{port}"),
        )
    )  # fmt: skip
    return ["haproxy", "-f", file]


def squid(here: Trial, port: int, server: str, *, password: bool = False) -> list[str | Path]:
    """A proxy of the site's institution that lets it reach the server's port."""
    home = Path(shutil.which("squid") or "").resolve().parents[2]
    lines = [
        f"http_port 127.0.0.1:{port}", "pid_filename none", "access_log none", "cache_log /dev/stderr",
        "logfile_rotate 0", "cache deny all", "shutdown_lifetime 0 seconds", "pinger_enable off",
        f"unlinkd_program {home}/usr/lib/squid/unlinkd",
        f"coredump_dir {here.folder}", f"mime_table {home}/usr/share/squid/mime.conf",
        f"icon_directory {home}/usr/share/squid/icons",
        f"error_directory {home}/usr/share/squid/errors/templates", "visible_hostname localhost",
        f"acl federation port {server.rpartition(':')[2]}",
    ]  # fmt: skip
    if password:
        hashed = subprocess.run(
            ["openssl", "passwd", "-apr1", PASSWORD], check=True, stdout=subprocess.PIPE, text=True
        )
        users = here.folder / "users"
        users.write_text(f"anna:{hashed.stdout}")
        users.chmod(0o644)
        lines += [
            f"auth_param basic program {home}/usr/lib/squid/basic_ncsa_auth {users}",
            "acl known proxy_auth REQUIRED", "http_access allow CONNECT federation known",
        ]  # fmt: skip
    else:
        lines.append("http_access allow CONNECT federation")
    file = here.folder / "squid.conf"
    file.write_text("\n".join([*lines, "http_access deny all", ""]))
    return ["squid", "-N", "-f", file]


def squid_with_password(here: Trial, port: int, server: str) -> list[str | Path]:
    """The same for those with a password."""
    return squid(here, port, server, password=True)


WAYS = (
    Way("nginx passes TLS through", "nginx", nginx_passthrough),
    Way("nginx ends TLS", "nginx", nginx_terminate, ends_tls=True),
    Way("haproxy passes TLS through", "haproxy", haproxy),
    Way("squid", "squid", squid, through=True),
    Way(
        "squid with a password",
        "squid",
        squid_with_password,
        through=True,
        login="anna:a%20secret%20of%20two@",
    ),
)


class Tried:
    """A proxy that runs in a trial, with the parties on either side of it."""

    def __init__(self, here: Trial, way: Way | None) -> None:
        self._here, self._way = here, way
        self._port, self._proxy_port = free_ports(2)
        self._listen = f"unix:{here.folder}/sites.sock" if way and way.ends_tls else f"localhost:{self._port}"
        server = self._listen if way and way.ends_tls else f"127.0.0.1:{self._port}"
        self._command = way.configure(here, self._proxy_port, server) if way else []

    def start(self) -> None:
        """Start the proxy, and wait until it listens."""
        if self._way is None:
            return
        self._here.start(self._way.program, *self._command)
        wait_until(f"{self._way.program} listens", self._listens, 60)

    def kill(self) -> None:
        """End the proxy, with whatever processes it has."""
        if self._way is not None:
            self._here.kill(self._way.program)

    def _listens(self) -> bool:
        socket.create_connection(("127.0.0.1", self._proxy_port)).close()
        return True

    @asynccontextmanager
    async def served(
        self, experiment: ob.Experiment, state: Path, lease: float = 60.0
    ) -> AsyncIterator[tuple[RunServer, Connect]]:
        """A server of a run of one site, and what connects the site through the proxy."""
        tokens, folder = state / "tokens.json", self._here.folder
        state.mkdir(0o700)
        token = make_token(tokens, "north")
        tls = () if self._way and self._way.ends_tls else (folder / "server.pem", folder / "server.key")
        credentials = ServerCredentials(*tls, tokens=tokens)
        direct = self._way is None or self._way.through
        connect = connector(
            f"localhost:{self._port if direct else self._proxy_port}",
            credentials=SiteCredentials(token=token, ca=folder / "ca.pem"),
            proxy=f"http://{self._way.login}127.0.0.1:{self._proxy_port}"
            if self._way and self._way.through
            else None,
        )
        options = ServerOptions(clients=1, lease=lease)
        async with serve(experiment, state, self._listen, options=options, credentials=credentials) as server:
            yield server, connect

    async def run(self, state: Path, during: Callable[[Path], None], versions: int = VERSIONS) -> str:
        """A run of one site; `during` is called when it has made versions. Returns why the site ended."""
        source = ob.load("digits", samples=200, test_samples=20)
        learner = server_learner(LogisticSpec(), ob.Training(lr=0.1, batch_size=20), source.test)
        experiment = ob.Experiment(ob.fedasync(steps=2), learner, seed=3, until=ob.Until(versions=versions))
        async with self.served(experiment, state) as (server, connect):
            site = asyncio.create_task(join(connect, source.train))
            while server.service.snapshot().version < 5 and not site.done():
                await asyncio.sleep(0.01)
            assert not site.done() or site.exception() is None, site.exception()
            await asyncio.to_thread(during, state)
            return await site


async def attempt(here: Trial, way: Way, direct: bytes) -> None:
    """Try one proxy."""
    tried = Tried(here, way)
    tried.start()

    def break_off(state: Path) -> None:
        tried.kill()
        assert not (state / "model.safetensors").exists(), "the run has ended before the proxy was killed"
        tried.start()

    def revoke_site(state: Path) -> None:
        revoke(state / "tokens.json", "north")

    state = here.folder / "run"
    assert await tried.run(state, break_off) == f"reached {VERSIONS} versions"
    assert (state / "model.safetensors").read_bytes() == direct, "the model is not that of the direct run"
    try:
        ended = await tried.run(here.folder / "other", revoke_site, 10**6)
    except OffbeatError as refusal:
        ended = str(refusal)
    assert "the token of site north was revoked" in ended, ended
    tried.kill()


def wide() -> nn.Module:
    """A model of 100 MB."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, LARGE // 4 // 65))


async def large_run(here: Trial, way: Way) -> float:
    """One task of a large model through a proxy, with a long silence; returns the seconds that it took."""
    tried = Tried(here, way)
    tried.start()
    source, begun = ob.load("digits", samples=20, test_samples=20), time.monotonic()
    experiment = ob.Experiment(
        ob.fedasync(steps=1), server_learner(wide), until=ob.Until(versions=1), evaluate=ob.Every()
    )
    async with tried.served(experiment, here.folder / "large", lease=SILENT * 20) as (_, connect):
        ended = await join(connect, source.train, model=wide, min_step_seconds=SILENT)
    assert ended == "reached 1 versions", ended
    tried.kill()
    return time.monotonic() - begun


def try_large() -> None:
    """Try every installed proxy with a large model, each in a process of its own."""
    if len(sys.argv) > 2:
        (way,) = (way for way in WAYS if way.name == sys.argv[2])
        with trial() as here:
            certificates(here.folder)
            seconds = asyncio.run(large_run(here, way))
        passed(f"{way.name}: {LARGE / 1e6:.0f} MB down and up, {SILENT:.0f} s of silence, in {seconds:.0f} s")
        return
    there = [way for way in WAYS if not lacking((way.program,), way.name)]
    started = [subprocess.Popen([sys.executable, __file__, "--large", way.name]) for way in there]
    codes = [process.wait() for process in started]
    if any(codes):
        sys.exit(1)


def main() -> None:
    """Try every proxy that is installed."""
    if lacking(("openssl",), "proxies"):
        return
    if sys.argv[1:2] == ["--large"]:
        try_large()
        return
    direct = b""
    for way in WAYS:
        if lacking((way.program,), way.name):
            continue
        with trial() as here:
            certificates(here.folder)
            if not direct:
                asyncio.run(Tried(here, None).run(here.folder / "direct", lambda _: None))
                direct = (here.folder / "direct/model.safetensors").read_bytes()
            asyncio.run(attempt(here, way, direct))
        passed(f"{way.name}: the direct run's bytes, a proxy that is killed, a site that is revoked")


if __name__ == "__main__":
    main()
