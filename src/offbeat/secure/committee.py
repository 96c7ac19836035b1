"""The committee of a run's helpers, and the digests that bind its members.

A group of seeds belongs to each set of T helpers; the other H − T helpers hold it. So any T helpers lack the
seeds of one group, and any T + 1 have all (Cramer, Damgård, Ishai, Share Conversion, Pseudorandom
Secret-Sharing and Applications, 2005).

With H = T + 1 each group has one holder, and a release needs every helper. With more helpers they vote: a
helper signs at most one release for each update, and gives a sum of masks only for a release that a quorum of
⌊(H + T)/2⌋ + 1 has signed. Two quorums have T + 1 helpers in common, so one that is honest. What one helper
says of a group (its sum of masks, the boxes of its seeds) the other holders know too, and a majority of the
⌊(H − T)/2⌋ + 1 decides. Both work while at most ⌈(H − T)/2⌉ − 1 helpers are away, refuse or lie.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import chain, combinations
from math import comb
from struct import pack
from typing import Annotated

from msgspec import Meta

from offbeat.core.events import ClientId, TaskId
from offbeat.core.privacy.privacy_options import Privacy, Secure
from offbeat.core.privacy.sums import largest_weight
from offbeat.secure.bounds import HELPERS, Digest, Name
from offbeat.secure.refusals import SecureRefusal

Field = int | float | str | bytes
Entry = tuple[TaskId, ClientId, int]
"""A task of a release, its client and its integer weight."""

SEED_BYTES = 32
SIGNATURE_BYTES = 64
_KEY_BYTES, _TAG_BYTES = 32, 16
SEALED_BYTES = _KEY_BYTES + SEED_BYTES + _TAG_BYTES
"""Bytes of one seed that is encrypted by itself."""


def hashed_text(*fields: Field) -> bytes:
    """Fields as the text of a hash: numbers 8 bytes big-endian, strings preceded by their length."""
    return b"".join(_bytes_of(field) for field in fields)


def _bytes_of(field: Field) -> bytes:
    if isinstance(field, int):
        return pack(">q", field)
    if isinstance(field, float):
        return pack(">d", field)
    data = field.encode() if isinstance(field, str) else field
    return pack(">q", len(data)) + data


def fingerprint(public_key: bytes, verify_key: bytes) -> str:
    """SHA-256 of a helper's keys, in hexadecimal, as a site's policy file names it."""
    return sha256(public_key + verify_key).hexdigest()


def quorum(helpers: int, colluding: int) -> int:
    """⌊(H + T)/2⌋ + 1, helpers that must sign a release. Any two such sets have T + 1 in common."""
    return (helpers + colluding) // 2 + 1


def majority(helpers: int, colluding: int) -> int:
    """⌊(H − T)/2⌋ + 1, the majority of the H − T holders of a group."""
    return (helpers - colluding) // 2 + 1


def tolerated(helpers: int, colluding: int) -> int:
    """⌈(H − T)/2⌉ − 1, helpers that may be away, refuse or lie without harm."""
    return helpers - quorum(helpers, colluding)


def votes(helpers: int, colluding: int) -> bool:
    """Whether helpers vote: there are more than T + 1."""
    return helpers > colluding + 1


def box_bytes(helpers: int, colluding: int) -> int:
    """Bytes of a box: the seeds of the groups that a helper is in, each encrypted by itself."""
    return comb(helpers - 1, colluding) * SEALED_BYTES


def entry_bytes(helpers: int, colluding: int) -> int:
    """Bytes of the boxes of an update that a helper is sent: its own, or those of all where helpers vote."""
    return box_bytes(helpers, colluding) * (helpers if votes(helpers, colluding) else 1)


@dataclass(frozen=True)
class CommitteeMember:
    """A helper.

    Attributes:
        name: Its name.
        public_key: Its X25519 public key of 32 bytes, to which sites encrypt seeds.
        verify_key: Its Ed25519 public key of 32 bytes, by which its votes are verified.
    """

    name: Name
    public_key: Digest
    verify_key: Digest


@dataclass(frozen=True)
class Committee:
    """The helpers of a run, and the bounds that they hold each release to.

    Attributes:
        run: 32 bytes drawn when the run was created.
        epoch: Number of this committee within the run, from 1.
        helpers: The helpers, 2 to 9, in order.
        colluding: T, most helpers that may collude with the server.
        least: m, fewest updates of a release.
        colluding_clients: t, clients that may collude with the server.
        most: M, most updates of a release.
        dominance: ρ, most of a release's weight that one update has.
        weight_bits: w, bits of a weight.
        parameters: L, parameters of the model.
        clip: C, norm to which updates are clipped.

    Raises:
        UsageError: A number is outside its range, or two do not go together.
    """

    run: Digest
    epoch: int
    helpers: Annotated[tuple[CommitteeMember, ...], Meta(max_length=HELPERS)]
    colluding: int
    least: int
    colluding_clients: int
    most: int
    dominance: float
    weight_bits: int
    parameters: int
    clip: float

    def __post_init__(self) -> None:
        """Refuse numbers that the options of privacy refuse, and keys that are none or of two helpers."""
        Privacy(
            clip=self.clip,
            weight_bits=self.weight_bits,  # type: ignore[arg-type]  # it is checked there
            least=self.least,
            most=self.most,
            dominance=self.dominance,
            colluding_clients=self.colluding_clients,
            secure=Secure(helpers=tuple(helper.name for helper in self.helpers), colluding=self.colluding),
        )
        keys = [self.run, *(key for own in self.helpers for key in (own.public_key, own.verify_key))]
        if any(len(key) != _KEY_BYTES for key in keys) or len(self.helpers) < 2 or self.parameters < 0:
            raise SecureRefusal.MALFORMED.error()
        for one, other in combinations(self.helpers, 2):
            if one.public_key == other.public_key or one.verify_key == other.verify_key:
                raise SecureRefusal.SAME_KEY.error(name=one.name, other=other.name)

    @cached_property
    def digest(self) -> bytes:
        """The digest that stands for the committee in boxes, uploads, requests and manifests."""
        numbers = (
            self.epoch, len(self.helpers), self.colluding, self.least, self.colluding_clients, self.most,
            float(self.dominance), self.weight_bits, self.parameters, float(self.clip),
        )  # fmt: skip
        keys = [field for own in self.helpers for field in (own.name, own.public_key, own.verify_key)]
        return sha256(hashed_text("offbeat/1/committee", self.run, *numbers, *keys)).digest()

    @cached_property
    def groups(self) -> tuple[frozenset[int], ...]:
        """The helpers that hold each group of seeds, by number."""
        everybody = frozenset(range(len(self.helpers)))
        return tuple(everybody - set(absent) for absent in combinations(sorted(everybody), self.colluding))

    @property
    def votes(self) -> bool:
        """Whether helpers vote."""
        return votes(len(self.helpers), self.colluding)

    @property
    def needed(self) -> int:
        """Helpers that a release needs: a quorum, which is all where they do not vote."""
        return quorum(len(self.helpers), self.colluding)

    @property
    def majority(self) -> int:
        """Number of holders of a group who decide its sum."""
        return majority(len(self.helpers), self.colluding)

    @property
    def tolerated(self) -> int:
        """Helpers that may be away, refuse or lie."""
        return tolerated(len(self.helpers), self.colluding)

    @property
    def largest_weight(self) -> int:
        """q, the largest integer weight of an update."""
        return largest_weight(self.weight_bits)

    @property
    def box_bytes(self) -> int:
        """Bytes of the seeds of an update for one helper, encrypted."""
        return box_bytes(len(self.helpers), self.colluding)

    def held_by(self, helper: int) -> list[int]:
        """The groups whose seeds a helper holds, in order."""
        return [group for group, holders in enumerate(self.groups) if helper in holders]

    def manifest(self, release: int, entries: Iterable[Entry]) -> bytes:
        """The digest of a release: which updates, with which weights."""
        fields = chain.from_iterable(sorted(entries))
        return sha256(hashed_text("offbeat/1/manifest", self.digest, release, *fields)).digest()

    def voted_manifest(self, release: int, entries: Iterable[Entry], boxes: Mapping[TaskId, bytes]) -> bytes:
        """The digest of a release on which helpers vote: which updates, weights and boxes of all helpers.

        Other seeds of the same updates would be another release: the difference of both tells of an update.
        """
        fields: list[Field] = []
        for task, client, weight in sorted(entries):
            fields += [task, client, weight, sha256(boxes[task]).digest()]
        return sha256(hashed_text("offbeat/1/voted-manifest", self.digest, release, *fields)).digest()

    def refusal(self, release: int, entries: Iterable[Entry]) -> str | None:
        """Why these updates may not be summed together, whatever was released before; None if they may."""
        entries = list(entries)
        clients = [client for _, client, _ in entries]
        if not self.least <= len(set(clients)) <= self.most:
            return SecureRefusal.CLIENTS.format(
                release=release, clients=len(set(clients)), least=self.least, most=self.most
            )
        if (client := _twice(clients)) is not None:
            return SecureRefusal.CLIENT_TWICE.format(client=client, release=release)
        if (task := _twice([task for task, _, _ in entries])) is not None:
            return SecureRefusal.TASK_TWICE.format(task=task, release=release)
        return None

    def weight_refusal(self, release: int, entries: Iterable[Entry]) -> str | None:
        """Why these weights are not allowed; None if they are."""
        entries, largest = list(entries), self.largest_weight
        for task, _, weight in entries:
            if not 1 <= weight <= largest:
                return SecureRefusal.WEIGHT.format(weight=weight, task=task, largest=largest)
        total = sum(weight for _, _, weight in entries)
        for task, _, weight in entries:
            if weight > self.dominance * total:
                return SecureRefusal.DOMINANT.format(
                    task=task, percent=100 * weight / total, release=release, allowed=100 * self.dominance
                )
        return None

    def mismatch(self, plan: Privacy, parameters: int | None = None) -> str | None:
        """The first difference from a run's plan, as a site or helper got it; None if there is no difference.

        Args:
            plan: The run's complete options, with `secure`.
            parameters: Parameters of the plan's model. None means that they are not compared.
        """
        assert plan.secure is not None
        planned = {
            "clip": plan.clip, "weight_bits": plan.weight_bits, "least": plan.fewest, "most": plan.most,
            "dominance": plan.dominance, "colluding_clients": plan.colluding_clients,
            "colluding": plan.secure.most_colluding, "helpers": ", ".join(plan.secure.helpers),
            "parameters": self.parameters if parameters is None else parameters,
        }  # fmt: skip
        names = ", ".join(helper.name for helper in self.helpers)
        for option, value in planned.items():
            given = names if option == "helpers" else getattr(self, option)
            if given != value:
                return SecureRefusal.PLAN.format(option=option, given=given, planned=value)
        return None

    def unpinned(self, pinned: Mapping[str, str]) -> str | None:
        """The first helper that is not the one in a site's policy; None if all are.

        Args:
            pinned: Fingerprints by name.
        """
        for helper in self.helpers:
            if helper.name not in pinned:
                return SecureRefusal.PINNED_NAME.format(name=helper.name)
            if pinned[helper.name] != fingerprint(helper.public_key, helper.verify_key):
                return SecureRefusal.PINNED_KEY.format(name=helper.name)
        return None


def _twice(values: list[int]) -> int | None:
    """The first value that stands there a second time."""
    seen: set[int] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
