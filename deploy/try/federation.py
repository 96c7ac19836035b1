"""What the trials share: a folder, processes that end with it, certificates, a wait for what must come."""

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

OFFBEAT = Path(sys.executable).with_name("offbeat")
DEPLOY = Path(__file__).parents[1]


class Trial:
    """A folder of its own, and processes in it that write to logs there.

    Attributes:
        folder: The folder; others may pass through it, as a proxy's worker must.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str | Path, **environment: str) -> subprocess.Popen[bytes]:
        """Start a process whose outputs go to the file NAME.log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                list(map(str, command)), cwd=self.folder, env={**os.environ, **environment},
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._processes[name] = process
        return process

    def kill(self, name: str) -> None:
        """End a process and its children as a loss of power does."""
        with suppress(ProcessLookupError):
            os.killpg(self._processes[name].pid, signal.SIGKILL)
        self._processes[name].wait()

    def offbeat(self, *words: str | Path) -> str:
        """What a command of Offbeat prints."""
        command = [OFFBEAT, *map(str, words)]
        return subprocess.run(command, cwd=self.folder, check=True, stdout=subprocess.PIPE, text=True).stdout

    def enrol(self, name: str, state: Path) -> Path:
        """The file with a new token of a site."""
        file = self.folder / f"{name}.token"
        file.write_text(self.offbeat("enrol", name, "--state", state))
        return file

    def log(self, name: str) -> str:
        """What the process of that name has written."""
        return (self.folder / f"{name}.log").read_text()

    def stop_all(self) -> None:
        """End what still runs, the newest first."""
        for process in reversed(self._processes.values()):
            if process.poll() is None:
                process.terminate()
        for process in self._processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def trial() -> Iterator[Trial]:
    """A trial; where it fails, the ends of all logs are printed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which ends the processes, too
    with tempfile.TemporaryDirectory(prefix="offbeat-try-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        here = Trial(folder)
        try:
            yield here
        except BaseException:
            for log in sorted(folder.glob("*.log")):
                print(f"--- {log.name}", *log.read_text(errors="replace").splitlines()[-12:], sep="\n")
            raise
        finally:
            here.stop_all()


def certificates(folder: Path, name: str = "localhost") -> None:
    """Write ca.pem, server.pem and server.key, as the documentation makes them."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *key, "-days", "2", "-subj", "/CN=a trial", "-keyout", "ca.key", "-out", "ca.pem")
    openssl("req", *key, "-subj", f"/CN={name}", "-keyout", "server.key", "-out", "server.csr")
    (folder / "server.ext").write_text(f"subjectAltName=DNS:{name}\nextendedKeyUsage=serverAuth\n")
    openssl(
        "x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
        "-days", "2", "-extfile", "server.ext", "-out", "server.pem",
    )  # fmt: skip


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def get(url: str, ca: Path | None = None, token: str = "") -> str:
    """The text that an address answers."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    context = ssl.create_default_context(cafile=str(ca)) if ca else None
    with urllib.request.urlopen(request, timeout=20, context=context) as answer:
        return str(answer.read().decode())


def wait_until(what: str, holds: Callable[[], bool], seconds: float = 180) -> None:
    """Wait until something holds. Connections that fail meanwhile are no error.

    Raises:
        TimeoutError: It has not come in time.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if holds():
                return
        except OSError:
            pass
        time.sleep(0.3)
    raise TimeoutError(f"in {seconds:g} s it has not come: {what}")


def lacking(tools: Sequence[str], what: str) -> bool:
    """Whether a trial cannot be made here; then it says so."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        print(f"SKIPPED {what}: {', '.join(missing)} not installed", flush=True)
    return bool(missing)


def passed(what: str) -> None:
    """Say what has been tried."""
    print(f"PASSED {what}", flush=True)
