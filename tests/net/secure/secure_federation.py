"""A server with helpers and sites in one thread, that can die before and after each durable write."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import offbeat as ob
from offbeat.algorithms.privacy.private import complete_privacy, with_privacy
from offbeat.core.journal import Row
from offbeat.core.layout import Layout
from offbeat.core.model import Model
from offbeat.core.privacy.ledger import ReleasePlan
from offbeat.core.privacy.sums import SumGrid
from offbeat.core.staleness import ConstantWeight
from offbeat.net.messages import (
    FromServer,
    FromSite,
    Register,
    Rejected,
    TaskAssignment,
    UpdateAck,
    UpdateSubmission,
)
from offbeat.net.secure.release_seeds import FreshSeeds
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.durable_store import DurableStore
from offbeat.net.server.effects import Effects
from offbeat.net.server.handlers import RunInfo
from offbeat.secure.committee import Committee
from offbeat.secure.helper import Helper
from offbeat.secure.helper_file import HelperFile
from offbeat.secure.masks import mask
from offbeat.secure.messages import UnmaskRefused, UnmaskRequest, UnmaskShare
from tests.net.support import coordinator_from, terms_of

SIZE, SITES, TASKS = 6, 5, 12
HELPERS = ("a", "b", "c")
FOUR = {"helpers": ("a", "b", "c", "d"), "colluding": 1}
"""A committee that votes, and that goes on without one helper."""
META = {"label": "x", "algorithm": {"name": "fedbuff"}, "seed": 0, "clients": SITES}
Answer = UnmaskShare | UnmaskRefused


def privacy_of(secure: ob.Secure, **options: Any) -> ob.Privacy:
    return ob.Privacy(clip=1.0, least=3, secure=secure, **options)


def update_of(task: int, size: int = SIZE) -> torch.Tensor:
    generator = torch.Generator().manual_seed(task)
    return torch.randn(size, generator=generator) * (3 if task % 3 else 0.2)


def rounding_of(task: int) -> bytes:
    return hashlib.shake_256(b"r" + task.to_bytes(8, "big")).digest(32)


class Drawn:
    """Bytes that are the same for the same number of draws."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, size: int) -> bytes:
        self.count += 1
        return hashlib.shake_256(self.count.to_bytes(8, "big")).digest(size)


