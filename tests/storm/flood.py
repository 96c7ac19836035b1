"""Floods of bare TCP connections beside a run: what they cost it, and whether it ends.

    python -m tests.storm.flood [--grpc 2500] [--page 4000] [--seconds 15] [--open-files 1024] [--tls]

The server is `offbeat serve` with a live page, and may have so many open files and no more, whatever it asks
for; two sites train. First nothing happens for the seconds; then so many connections are opened to the port
of the sites, which say nothing, and those that the server closes are opened again every second; then the same
is done to the page; then nothing happens again. Every two seconds the server writes a checkpoint. At last the
run is ended. Prints updates per second of each part, and what the server's log and page say. Exit status 1 if
the run does not end well.
"""

import argparse
import json
import resource
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from functools import partial
from pathlib import Path

import yaml

from offbeat.net.server.serve import serve
from offbeat.runs.record import read_run
from tests.storm.processes import call_offbeat, ended, fork, kill, leave_when_told

SITES = 2
ATTEMPTS = 5
"""How often the page is asked, at most, for one answer."""
RECIPE = {
    "clients": SITES,
    "data": {"dataset": "digits", "samples": 200, "test_samples": 100},
    "model": {"name": "logistic"},
    "training": {"optimizer": "sgd", "lr": 0.05, "batch_size": 20},
    "algorithm": {"name": "fedbuff", "size": 2, "steps": 2},
    "until": {"versions": 1_000_000},
    "evaluate": {"versions": 1000},
    "seed": 1,
}


class Server:
    """A server with its sites, each in a process."""

    def __init__(self, directory: Path, open_files: int, tls: bool, step_seconds: float) -> None:
        self.state, self._log = directory / "state", directory / "server.log"
        recipe = directory / "recipe.yaml"
        recipe.write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
        words = ["serve", str(recipe), "--state", str(self.state), "--listen", "127.0.0.1:0",
                 "--dashboard", "127.0.0.1:0", "--log", "json"]  # fmt: skip
        self.context: ssl.SSLContext | None = None
        trust: list[str] = []
        if tls:
            certificate, key = directory / "server.pem", directory / "server.key"
            make_certificate(certificate, key)
            words += ["--cert", str(certificate), "--key", str(key)]
            self.context, trust = (
                ssl.create_default_context(cafile=str(certificate)),
                ["--set", f"access.ca={certificate}"],
            )

        def with_open_files() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
            serve.__kwdefaults__["checkpoint_seconds"] = 2.0
            call_offbeat(words)

        self.pid = fork(with_open_files, self._log)
        self.status: int | None = None
        self.most = 0  # descriptors that it had open
        while not (self.state / "server.json").exists():
            if self.ended():
                raise RuntimeError(f"the server has ended:\n{self._log.read_text(encoding='utf-8')}")
            time.sleep(0.02)
        time.sleep(0.2)
        told = json.loads((self.state / "server.json").read_text(encoding="utf-8"))
        self.port, self.page = int(told["address"].rpartition(":")[2]), str(told["dashboard"])
        pace = ["--set", f"site.min_step_seconds={step_seconds}"]
        self.sites = []
        for k in range(1, SITES + 1):
            site = ["join", told["address"], "--data", f"digits:{k}/{SITES}", "--name", f"site-{k}"]
            log = directory / f"site-{k}.log"
            self.sites.append(fork(partial(call_offbeat, [*site, *pace, *trust]), log))

    def ended(self) -> bool:
        """Whether the server's process has ended."""
        if self.status is None:
            self.status = ended(self.pid)
        return self.status is not None

    def arrived(self) -> int:
        """How many updates have arrived."""
        rows = read_run(self.state).select("SELECT count(*) FROM journal WHERE name = 'arrived'")
        return int(next(iter(rows))[0])

    def descriptors(self) -> int:
        """How many descriptors the server has open."""
        with suppress(OSError):
            return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())
        return 0

    def log_bytes(self) -> int:
        """Bytes of its log."""
        return self._log.stat().st_size

    def asked(self) -> str:
        """How long the page takes to answer, in words, and what was refused so far.

        The connections of the flood have the same address and may take its place. Then it asks again.
        """
        begun, reason = time.monotonic(), ""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with urllib.request.urlopen(
                    self.page + "api/snapshot", timeout=5, context=self.context
                ) as answer:
                    rejected = json.loads(answer.read())["rejected"]
            except (OSError, ValueError) as error:
                reason = str(error)
                continue
            again = f" at attempt {attempt}" if attempt > 1 else ""
            return f"answers in {time.monotonic() - begun:.2f} s{again}; refused {rejected or 'nothing'}"
        return f"no answer ({reason})"

    def end(self) -> bool:
        """End the run; returns whether all processes ended well."""
        stop = fork(lambda: call_offbeat(["stop", str(self.state), "--end"]), self._log)
        deadline, well = time.monotonic() + 60, not self.ended()
        for process in (stop, *self.sites, self.pid):
            status = self.status if process == self.pid else None
            while status is None and time.monotonic() < deadline and well:
                time.sleep(0.05)
                status = ended(process)
            if status is None:
                kill(process)
            well = well and status == 0
        return well and read_run(self.state).status == "finished"


