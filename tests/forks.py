"""Processes that start at once: forks of one that has imported PyTorch, Offbeat and what else takes seconds.

A new process that imports PyTorch and scikit-learn computes for four seconds before its first line. A fork
runs its script as a new process does: `__main__`, arguments, environment, directory and outputs are its own;
a fresh one imports Offbeat itself, the others its command line. The start of an interpreter needs a new
process. Its end is that of a fresh fork, or of one with a fork server of its own; the others leave out the
0.4 seconds of taking their modules apart. The worker processes of all forks come from one fork server,
unless a fork is to start its own. All of pytest's workers share the process that forks.

    python tests/forks.py SOCKET             # serve forks, until its input ends
    python tests/forks.py SOCKET SCRIPT …    # run a script in a fork, and be as it in all but signals
"""

import atexit
import gc
import json
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from functools import cache
from importlib import import_module
from io import BytesIO
from multiprocessing import forkserver
from pathlib import Path
from typing import IO, Any
from unittest.mock import patch

IMPORTED = (
    "torch", "torch.func", "torch.multiprocessing", "torch.overrides", "safetensors.torch",
    "grpc.aio", "aiohttp", "cryptography.x509", "pydantic", "typer", "rich.progress",
    "matplotlib.figure", "plotly.graph_objects",
    "offbeat.recipes.compare", "offbeat.recipes.run_pool", "offbeat.recipes.from_run", "offbeat.report",
    "offbeat.sim.replay",
    "offbeat.sim.executors.batched", "offbeat.sim.executors.processes", "offbeat.net.server.open_run",
    "offbeat.net.grpc.server", "offbeat.net.grpc.client", "offbeat.net.client.join",
    "offbeat.net.monitor.http", "offbeat.data.site", "opacus.accountants",
)  # fmt: skip
SERVER = "FORKS_SERVER"
"""The environment variable that says where the process that forks listens."""
OFFBEAT = Path(sys.executable).with_name("offbeat")


class Fork:
    """A script in a process of its own; it ends with this process, at the latest."""

    def __init__(
        self, script: Path, *words: object, into: IO[Any] | None = None, out: IO[Any] | None = None,
        err: IO[Any] | None = None, cwd: Path | None = None, server: str | None = None,
        own_fork_server: bool = False, fresh: bool = False, **environment: str,
    ) -> None:  # fmt: skip
        told = {
            "words": [str(script), *map(str, words)],
            "own_fork_server": own_fork_server,
            "fresh": fresh,
            "directory": str(cwd or Path.cwd()),
            "environment": {**os.environ, **environment},
        }
        self._link = socket.socket(socket.AF_UNIX)
        self._link.connect(server or _server())
        self._kept = [tempfile.TemporaryFile() if to is None else BytesIO() for to in (out, err)]  # noqa: SIM115
        with Path(os.devnull).open("rb") as nothing:
            files = (into or nothing, out or self._kept[0], err or self._kept[1])
            socket.send_fds(self._link, [b"{"], [file.fileno() for file in files])
        self._link.sendall(json.dumps(told)[1:].encode() + b"\n")
        self.pid = int(_line(self._link))
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, or the negative number of the signal that ended it."""
        if self.returncode is None:
            if not select.select([self._link], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            self.returncode = int(_line(self._link))
            self._link.close()
        return self.returncode

    def poll(self) -> int | None:
        """The exit status, if it has ended."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end; returns what it has written, but for what went elsewhere."""
        self.wait(timeout)
        written = []
        for file in self._kept:
            with file:
                file.seek(0)
                written.append(file.read().decode())
        return written[0], written[1]

    def send_signal(self, number: int) -> None:
        """Send a signal to a process that has not ended yet."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it, and what it has started."""
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)


def shell_command(script: Path) -> str:
    """What runs a script in a fork, for a shell; its arguments can follow."""
    return shlex.join([sys.executable, "-IS", __file__, _server(), str(script)])


def _line(link: socket.socket) -> bytes:
    """What the other end says; nothing beyond the line is read."""
    line = b""
    while not line.endswith(b"\n"):
        octet = link.recv(1)
        if not octet:
            raise EOFError("the other end has gone")
        line += octet
    return line


@cache
def _server() -> str:
    """Where the process that forks listens; it is started if there is none."""
    address = os.environ.get(SERVER) or start_server()
    while not Path(address).exists():
        time.sleep(0.02)
    return address


