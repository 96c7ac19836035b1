"""A Flower federation on loopback: a SuperLink and SuperNodes as processes of their own."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

BIN = Path(sys.executable).parent


def free_port() -> int:
    """A port that nobody has now; Flower does not tell which one it has taken if it is asked for any."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@dataclass
class LocalFederation:
    """Everything Flower needs, under one directory; processes of it end with `stop`."""

    home: Path
    isolation: str = "process"
    tls: bool = False  # certificates for everybody, and keys by which the SuperLink knows its nodes
    port: int = field(default_factory=free_port)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """No telemetry, and no files outside the directory."""
        own = {
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }
        return {**os.environ, **own, "FLWR_DISABLE_UPDATE_CHECK": "1"}

    def start(self, name: str, *command: str) -> None:
        """Start one of Flower's programs, writing to a log of its own."""
        with (self.home / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                stdout=log, stderr=log, cwd=self.home, env=self.environment, start_new_session=True,
            )  # fmt: skip

    @property
    def own(self) -> list[str]:
        """How whoever listens shows who it is."""
        files = {"ca-certfile": "ca.crt", "certfile": "server.pem", "keyfile": "server.key"}
        if not self.tls:
            return ["--insecure"]
        return [word for name, file in files.items() for word in (f"--ssl-{name}", str(self.home / file))]

    @property
    def trust(self) -> list[str]:
        """How whoever connects knows whom it speaks to."""
        return ["--root-certificates", str(self.home / "ca.crt")] if self.tls else ["--insecure"]

    def make_certificates(self) -> None:
        """A certificate authority, and a certificate of the server's for this machine."""
        (self.home / "san").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        for command in (
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ca -keyout ca.key -out ca.crt",
            "req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout server.key -out server.csr",
            "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile san "
            "-out server.pem",
        ):
            subprocess.run(["openssl", *command.split()], cwd=self.home, check=True, capture_output=True)

    def start_superlink(self) -> None:
        """The SuperLink, and with process isolation what starts ServerApps."""
        self.home.mkdir(parents=True, exist_ok=True)
        if self.tls:
            self.make_certificates()
        trust = f'root-certificates = "{self.home / "ca.crt"}"' if self.tls else "insecure = true"
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "local"\n[superlink.local]\naddress = "127.0.0.1:{self.port}"\n{trust}\n'
        )
        self.start(
            "superlink", "flower-superlink", *self.own, *(["--enable-supernode-auth"] if self.tls else []),
            "--host", "127.0.0.1", "--port", str(self.port), "--isolation", self.isolation,
            "--database", str(self.home / "superlink.db"), "--disable-runtime-dependency-installation",
        )  # fmt: skip
        self.wait_for(self.port, "superlink")
        if self.isolation == "process":
            self.start_superexec("superlink-exec", self.port)

    def start_superexec(self, name: str, port: int) -> None:
        """What starts the apps of one SuperLink or SuperNode."""
        self.start(name, "flower-superexec", *self.trust, "--runtime-api-address", f"127.0.0.1:{port}")

    def start_supernode(self, i: int, of: int, port: int | None = None) -> None:
        """One node, with its part of the data."""
        port, key, known = port or free_port(), self.home / f"node-{i}-key", []
        if self.tls:
            if not key.exists():
                subprocess.run(
                    ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(key)], check=True
                )
                self.flwr("supernode", "register", f"{key}.pub", "local")
            known = [*self.own, "--auth-supernode-private-key", str(key)]
        self.start(
            f"node-{i}", "flower-supernode", *self.trust, *known, "--superlink", f"127.0.0.1:{self.port}",
            "--host", "127.0.0.1", "--port", str(port), "--isolation", self.isolation,
            "--node-config", f"partition-id={i} num-partitions={of}",
        )  # fmt: skip
        self.wait_for(port, f"node-{i}")
        if self.isolation == "process":
            self.start_superexec(f"node-{i}-exec", port)

    def wait_for(self, port: int, name: str, seconds: float = 120.0) -> None:
        """Until somebody listens."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.processes[name].poll() is None, self.log(name)
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.2)
        raise TimeoutError(f"{name} does not listen: {self.log(name)}")

    def flwr(self, *arguments: str) -> str:
        """Run Flower's command line; returns what it prints."""
        done = subprocess.run(
            [str(BIN / "flwr"), *arguments],
            cwd=self.home,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, app: Path, settings: Sequence[str]) -> None:
        """Submit an app."""
        self.flwr("run", str(app), "local", "--run-config", " ".join(settings))

    def log(self, name: str) -> str:
        """What a process has written."""
        return (self.home / f"{name}.log").read_text(errors="replace")

    def kill(self, name: str) -> None:
        """End a process and those it has started, at once."""
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()

    def stop(self) -> None:
        """End everything."""
        for name in list(self.processes):
            self.kill(name)