def make_certificate(certificate: Path, key: Path) -> None:
    """A certificate of this machine that is its own authority."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days",
         "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key),
         "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip


def flood(port: int, number: int) -> None:
    """Hold so many connections, and open those again that are closed, until this process is ended."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held: list[socket.socket] = []
    while True:
        begun = time.monotonic()
        held = [link for link in held if is_open(link)]
        while len(held) < number and time.monotonic() < begun + 5:
            link = socket.socket()
            link.settimeout(0.2)
            try:
                link.connect(("127.0.0.1", port))
            except OSError:
                link.close()
                continue
            held.append(link)
        time.sleep(max(0.0, begun + 1 - time.monotonic()))


def is_open(link: socket.socket) -> bool:
    """Whether the other end has not closed the connection; what it says is read. Closes it here if it has."""
    link.setblocking(False)
    with suppress(OSError):
        try:
            while link.recv(65536):
                pass
        except BlockingIOError:
            return True
    link.close()
    return False


def watch(server: Server, name: str, seconds: float, target: tuple[int, int] | None = None) -> None:
    """Print what a part of the run is like, beside a flood of (port, connections)."""
    flooding = None if target is None else fork(lambda: flood(*target), server.state.with_name("flood.log"))
    first, log, begun, most = server.arrived(), server.log_bytes(), time.monotonic(), 0
    while time.monotonic() < begun + seconds and not server.ended():
        time.sleep(0.2)
        most = max(most, server.descriptors())
    server.most = max(server.most, most)
    took, page = time.monotonic() - begun, server.asked()
    if server.ended():
        page = f"THE SERVER HAS ENDED, status {server.status}, after {took:.1f} s"
    rate = (server.arrived() - first) / took
    print(
        f"{name:28} {rate:7.1f} updates/s  {most:5} descriptors  {server.log_bytes() - log:9} bytes of log  "
        f"page {page}", flush=True,
    )  # fmt: skip
    if flooding is not None:
        kill(flooding)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--grpc", type=int, default=2500, help="connections to the port of the sites")
    parser.add_argument("--page", type=int, default=4000, help="connections to the page")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each part")
    parser.add_argument("--open-files", type=int, default=1024, help="the server's limit")
    parser.add_argument("--step-seconds", type=float, default=0.01, help="of a site's local step, at least")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    leave_when_told()
    directory = options.directory or Path(tempfile.mkdtemp(prefix="flood-"))
    directory.mkdir(parents=True, exist_ok=True)
    server = Server(directory, options.open_files, options.tls, options.step_seconds)
    try:
        while not server.ended() and server.arrived() < 10:
            time.sleep(0.1)
        page_port = int(server.page.rstrip("/").rpartition(":")[2])
        watch(server, "before", options.seconds)
        watch(server, f"{options.grpc} to the sites' port", options.seconds, (server.port, options.grpc))
        watch(server, "between", options.seconds)
        watch(server, f"{options.page} to the page", options.seconds, (page_port, options.page))
        watch(server, "after", options.seconds)
        total, well = server.arrived(), server.end()
    finally:
        for process in (server.pid, *server.sites):
            kill(process)
    print(f"{total} updates; the run {'has ended well' if well else 'HAS NOT ENDED WELL'}")
    print(f"most descriptors {server.most} of {options.open_files}")
    print(f"log of the server: {server.log_bytes()} bytes, {directory / 'server.log'}")
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