class SecureFederation:
    """A server in `directory`, helpers with files beside it, and sites that say again what was not answered.

    Attributes:
        answers: Stands between a helper and the server, by the helper's name; None from it is silence.
        masked: What a site sends, in place of a masked update, by the site's name.
    """

    def __init__(
        self,
        directory: Path,
        *,
        weighted: bool = False,
        tasks: int = TASKS,
        size: int = SIZE,
        sites: int = SITES,
        secure: Mapping[str, Any] = {"helpers": HELPERS},
        algorithm: ob.Algorithm | None = None,
        **options: Any,
    ) -> None:
        self.algorithm = algorithm  # None means FedBuff
        self.size, self.sites, self.names = size, sites, tuple(secure["helpers"])
        self.directory, self.options, self.weighted, self.tasks_in_all = directory, options, weighted, tasks
        self.privacy = privacy_of(ob.Secure(**secure), **options.pop("privacy", {}))
        self.seeds = Drawn()
        self.now, self.rows = 0.0, list[Row]()
        self.inbox: list[tuple[str, FromSite]] = []
        self.tasks: dict[str, TaskAssignment] = {}
        self.pending: dict[str, UpdateSubmission] = {}
        self.committee: Committee | None = None
        self.models: dict[int, torch.Tensor] = {}
        self.drawn: dict[int, bytes] = {}
        self.said: list[tuple[str, FromServer]] = []
        self.answers: dict[str, Callable[[Answer], Answer | None]] = {}
        self.masked: dict[str, Callable[[UpdateSubmission], UpdateSubmission]] = {}
        self.away: set[str] = set()
        self.helpers: dict[str, Helper] = {}
        self._files: dict[str, HelperFile] = {}
        directory.mkdir(exist_ok=True)
        for name in self.names:
            self.restart_helper(name)
        self.coordinator = self._coordinator()
        self.store = DurableStore(directory / "run", self.coordinator, META)
        self.connect()

    def _coordinator(self, first: float = 0.0, **more: Any) -> Coordinator:
        staleness = {} if self.weighted else {"staleness": ConstantWeight()}
        algorithm = self.algorithm or ob.fedbuff(size=3, steps=1, **staleness)
        complete = complete_privacy(self.privacy, algorithm, self.sites)
        initial = Model(
            Layout.flat(self.size), torch.full((self.size,), first), torch.zeros(0, dtype=torch.int64)
        )
        wanted = terms_of(
            clients=self.sites,
            guard=None,
            until=ob.Until(tasks=self.tasks_in_all),
            **{"lease": 1e9, **self.options, **more},
        )
        spec = {"privacy": {"secure": {"helpers": list(self.names)}}}
        return coordinator_from(
            with_privacy(algorithm, complete), initial, wanted, RunInfo("run", spec),
            release_plan=ReleasePlan(complete, self.size, self.sites), seeds=FreshSeeds(self.seeds),
        )  # fmt: skip

    # ---- who is there ----

    def restart_helper(self, name: str, file: str = "helper.db") -> None:
        """A helper's process dies, and another one takes its place."""
        if name in self._files:
            self._files[name].close()
        path = self.directory / name
        path.mkdir(exist_ok=True)
        self._files[name] = HelperFile(path / file)
        self.helpers[name] = Helper(name, self._files[name])

    def registers(self, name: str) -> None:
        """A helper connects."""
        helper, own = self.helpers[name], self.helpers[name].committee
        digest = b"" if own is None else own.digest
        hello = Register(
            0, 0, public_key=helper.public_key, instance=helper.instance, committee=digest,
            verify_key=helper.verify_key,
        )  # fmt: skip
        self.inbox.append((name, hello))

    def connect(self) -> None:
        """Everybody connects anew; what was on its way is lost."""
        self.inbox.clear()
        for name in self.names:
            if name not in self.away:
                self.registers(name)
        for i in range(self.sites):
            self.site_registers(f"site-{i}")

    def site_registers(self, name: str) -> None:
        """A site connects, and sends what was not answered."""
        holds = self.pending[name].task if name in self.pending else None
        self.inbox.append((name, Register(20, 4, holds=holds, run="run")))
        if name in self.pending:
            self.inbox.append((name, self.pending[name]))

    def die(self, **more: Any) -> None:
        """The server's process is gone; another one takes its place."""
        self.store.close()
        self.coordinator = self._coordinator(first=9.0, **more)
        self.store = DurableStore(self.directory / "run", self.coordinator)
        self.tasks.clear()
        self.connect()

    # ---- one message ----

    @property
    def idle(self) -> bool:
        """Whether nothing is on its way that would be heard."""
        return all(self.coordinator.postpones(name) for name, _ in self.inbox)

    def step(self) -> Effects:
        """Pass the next message, the oldest task first."""
        self.now += 1.0
        heard = [own for own in self.inbox if not self.coordinator.postpones(own[0])]
        if heard:
            name, message = min(heard, key=_order)
            self.inbox = [own for own in self.inbox if own[1] is not message]
            self.coordinator.receive(self.now, name, message)
        self.coordinator.tick(self.now)
        return self.coordinator.take()

    def deliver(self, effects: Effects) -> None:
        """Pass what the server says to sites and helpers."""
        self.rows += effects.rows
        self.said += effects.messages
        self.drawn |= {own.version: own.seed for own in effects.seeds}
        for name, message in effects.messages:
            if isinstance(message, UnmaskRequest):
                if name not in self.away:
                    self._ask(name, message)
            elif isinstance(message, Committee):
                self.committee = message
                if name in self.helpers:
                    self.helpers[name].serve(message)
            elif isinstance(message, TaskAssignment):
                sent = self.models.setdefault(message.base, message.model.values)
                assert torch.equal(sent, message.model.values), message.base
                self._train(name, message.task)
            elif isinstance(message, UpdateAck) or (isinstance(message, Rejected) and name not in self.names):
                self.pending.pop(name, None)

    def _ask(self, name: str, request: UnmaskRequest) -> None:
        answer: Answer | None = self.helpers[name].answer(request)
        if name in self.answers:
            answer = self.answers[name](answer)
        if answer is not None:
            self.inbox.append((name, answer))

    def _train(self, name: str, task: int) -> None:
        if name not in self.pending or self.pending[name].task != task:
            committee = self.committee
            assert committee is not None
            grid = SumGrid(committee.most, committee.weight_bits, committee.clip, self.size, dithered=True)
            y = grid.round(update_of(task, self.size).numpy(), rounding_of(task))
            client = int(name.rpartition("-")[2])
            own = mask(y, committee, task, client, name)
            update = UpdateSubmission(
                task, 1, torch.from_numpy(own.vector.view("int32")), torch.zeros(0, dtype=torch.int64),
                committee=own.committee, boxes=own.boxes,
            )  # fmt: skip
            self.pending[name] = self.masked[name](update) if name in self.masked else update
        self.inbox.append((name, self.pending[name]))

    def finish(self) -> None:
        """Write the final model."""
        self.store.finish(self.coordinator, {})
        for file in self._files.values():
            file.close()

    # ---- what happened ----

    def journal(self, name: str) -> list[dict[str, Any]]:
        """The values of all rows of a name."""
        return [{**(row.data or {}), "version": row.version} for row in self.rows if row.name == name]

    def check_manifests(self) -> None:
        """No task is in two manifests, in the journal or at a helper."""
        summed = [task for row in self.journal("releasing") for task in row["tasks"]]
        assert len(set(summed)) == len(summed)


def _order(own: tuple[str, FromSite]) -> tuple[int, int, str]:
    name, message = own
    if isinstance(message, Register):
        return 0, 0, name
    if isinstance(message, UpdateSubmission):
        return 2, message.task, name
    return 1, 0, name


def run(
    directory: Path,
    dies: Callable[[Effects], str | None] = lambda effects: None,
    checkpoints: range = range(0),
    meanwhile: Callable[[int, SecureFederation], None] = lambda i, f: None,
    most: int = 600,
    **options: Any,
) -> SecureFederation:
    """A whole run, with deaths as `dies` says: before the first durable write, between, or after the last."""
    return drive(SecureFederation(directory, **options), most, meanwhile, dies, checkpoints)


def drive(
    f: SecureFederation,
    most: int = 600,
    meanwhile: Callable[[int, SecureFederation], None] = lambda i, f: None,
    dies: Callable[[Effects], str | None] = lambda effects: None,
    checkpoints: range = range(0),
) -> SecureFederation:
    """Let a federation go on until its run has ended, or so many steps."""
    for i in range(most):
        meanwhile(i, f)
        effects = f.step()
        death = dies(effects)
        if death == "between":  # the secrets are durable, the journal is not
            f.store._files.secrets.add(effects.seeds, effects.sums)
        elif death != "before":
            f.store.commit(effects)
            f.rows += effects.rows if death is not None else []
        if i in checkpoints and death is None:
            f.store.checkpoint(f.coordinator)
        if death is not None:
            f.die()
            continue
        f.deliver(effects)
        if f.coordinator.stopped is not None:
            break
    return f
