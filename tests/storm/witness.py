"""Witnesses: sites that write down what passes, durably every acknowledgement, and the seeds of a server."""

import asyncio
import json
import os
import resource
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256, shake_256
from pathlib import Path
from random import Random

import torch
from msgspec.structs import replace
from safetensors.torch import save

from offbeat.core.commands import Aggregate
from offbeat.core.errors import OffbeatError
from offbeat.core.learner import LocalResult
from offbeat.data.site import site_data
from offbeat.net import backoff, join, kit_connector
from offbeat.net.auth.credentials import SiteCredentials
from offbeat.net.messages import FromServer, FromSite, TaskAssignment, UpdateAck, UpdateSubmission
from offbeat.net.secure.release_seeds import FreshSeeds, ReleaseSeed
from offbeat.net.transport import ClientChannel
from offbeat.net.wire.limits import Limits
from tests.storm.processes import call_offbeat

SENT, ACKNOWLEDGED, MODELS, END = "sent", "acknowledged", "models", "end"


@dataclass
class Witness:
    """A site's link that keeps a log of what passes, and sends some updates twice.

    A hostile one's updates of each third task are ten thousand times as large as they were.
    """

    link: ClientChannel
    log: Path
    chance: Random
    last: UpdateSubmission | None = None
    hostile: bool = False

    @property
    def took(self) -> float:
        """Seconds in which the tensors of the last message came."""
        return self.link.took

    def send(self, message: FromSite) -> None:
        """Send; an update is written down first, and now and then it goes out again, or the one before."""
        if isinstance(message, UpdateSubmission):
            if self.hostile and message.task % 3 == 0:
                assert isinstance(message.delta, torch.Tensor)
                message = replace(message, delta=1e4 * message.delta)
            if not message.boxes:  # else it is kept in clear
                _keep(self.log.parent / "updates", message)
            _write(self.log / SENT, message.task)
        self.link.send(message)
        if isinstance(message, UpdateSubmission):
            for again in (message, self.last):
                if again is not None and self.chance.random() < 0.05:
                    _write(self.log / SENT, again.task)
                    self.link.send(again)
            self.last = message

    async def receive(self) -> FromServer:
        """Receive; an acknowledgement is on the disk before the site hears of it, and a model's digest."""
        message = await self.link.receive()
        if isinstance(message, TaskAssignment):
            _write(self.log / MODELS, f"{message.base} {message.model.digest()}")
        if isinstance(message, UpdateAck) and message.accepted:
            _write(self.log / ACKNOWLEDGED, message.task, durable=True)
        return message

    async def close(self, reason: str = "") -> None:
        """Close it."""
        await self.link.close(reason)


def take_part(
    address: str,
    kits: Sequence[Path],
    shares: int,
    directory: Path,
    pace: float,
    hostile: Sequence[str] = (),
    secure: bool = False,
) -> None:
    """Run the sites of these kits in this process until their run is over, with states in `directory`."""
    torch.set_num_threads(1)
    if secure:
        _keep_in_clear(directory / "updates")
    backoff.LONGEST_DELAY = 2.0  # they come back sooner than they would, so that there is more to lose
    asyncio.run(_all(address, kits, shares, directory, pace, hostile))


def help_out(address: str, kit: Path, directory: Path) -> None:
    """Be a helper in this process until its run is over."""
    backoff.LONGEST_DELAY = 2.0
    call_offbeat(
        ["helper", str(kit), "--set", f"access.address={address}", "--state", str(directory), "--log", "json"]
    )


def rounding_of(task: int) -> bytes:
    """The rounding of a task's update, in place of fresh bytes: so its sum can be made again."""
    return shake_256(b"rounding" + task.to_bytes(8, "big")).digest(32)


def _keep_in_clear(directory: Path) -> None:
    """Keep what a site masks."""
    from offbeat.net.secure.masking import Masking

    submission = Masking.submission

    def kept(self: Masking, a: TaskAssignment, steps: int, result: LocalResult, f: float) -> UpdateSubmission:
        _keep(directory, UpdateSubmission(a.task, steps, result.delta, a.model.integers, lr=result.lr))
        return submission(self, a, steps, result, f)

    Masking.rounding = lambda _, task: rounding_of(task)  # type: ignore[method-assign]
    Masking.submission = kept  # type: ignore[method-assign]


async def _all(
    address: str, kits: Sequence[Path], shares: int, directory: Path, pace: float, hostile: Sequence[str]
) -> None:
    from offbeat.net.client import connector

    connector.Limits = partial(Limits, handshake=5.0, drain=1.0)  # type: ignore[misc,assignment]

    async def one(kit: Path) -> None:
        name = kit.stem
        log = directory / name
        log.mkdir(parents=True, exist_ok=True)
        chance = Random(os.urandom(8))
        connect = kit_connector(kit, address, state=log / "state")

        async def witnessed() -> ClientChannel:
            return Witness(await connect(), log, chance, hostile=name in hostile)

        number = int(name.rpartition("-")[2])
        try:
            reason = await join(
                witnessed,
                site_data(f"digits:{number + 1}/{shares}"),
                state=log / "state",
                min_step_seconds=pace,
            )
        except OffbeatError as error:
            reason = f"{type(error).__name__}: {error}"
        (log / END).write_text(reason, encoding="utf-8")

    await asyncio.gather(*(one(kit) for kit in kits))


