"""A live server among bad peers, with one honest site in training; counts what came of it.

    python -m tests.storm.bad_peers [--messages 10000] [--seed 1]

The server is `offbeat serve` with TLS, asking for a certificate and a token. First outsiders: wrong tokens, a
certificate of another authority, no credential, somebody else's name. Then a site with a good credential that
never joins sends what is not a message, claims 10 GB, breaks off: so many messages in all, random bytes and
flipped bits of good frames. The honest run (fedavg) is made once without and once with all that: its model
must have the same bytes. Last an insider joins a run and sends updates that are not its own, come twice, are
NaN, infinite, of another shape, or of too many steps; none may be taken. Exit status 1 if any is not so.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import torch
import yaml

from offbeat.net.auth.credentials import SiteCredentials
from offbeat.net.auth.tokens import make_token
from offbeat.net.messages import (
    FromSite,
    Heartbeat,
    Leave,
    Register,
    Rejected,
    TaskAssignment,
    TaskFailed,
    UpdateAck,
    UpdateReady,
    UpdateSubmission,
)
from offbeat.net.transport import ChannelClosedError
from offbeat.runs.record import read_run
from tests.storm.processes import call_offbeat, ended, fork, kill, leave_when_told
from tests.storm.witness import Honest, keep_company

VERSIONS, STEPS = 20, 3
NONE = torch.zeros(0, dtype=torch.int64)
VALUES = 650  # of logistic regression on the digits
CONNECT = "/offbeat.v2.Federation/Connect"


# ---- credentials ----


def openssl(*words: str | Path) -> None:
    """Call openssl, quietly."""
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


def authority(directory: Path, name: str) -> None:
    """A self-signed certificate that signs others."""
    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    openssl("req", "-x509", *new, "-subj", f"/CN={name}", "-keyout", directory / f"{name}.key",
            "-out", directory / f"{name}.pem")  # fmt: skip


def certificate(directory: Path, file: str, name: str, signer: str) -> None:
    """A certificate for a name, signed by an authority."""
    request, extension = directory / f"{file}.csr", directory / f"{file}.ext"
    extension.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n", encoding="ascii")
    openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj",
            f"/CN={name}", "-keyout", directory / f"{file}.key", "-out", request)  # fmt: skip
    openssl("x509", "-req", "-in", request, "-CA", directory / f"{signer}.pem", "-CAkey",
            directory / f"{signer}.key", "-CAcreateserial", "-days", "2", "-extfile", extension,
            "-out", directory / f"{file}.pem")  # fmt: skip


def shown(directory: Path, file: str | None, token: str | None, name: str | None = None) -> SiteCredentials:
    """What a site shows: the certificate of that file, and a token."""
    if file is None:
        return SiteCredentials(name, token, directory / "ca.pem")
    return SiteCredentials(
        name, token, directory / "ca.pem", directory / f"{file}.pem", directory / f"{file}.key"
    )


# ---- the honest run ----


class Run:
    """A server and its one honest site, each in a process."""

    def __init__(self, directory: Path, pki: Path, algorithm: dict[str, Any], seed: int) -> None:
        self.directory, self.state, self.held = directory, directory / "state", directory / "held"
        self.logs = directory / "sites"
        self.logs.mkdir(parents=True)
        recipe = directory / "recipe.yaml"
        recipe.write_text(yaml.safe_dump(document(algorithm, seed)), encoding="utf-8")
        words = [
            "serve", str(recipe), "--state", str(self.state), "--listen", "127.0.0.1:0", "--sites", "1",
            "--cert", str(pki / "server.pem"), "--key", str(pki / "server.key"),
            "--client-ca", str(pki / "ca.pem"), "--tokens", str(pki / "tokens.json"), "--log", "json",
        ]  # fmt: skip
        self.server = fork(lambda: call_offbeat(words), directory / "server.log")
        self.address = self._address()
        self.site = 0

    def _address(self) -> str:
        while True:
            with suppress(OSError, ValueError):
                return str(json.loads((self.state / "server.json").read_text(encoding="utf-8"))["address"])
            if ended(self.server) is not None:
                raise RuntimeError(f"the server has ended: see {self.directory}/server.log")
            time.sleep(0.02)

    def join(self, credentials: SiteCredentials) -> None:
        """Let the honest site begin. It holds its last updates back while the file `held` is there."""
        self.held.touch()
        honest = Honest("honest", "digits:1/9", credentials, self.held, VERSIONS - 3)
        self.site = fork(lambda: keep_company(self.address, honest, self.logs), self.directory / "site.log")

    def finish(self) -> bool:
        """Let it end; returns whether both ended well."""
        self.held.unlink()
        good = True
        for process in (self.server, self.site):
            deadline = time.monotonic() + 180
            while (status := ended(process)) is None and time.monotonic() < deadline:
                time.sleep(0.05)
            good &= status == 0
            if status is None:
                kill(process)
        return good and read_run(self.state).status == "finished"

    def memory(self) -> tuple[int, int]:
        """The server's resident memory now and at most, in KiB."""
        lines = Path(f"/proc/{self.server}/status").read_text(encoding="ascii").splitlines()
        found = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Vm")}
        return int(found["VmRSS"]), int(found["VmHWM"])

    def up(self) -> bool:
        """Is the server there?"""
        return ended(self.server) is None


