"""A committee of helpers, updates masked for it, and a driver that unmasks their sums: all in memory."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from offbeat.core.privacy.sums import Integers, SumGrid
from offbeat.secure.committee import Committee, CommitteeMember
from offbeat.secure.effects import AskHelper, CommitManifest, Effect, MaskedEntry, WarnOperator
from offbeat.secure.helper import Helper
from offbeat.secure.helper_file import HelperFile
from offbeat.secure.masks import mask
from offbeat.secure.messages import UnmaskEntry, UnmaskRefused, UnmaskRequest, UnmaskShare, Words
from offbeat.secure.unmasking import Unmasking, UnmaskingPhase, UnmaskingTimes
from offbeat.secure.voted_unmasking import VotedUnmasking

RUN = bytes(range(32))
NAMES = ("hospital-a", "hospital-b", "auditor", "d", "e", "f", "g", "h", "i")
Answer = UnmaskShare | UnmaskRefused


def committee_of(helpers: Sequence[Helper], **changes: object) -> Committee:
    """A committee of these helpers, which do not vote unless `colluding` says so."""
    members = tuple(CommitteeMember(own.name, own.public_key, own.verify_key) for own in helpers)
    plain = {
        "run": RUN, "epoch": 1, "helpers": members, "colluding": len(helpers) - 1, "least": 3,
        "colluding_clients": 1, "most": 10, "dominance": 0.5, "weight_bits": 4, "parameters": 100,
        "clip": 1.0,
    }  # fmt: skip
    return Committee(**{**plain, **changes})


@dataclass
class Federation:
    """Helpers with their files in a directory, and the updates that the server holds."""

    directory: Path
    count: int = 3
    changes: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.helpers = [self.helper(number) for number in range(self.count)]
        self.committee = committee_of(self.helpers, **self.changes)
        for helper in self.helpers:
            helper.serve(self.committee)
        self.vectors: dict[int, Words] = {}
        self.entries: list[MaskedEntry] = []
        self.exact = np.zeros(self.committee.parameters, np.int64)

    def path(self, number: int) -> Path:
        return self.directory / f"{NAMES[number]}.db"

    def helper(self, number: int) -> Helper:
        return Helper(NAMES[number], HelperFile(self.path(number)))

    def restart(self, number: int) -> Helper:
        self.close(number)
        self.helpers[number] = self.helper(number)
        return self.helpers[number]

    def close(self, number: int) -> None:
        self.helpers[number]._file.close()

    def add(self, y: Integers, weight: int = 1, task: int | None = None, client: int | None = None) -> None:
        """An update of a new client."""
        task = 100 + len(self.entries) if task is None else task
        client = len(self.entries) if client is None else client
        masked = mask(y, self.committee, task, client, f"site-{client}")
        self.vectors[task] = masked.vector
        self.entries.append(MaskedEntry(task, client, f"site-{client}", weight, masked.boxes))
        self.exact += weight * y

    def fill(self, updates: int, rng: np.random.Generator) -> None:
        """Add random updates of random weights."""
        c = self.committee
        grid = SumGrid(c.most, c.weight_bits, c.clip, c.parameters, dithered=True)
        for _ in range(updates):
            delta = rng.standard_normal(c.parameters).astype(np.float32) * np.float32(c.parameters**-0.5)
            weight = int(rng.integers(-(-c.largest_weight // 2), c.largest_weight + 1))
            self.add(grid.round(delta, rng.bytes(32)), weight)

    def request(self, number: int, release: int = 12, check: bool = False) -> UnmaskRequest:
        """What the server asks of a helper: its groups, of all updates."""
        votes = self.committee.votes
        boxes = [b"".join(e.boxes) if votes else e.boxes[number] for e in self.entries]
        entries = tuple(
            UnmaskEntry(e.task, e.client, e.site, e.weight, box)
            for e, box in zip(self.entries, boxes, strict=True)
        )
        groups = tuple(self.committee.held_by(number))
        return UnmaskRequest(release, self.committee.digest, groups, entries, check)

    def unmasking(self, now: float = 0.0, release: int = 12, **options: object) -> Unmasking | VotedUnmasking:
        kind = VotedUnmasking if self.committee.votes else Unmasking
        return kind(self.committee, release, self.entries, self.vectors.__getitem__, now, **options)


@dataclass
class Driver:
    """Carries out the effects of an unmasking; `answer` stands between the helpers and the server."""

    federation: Federation
    unmasking: Unmasking | VotedUnmasking
    answer: Callable[[int, UnmaskRequest], Answer | None] | None = None
    asked: list[AskHelper] = field(default_factory=list)
    committed: list[CommitManifest] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.durable = self.unmasking.phase is not UnmaskingPhase.CHECKING  # by an earlier process

    def run(self, effects: Iterable[Effect], now: float = 0.0) -> UnmaskingPhase:
        """Carry out effects and what follows from them; a helper that gives None is silent."""
        waiting = list(effects)
        while waiting:
            effect = waiting.pop(0)
            if isinstance(effect, WarnOperator):
                self.warnings.append(effect.text)
            elif isinstance(effect, CommitManifest):
                self.committed.append(effect)
                self.durable = True
            else:
                assert effect.request.check or self.durable, "asked before the manifest was durable"
                self.asked.append(effect)
                helper, request = effect.helper, effect.request
                found = (self.answer or self.honest)(helper, request)
                if found is not None:
                    waiting += self.unmasking.answered(helper, found, now)
        return self.unmasking.phase

    def honest(self, helper: int, request: UnmaskRequest) -> Answer:
        return self.federation.helpers[helper].answer(request)


def unmask(federation: Federation, away: Iterable[int] = (), **options: object) -> Driver:
    """Unmask all updates of a federation, some helpers away."""
    driver = Driver(federation, federation.unmasking(**options))
    there = set(range(federation.count)) - set(away)
    driver.run(driver.unmasking.begin(there, 0.0))
    return driver


__all__ = ["Answer", "Driver", "Federation", "UnmaskingTimes", "committee_of", "unmask"]