def read_tasks(directory: Path, what: str) -> dict[str, Counter[int]]:
    """How often each task is in the sites' logs, by site."""
    found = {}
    for log in sorted(directory.glob(f"*/{what}")):
        found[log.parent.name] = Counter(int(line) for line in log.read_text(encoding="ascii").split())
    return found


def read_models(directory: Path) -> dict[int, set[str]]:
    """The digests of the models that sites were sent to train from, by version."""
    found: dict[int, set[str]] = {}
    for log in sorted(directory.glob(f"*/{MODELS}")):
        for line in log.read_text(encoding="ascii").splitlines():
            version, digest = line.split()
            found.setdefault(int(version), set()).add(digest)
    return found


def newest_models(directory: Path) -> dict[str, int]:
    """The version of the last model that each site was sent."""
    logs = {path.parent.name: path.read_text(encoding="ascii") for path in directory.glob(f"*/{MODELS}")}
    return {site: int(text.splitlines()[-1].split()[0]) for site, text in logs.items() if text}


def _write(path: Path, line: object, durable: bool = False) -> None:
    with path.open("a", encoding="ascii") as file:
        file.write(f"{line}\n")
        file.flush()
        if durable:
            os.fsync(file.fileno())


# ---- the noise of a server ----


def keep_seeds(path: Path) -> None:
    """Write down each seed of noise that this process uses, durably and before it is used."""
    noise, last = FreshSeeds.noise, [b""]

    def kept(self: FreshSeeds, release: Aggregate) -> bytes:
        seed = noise(self, release)
        if seed != last[0]:
            last[0] = seed
            with _unlimited():
                _write(path, json.dumps([release.version, release.tasks, seed.hex()]), durable=True)
        return seed

    FreshSeeds.noise = kept  # type: ignore[method-assign]


def read_seeds(directory: Path, after: int = 0) -> list[ReleaseSeed]:
    """The seeds that a server's processes have used, those after its so many first ones, in order."""
    paths = sorted(
        (path for path in directory.iterdir() if int(path.name) > after), key=lambda p: int(p.name)
    )
    lines = [line for path in paths for line in path.read_text(encoding="ascii").splitlines()]
    used = [json.loads(line) for line in lines if line.endswith("]")]  # else it was killed while it wrote
    return [ReleaseSeed(version, tuple(tasks), bytes.fromhex(seed)) for version, tasks, seed in used]


@contextmanager
def _unlimited() -> Iterator[None]:
    """What a witness writes is not limited, though the server has a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _keep(directory: Path, result: UpdateSubmission) -> None:
    """Keep what an update consists of, under its task and its content: it may have been trained twice."""
    assert isinstance(result.delta, torch.Tensor)
    tensors = {"delta": result.delta, "integers": result.integers, "lr": torch.tensor([result.lr]).double()}
    if result.shared is not None:
        tensors["shared"] = result.shared
    octets = save(tensors)
    directory.mkdir(exist_ok=True)
    part = directory / f"{os.getpid()}-{result.task}.part"  # sites train side by side
    part.write_bytes(octets)
    part.replace(directory / f"{result.task}-{sha256(octets).hexdigest()[:16]}.safetensors")


# ---- one site that is honest ----


@dataclass(frozen=True)
class Honest:
    """A site with a credential, on these data; from task `after` on it sends nothing while `held` exists."""

    name: str
    data: str
    credentials: SiteCredentials
    held: Path
    after: int


@dataclass
class _Patient(Witness):
    honest: Honest | None = None
    late: asyncio.Task[None] | None = None

    def send(self, message: FromSite) -> None:
        """Send, an update not before it may."""
        assert self.honest is not None
        if isinstance(message, UpdateSubmission) and message.task >= self.honest.after:
            self.late = asyncio.create_task(self._send_once_allowed(message))
        else:
            super().send(message)

    async def _send_once_allowed(self, update: UpdateSubmission) -> None:
        assert self.honest is not None
        while self.honest.held.exists():
            await asyncio.sleep(0.05)
        super().send(update)


def keep_company(address: str, honest: Honest, directory: Path) -> None:
    """Run this site in this process until its run is over."""
    torch.set_num_threads(1)
    asyncio.run(_keep_company(address, honest, directory))


async def _keep_company(address: str, honest: Honest, directory: Path) -> None:
    from offbeat.net.grpc.client import connect

    log = directory / honest.name
    log.mkdir(parents=True, exist_ok=True)
    limits = Limits(handshake=20.0)

    async def patient() -> ClientChannel:
        link = await connect(address, honest.credentials, limits)
        return _Patient(link, log, Random(1), honest=honest)

    await join(patient, site_data(honest.data), min_step_seconds=0.05)