def document(algorithm: dict[str, Any], seed: int) -> dict[str, Any]:
    """A recipe with a tiny model."""
    return {
        "clients": 1,
        "data": {"dataset": "digits", "samples": 200, "test_samples": 100},
        "model": {"name": "logistic"},
        "training": {"optimizer": "sgd", "lr": 0.05, "batch_size": 20},
        "algorithm": algorithm,
        "until": {"versions": VERSIONS},
        "evaluate": {"versions": 5},
        "seed": seed,
    }


# ---- outsiders ----


async def outsiders(address: str, pki: Path, tokens: dict[str, str], times: int) -> Counter[str]:
    """Try to come in without the right credential, so often each; counts how each ended."""
    from offbeat.net.grpc.client import connect
    from offbeat.net.wire.limits import Limits

    attempts = {
        "wrong token": shown(pki, "evil", "evil:" + "0" * 43),
        "token that is none": shown(pki, "evil", "x"),
        "another site's token": shown(pki, "evil", tokens["honest"]),
        "no token": shown(pki, "evil", None),
        "wrong certificate": shown(pki, "forged", tokens["honest"]),
        "no certificate": shown(pki, None, tokens["honest"]),
        "no credential": shown(pki, None, None),
        "another site's name": shown(pki, "evil", tokens["evil"], "honest"),
    }
    ends: Counter[str] = Counter()
    for what, credentials in attempts.items():
        for _ in range(times):
            try:
                link = await connect(address, credentials, Limits(handshake=20.0))
                link.send(Register(10, 1))
                answer = await link.receive()
                ends[f"{what}: {'refused' if isinstance(answer, Rejected) else 'LET IN'}"] += 1
                await link.close()
            except ChannelClosedError:
                ends[f"{what}: refused"] += 1
    return ends


# ---- what is not a message ----


def framed(message: FromSite) -> list[bytes]:
    """The frames of a message."""
    from offbeat.net.wire.serialization import serialize
    from offbeat.net.wire.writer import frames

    outgoing = serialize(message)
    return [frame for frame, _ in frames([outgoing.envelope], outgoing.body)]


class Fuzzer:
    """Makes streams of frames, nearly all of them wrong. The hello is one that the run will not take."""

    def __init__(self, chance: Random) -> None:
        from offbeat.net.wire import wire_pb2 as pb

        self.chance = chance
        self.hello = framed(Register(0, 0))[0]
        update = UpdateSubmission(0, 1, torch.full((VALUES,), float("nan")), NONE, {"loss": 0.5}, 0.1)
        self.good = [
            *framed(Heartbeat(1, 2)), *framed(UpdateReady(0, 1, {"loss": 1.0})), *framed(TaskFailed(0, "no")),
            *framed(Leave("so long")), *framed(update), *framed(Register(0, 0, (1, 2), 3, "run")),
        ]  # fmt: skip
        claim = pb.Envelope(
            update_submission=pb.UpdateSubmission(),
            body=pb.Body(parts=[pb.Part(kind=pb.Part.DELTA, type=pb.Part.FLOAT32, bytes=100 << 30)]),
        )
        self.claim = pb.Frame(envelopes=[claim]).SerializeToString()
        self.large = pb.Frame(chunk=pb.Chunk(data=bytes(1 << 16))).SerializeToString()
        self.half = framed(UpdateSubmission(0, 1, torch.zeros(VALUES), NONE))[0][:200]

    def stream(self) -> tuple[str, list[bytes]]:
        """What kind of attack, and its frames."""
        chance = self.chance
        kinds = {"flipped bits": 60, "random bytes": 25, "10 GB claimed": 4, "no body was announced": 4,
                 "truncated": 4, "a huge frame": 1, "before hello": 2}  # fmt: skip
        kind = chance.choices(list(kinds), list(kinds.values()))[0]
        first = [] if kind == "before hello" else [self.hello]
        match kind:
            case "flipped bits":
                return kind, [*first, self._flipped()]
            case "random bytes":
                return kind, [*first, chance.randbytes(chance.randrange(1, 600))]
            case "10 GB claimed":
                return kind, [*first, self.claim, self.large]
            case "no body was announced":
                return kind, [*first, self.large, self.large]
            case "truncated":
                return kind, [*first, self.half]
            case "a huge frame":
                return kind, [*first, bytes(5 << 20)]
            case _:
                return kind, [chance.choice(self.good)]

    def _flipped(self) -> bytes:
        frame = bytearray(self.chance.choice(self.good))
        for _ in range(self.chance.choice((1, 1, 2, 5))):
            frame[self.chance.randrange(min(len(frame), 120))] ^= 1 << self.chance.randrange(8)
        if self.chance.random() < 0.2:
            del frame[self.chance.randrange(len(frame)) :]
        return bytes(frame)


