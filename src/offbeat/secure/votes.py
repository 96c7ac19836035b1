"""Votes of helpers: Ed25519 signatures of the manifest of a release."""

from collections.abc import Sequence
from hashlib import sha256

from offbeat.core.extras import requires_extra
from offbeat.secure.committee import Committee, hashed_text

with requires_extra("secure", "secure aggregation: "):
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


class VoteKey:
    """A helper's key pair of Ed25519, which follows from its private key.

    Args:
        private: The helper's private key, 32 bytes.
    """

    def __init__(self, private: bytes) -> None:
        seed = sha256(hashed_text("offbeat/1/vote-key", private)).digest()
        self._private = Ed25519PrivateKey.from_private_bytes(seed)

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return self._private.public_key().public_bytes_raw()

    def sign(self, manifest: bytes) -> bytes:
        """A vote for a release: the same bytes each time."""
        return self._private.sign(_text(manifest))


def is_vote(committee: Committee, helper: int, manifest: bytes, vote: bytes) -> bool:
    """Whether a vote for a release is this helper's."""
    try:
        key = Ed25519PublicKey.from_public_bytes(committee.helpers[helper].verify_key)
        key.verify(vote, _text(manifest))
    except (InvalidSignature, ValueError):
        return False
    return True


def count_votes(committee: Committee, manifest: bytes, votes: Sequence[bytes]) -> int:
    """Number of helpers that have signed a release.

    Args:
        committee: The committee.
        manifest: The digest of the release.
        votes: The vote of each helper in order; an empty one, or none, of those that have not voted.
    """
    numbered = enumerate(votes[: len(committee.helpers)])
    return sum(is_vote(committee, helper, manifest, vote) for helper, vote in numbered if vote)


def _text(manifest: bytes) -> bytes:
    return hashed_text("offbeat/1/vote", manifest)
