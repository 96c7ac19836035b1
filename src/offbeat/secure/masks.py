"""Masks of updates: pseudorandom vectors whose seeds are encrypted to helpers.

A mask is the key stream of AES-256 in counter mode, as 32-bit words; it is added to an update modulo 2³². Its
seeds go to helpers by HPKE (RFC 9180): DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305, bound to
the committee, task, client, site and helper. Helpers that vote get each seed by itself, encrypted such that
its other holders can check it (`sealed_seeds`).
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from offbeat.core.events import ClientId, TaskId
from offbeat.core.extras import requires_extra
from offbeat.core.privacy.sums import Integers
from offbeat.secure.committee import SEALED_BYTES, SEED_BYTES, Committee, hashed_text
from offbeat.secure.messages import Words
from offbeat.secure.refusals import SecureRefusal
from offbeat.secure.sealed_seeds import seal_seed

with requires_extra("secure", "secure aggregation: "):
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

_CHUNK = 1 << 16  # words
_BLOCK = 16  # bytes of an AES block
_ZEROS = memoryview(bytes(4 * _CHUNK))
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


@dataclass(frozen=True)
class MaskedUpdate:
    """An update that its site has masked.

    Attributes:
        committee: Digest of the committee it is masked for.
        vector: y plus masks, modulo 2³², [L].
        boxes: The seeds for each helper, encrypted to it.
    """

    committee: bytes
    vector: Words = field(repr=False)
    boxes: tuple[bytes, ...] = field(repr=False)


def add_masks(vector: Words, seeds: Sequence[bytes], weights: Sequence[int]) -> None:
    """Add weighted masks to a vector, in place and modulo 2³².

    Args:
        vector: uint32 [L].
        seeds: 32 bytes of each mask.
        weights: The factor of each mask.
    """
    streams = [Cipher(algorithms.AES(seed), modes.CTR(bytes(_BLOCK))).encryptor() for seed in seeds]
    factors = [np.uint32(weight % 2**32) for weight in weights]
    buffer = bytearray(4 * _CHUNK + _BLOCK - 1)
    words = np.frombuffer(buffer, "<u4", _CHUNK)
    product = np.empty(_CHUNK, np.uint32)
    for start in range(0, len(vector), _CHUNK):
        part = vector[start : start + _CHUNK]
        size = len(part)
        for stream, factor in zip(streams, factors, strict=True):
            stream.update_into(_ZEROS[: 4 * size], buffer)
            np.multiply(words[:size], factor, out=product[:size])
            part += product[:size]


def mask(
    y: Integers,
    committee: Committee,
    task: TaskId,
    client: ClientId,
    site: str,
    draw: Callable[[int], bytes] = os.urandom,
) -> MaskedUpdate:
    """Mask an update with fresh seeds.

    Args:
        y: The rounded update, int64 [L].
        committee: Who gets the seeds.
        task: The update's task.
        client: Its client.
        site: The name of the client's site.
        draw: Draws a number of random bytes.

    Raises:
        UsageError: The key of a helper is none.
    """
    seeds = [draw(SEED_BYTES) for _ in committee.groups]
    vector = y.astype(np.uint32)
    add_masks(vector, seeds, [1] * len(seeds))
    boxes = []
    for number, helper in enumerate(committee.helpers):
        held = {group: seeds[group] for group in committee.held_by(number)}
        try:
            if committee.votes:
                boxes.append(_sealed(held, committee, task, client, site, number))
                continue
            key, together = X25519PublicKey.from_public_bytes(helper.public_key), b"".join(held.values())
            boxes.append(_SUITE.encrypt(together, key, info=_info(committee, task, client, site, number)))
        except ValueError:
            raise SecureRefusal.WRONG_KEY.error(name=helper.name) from None
    return MaskedUpdate(committee.digest, vector, tuple(boxes))


def _sealed(
    seeds: Mapping[int, bytes], committee: Committee, task: TaskId, client: ClientId, site: str, helper: int
) -> bytes:
    """The box of a helper that votes: each of these seeds by itself."""
    key = committee.helpers[helper].public_key
    infos = {group: _info(committee, task, client, site, helper, group) for group in seeds}
    return b"".join(seal_seed(seed, key, infos[group]) for group, seed in seeds.items())


class HelperKey:
    """A helper's key pair of X25519.

    Args:
        private: The private key, 32 bytes.
    """

    def __init__(self, private: bytes) -> None:
        self._private = X25519PrivateKey.from_private_bytes(private)

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return self._private.public_key().public_bytes_raw()

    def open(
        self, box: bytes, committee: Committee, task: TaskId, client: ClientId, site: str, helper: int
    ) -> dict[int, bytes] | None:
        """The seeds of a box by group; None if it is not of this key, task, client, site and helper.

        Args:
            box: The helper's box; of a committee that votes the boxes of all its helpers, one after another.
            committee: The committee.
            task: The task of the update.
            client: Its client.
            site: The name of the client's site.
            helper: The helper's number.

        Returns:
            None too where the helpers vote and the box of another one has not the same seeds.
        """
        if committee.votes:
            return self._open_sealed(box, committee, task, client, site, helper)
        groups = committee.held_by(helper)
        try:
            seeds = _SUITE.decrypt(box, self._private, info=_info(committee, task, client, site, helper))
        except (InvalidTag, ValueError):
            # `ValueError` means that the box is too short to be one.
            return None
        if len(seeds) != SEED_BYTES * len(groups):
            return None
        return {group: seeds[SEED_BYTES * i :][:SEED_BYTES] for i, group in enumerate(groups)}

    def _open_sealed(
        self, boxes: bytes, committee: Committee, task: TaskId, client: ClientId, site: str, helper: int
    ) -> dict[int, bytes] | None:
        size, groups, seeds = committee.box_bytes, committee.held_by(helper), {}
        if len(boxes) != size * len(committee.helpers):
            return None
        own = boxes[size * helper :][:size]
        for number, group in enumerate(groups):
            info = _info(committee, task, client, site, helper, group)
            try:
                sealed = own[SEALED_BYTES * number :][:SEALED_BYTES]
                seeds[group] = _SUITE.decrypt(sealed, self._private, info=info)
            except (InvalidTag, ValueError):
                return None
            if len(seeds[group]) != SEED_BYTES:
                return None
        for other in range(len(committee.helpers)):
            shared = {group: seeds[group] for group in committee.held_by(other) if group in seeds}
            for group, seed in shared.items():
                at = size * other + SEALED_BYTES * committee.held_by(other).index(group)
                again = _sealed({group: seed}, committee, task, client, site, other)
                if boxes[at:][:SEALED_BYTES] != again:
                    return None
        return seeds


def _info(
    committee: Committee, task: TaskId, client: ClientId, site: str, helper: int, group: int | None = None
) -> bytes:
    bound = (committee.digest, task, client, site, helper)
    return (
        hashed_text("offbeat/1/seeds", *bound)
        if group is None
        else hashed_text("offbeat/1/sealed-seed", *bound, group)
    )