async def fuzz(run: Run, pki: Path, token: str, messages: int, chance: Random) -> dict[str, Any]:
    """Send so many messages, each in a stream of its own; how they ended, and the server's memory."""
    fuzzer, sent, ends = Fuzzer(chance), Counter[str](), Counter[str]()
    warm, early = messages // 10, 0
    while sum(sent.values()) < messages:
        channel = open_channel(run.address, pki)
        for _ in range(min(200, messages - sum(sent.values()))):  # then a new connection
            kind, frames = fuzzer.stream()
            sent[kind] += 1
            ends[f"{kind}: {await strike(channel, token, frames)}"] += 1
            if not early and sum(sent.values()) >= warm:
                early = run.memory()[0]
        await channel.close()
    now, most = run.memory()
    return {"sent": dict(sent), "ends": dict(ends), "early": early, "now": now, "most": most}


def open_channel(address: str, pki: Path) -> Any:
    """A connection with a good certificate, that says what it likes."""
    import grpc
    from grpc import aio

    tls = grpc.ssl_channel_credentials(
        (pki / "ca.pem").read_bytes(), (pki / "evil.key").read_bytes(), (pki / "evil.pem").read_bytes()
    )
    return aio.secure_channel(address, tls, options=[("grpc.use_local_subchannel_pool", 1)])


async def strike(channel: Any, token: str, frames: Sequence[bytes]) -> str:
    """One stream; returns its status."""
    from grpc import aio

    call = channel.stream_stream(CONNECT)(metadata=(("authorization", f"Bearer {token}"),))
    try:
        async with asyncio.timeout(30):
            for frame in frames:
                await call.write(frame)
            await call.done_writing()
            while isinstance(await call.read(), bytes):
                pass
            return str((await call.code()).name)
    except TimeoutError:
        call.cancel()
        return "no answer in 30 s"
    except (aio.AioRpcError, asyncio.InvalidStateError, aio.UsageError):
        return str((await call.code()).name)


# ---- an insider ----


async def insider(run: Run, credentials: SiteCredentials, rounds: int) -> Counter[str]:
    """Join the run and send updates that must not be taken; counts the answers."""
    answers: Counter[str] = Counter()
    for number in range(rounds):
        for what in ("foreign task", "NaN", "infinite", "too many steps", "NaN loss", "layout", "twice"):
            try:
                answers[f"{what}: {await _one_update(run, credentials, what, number)}"] += 1
            except ChannelClosedError as error:
                answers[f"{what}: the link was ended ({str(error)[:60]})"] += 1
    return answers


async def _one_update(run: Run, credentials: SiteCredentials, what: str, number: int) -> str:
    from offbeat.net.grpc.client import connect
    from offbeat.net.wire.limits import Limits

    link = await connect(run.address, credentials, Limits(drain=1.0, handshake=20.0))
    try:
        link.send(Register(10, 1))
        task = await _given(link)
        zeros = torch.zeros(VALUES)
        update = {
            "foreign task": UpdateSubmission(number, STEPS, zeros, NONE),
            "NaN": UpdateSubmission(task, STEPS, zeros * float("nan"), NONE),
            "infinite": UpdateSubmission(task, STEPS, zeros + float("inf"), NONE),
            "too many steps": UpdateSubmission(task, STEPS + 1, zeros, NONE),
            "NaN loss": UpdateSubmission(task, STEPS, zeros, NONE, {"loss": float("nan")}),
            "layout": UpdateSubmission(task, STEPS, zeros[1:], NONE),
            "twice": UpdateSubmission(task, STEPS, zeros * float("nan"), NONE),
        }[what]
        answer = ""
        for _ in range(2 if what == "twice" else 1):
            link.send(update)
            answer = await _answer(link, update.task)
        return answer
    finally:
        await link.close()


async def _given(link: Any) -> int:
    """The task that the server gives."""
    async with asyncio.timeout(60):
        while not isinstance(message := await link.receive(), TaskAssignment):
            if isinstance(message, Rejected) and message.final:
                raise ChannelClosedError(message.reason)
        return int(message.task)