def start_server() -> str:
    """Start the process that forks, which ends with this one; returns where it will listen."""
    folder = tempfile.TemporaryDirectory(prefix="forks-")
    address = str(Path(folder.name) / "socket")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, __file__, address], env=environment, stdin=subprocess.PIPE, start_new_session=True
    )

    def end() -> None:
        process.communicate()
        folder.cleanup()

    atexit.register(end)
    return address


# ---- the process that forks ----


def _serve(address: str) -> dict[str, Any]:
    """Fork as often as asked; returns, in a fork, what it is to run."""
    for name in IMPORTED:
        with suppress(ImportError):
            import_module(name)
    gc.freeze()  # the forks' collections leave its pages shared
    forkserver.set_forkserver_preload(list(IMPORTED))
    with patch("multiprocessing.util.spawnv_passfds", _fork_instead):
        forkserver.ensure_running()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, _reap)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{address}.part")
    listener.listen(100)
    Path(f"{address}.part").replace(address)
    while True:
        if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
            sys.exit()
        link, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            _, files, *_ = socket.recv_fds(link, 1, 3)
            told: dict[str, Any] = json.loads(b"{" + _line(link))
            if (child := os.fork()) == 0:
                link.close()
                _take_place(told, files)
                return told
            _watch(child, link, files)
        link.close()


def _fork_instead(_: object, words: list[str], descriptors: list[int]) -> int:
    """Be multiprocessing's fork server in a fork, where all is imported, instead of in a new process.

    The end of the pipe by which this process keeps it alive is this process's alone.
    """
    if (child := os.fork()) == 0:
        try:
            pipe = os.fstat(descriptors[-1]).st_ino
            for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
                with suppress(OSError):
                    if number not in descriptors and os.fstat(number).st_ino == pipe:
                        os.close(number)
            exec(words[-1], {})
        finally:
            os._exit(0)
    return child


def _reap(*_: object) -> None:
    """Wait for those that have ended, so that their processor time counts."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _take_place(told: dict[str, Any], files: list[int]) -> None:
    """Be a new process, as far as a fork can."""
    forget = "offbeat." if told["fresh"] else "offbeat.cli."
    for name in [name for name in sys.modules if f"{name}.".startswith(forget)]:
        del sys.modules[name]
    if told["own_fork_server"]:
        forkserver.ForkServer.__init__(forkserver._forkserver)  # it has started none
    else:  # it runs, though it is no child of this process
        forkserver.ensure_running = forkserver._forkserver.ensure_running = lambda: None
    os.setsid()
    os.chdir(told["directory"])
    os.environ.clear()
    os.environ.update(told["environment"])
    encoding = os.environ.get("PYTHONIOENCODING", sys.__stdout__.encoding)
    for number, (name, file) in enumerate(zip(("stdin", "stdout", "stderr"), files, strict=True)):
        os.dup2(file, number)
        os.close(file)
        mode, buffering = "w" if number else "r", 1 if number == 2 else -1
        setattr(sys, name, os.fdopen(number, mode, buffering, encoding, closefd=False))
    sys.argv = told["words"]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)


def _watch(child: int, link: socket.socket, files: list[int]) -> None:
    """Say which process the fork is and how it ended; end it when nobody listens any more."""

    def end() -> None:
        if not link.recv(1):
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)

    for file in files:
        os.close(file)
    link.sendall(b"%d\n" % child)
    threading.Thread(target=end, daemon=True).start()
    _, status = os.waitpid(child, 0)
    with suppress(OSError):
        link.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _run(told: dict[str, Any]) -> None:
    """Run the script, and end as an interpreter does; only where that is tested take its modules apart."""
    code: object = 0
    try:
        runpy.run_path(told["words"][0], run_name="__main__")
    except SystemExit as exit_:
        code = exit_.code or 0
    if told["own_fork_server"] or told["fresh"] or not isinstance(code, int):
        sys.exit(code)  # type: ignore[arg-type]
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):  # the interpreter says so, and has a status for it
        sys.exit(code)
    os._exit(code & 0xFF)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        _run(_serve(sys.argv[1]))
    else:
        server, script, *words = sys.argv[1:]
        streams = {"into": sys.stdin, "out": sys.stdout, "err": sys.stderr}
        sys.exit(Fork(Path(script), *words, **streams, server=server).wait())