async def _answer(link: Any, task: int) -> str:
    async with asyncio.timeout(60):
        while True:
            message = await link.receive()
            if isinstance(message, UpdateAck) and message.task == task:
                return "TAKEN" if message.accepted else "not taken"
            if isinstance(message, Rejected):
                return "refused"


# ---- all of it ----


def main() -> int:
    parser = argparse.ArgumentParser(description="a live server among bad peers")
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=20, help="how often each wrong credential is tried")
    parser.add_argument("--rounds", type=int, default=10, help="how often the insider sends each update")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="where to work; it is kept")
    chosen = parser.parse_args()
    leave_when_told()
    directory = chosen.directory or Path(tempfile.mkdtemp(prefix="offbeat-bad-peers-"))
    pki = directory / "pki"
    pki.mkdir(parents=True)
    tokens = {name: make_token(pki / "tokens.json", name) for name in ("honest", "evil")}
    for name in ("ca", "other"):
        authority(pki, name)
    for file, name, signer in (("server", "server", "ca"), ("honest", "honest", "ca"), ("evil", "evil", "ca"),
                               ("forged", "honest", "other")):  # fmt: skip
        certificate(pki, file, name, signer)
    fedavg, fedasync = {"name": "fedavg", "steps": STEPS}, {"name": "fedasync", "steps": STEPS}
    honest, evil = shown(pki, "honest", tokens["honest"]), shown(pki, "evil", tokens["evil"])
    # every process is started before this one opens a connection of its own
    algorithms = {"quiet": fedavg, "attacked": fedavg, "infiltrated": fedasync}
    runs = {name: Run(directory / name, pki, spec, chosen.seed) for name, spec in algorithms.items()}
    try:
        for run in runs.values():
            run.join(honest)
        return attack(runs, pki, tokens, evil, chosen)
    finally:
        for run in runs.values():
            for process in (run.server, run.site):
                kill(process)


def attack(
    runs: dict[str, Run], pki: Path, tokens: dict[str, str], evil: SiteCredentials, chosen: argparse.Namespace
) -> int:
    """Attack them, and print what came of it."""
    wrong: list[str] = []
    attacked, infiltrated = runs["attacked"], runs["infiltrated"]
    finished = {"quiet": runs["quiet"].finish()}
    ends = asyncio.run(outsiders(attacked.address, pki, tokens, chosen.times))
    show("credentials", ends)
    found = asyncio.run(fuzz(attacked, pki, tokens["evil"], chosen.messages, Random(chosen.seed)))
    show("messages", found["sent"])
    show("how their streams ended", found["ends"])
    print(
        f"server's memory: {found['early'] >> 10} MiB after a tenth, {found['now'] >> 10} MiB at the end, "
        f"{found['most'] >> 10} MiB at most"
    )
    answers = asyncio.run(insider(infiltrated, evil, chosen.rounds))
    show("an insider's updates", answers)
    wrong += [key for key in (*ends, *answers) if "LET IN" in key or "TAKEN" in key]
    if "Traceback" in (attacked.directory / "server.log").read_text(encoding="utf-8"):
        wrong.append(f"the server has failed to handle something: see {attacked.directory}/server.log")
    wrong += [f"the server of {name} is gone" for name in ("attacked", "infiltrated") if not runs[name].up()]
    if found["now"] - found["early"] > 64 << 10:
        wrong.append("the server's memory has grown by more than 64 MiB")
    finished |= {name: runs[name].finish() for name in ("attacked", "infiltrated")}
    wrong += [f"{name} did not finish" for name, good in finished.items() if not good]
    models = [(runs[name].state / "model.safetensors").read_bytes() for name in ("quiet", "attacked")]
    print(
        f"honest model with and without the attack: {'the same' if models[0] == models[1] else 'OTHER'} bytes"
    )
    if models[0] != models[1]:
        wrong.append("the attack has changed the model")
    record = read_run(infiltrated.state)
    names = record.site_names()
    taken = Counter(names[row.client or 0] for row in record.rows() if row.name == "arrived")
    print(f"taken from the honest site: {taken['honest']}, from the insider: {taken['evil']}")
    print(f"refused, by the server's own count: {record.meta['rejected']}")
    if taken["evil"]:
        wrong.append("an insider's update was taken")
    for line in wrong:
        print(f"WRONG: {line}")
    return 1 if wrong else 0


def show(title: str, counts: dict[str, int]) -> None:
    """Print counts."""
    print(f"{title}: {sum(counts.values())}", flush=True)
    for name, number in sorted(counts.items()):
        print(f"    {name}: {number}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
