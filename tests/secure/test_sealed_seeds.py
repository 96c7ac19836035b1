"""Sealed seeds: HPKE of RFC 9180 that any HPKE opens, the same bytes for the same seed, and nothing else."""

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from offbeat.secure.committee import SEALED_BYTES
from offbeat.secure.sealed_seeds import seal_seed

SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


def test_hpke_opens_a_sealed_seed() -> None:
    rng = np.random.default_rng(0)
    for size in (0, 1, 100, 1000):
        private, seed, info = X25519PrivateKey.generate(), rng.bytes(32), rng.bytes(size)
        sealed = seal_seed(seed, private.public_key().public_bytes_raw(), info)
        assert len(sealed) == SEALED_BYTES
        assert SUITE.decrypt(sealed, private, info=info) == seed


def test_the_bytes_follow_from_seed_key_and_info_alone() -> None:
    keys = [X25519PrivateKey.from_private_bytes(bytes([n] * 32)).public_key() for n in (1, 2)]
    one, other = (key.public_bytes_raw() for key in keys)
    first = seal_seed(bytes(32), one, b"info")
    assert seal_seed(bytes(32), one, b"info") == first
    others = {
        seal_seed(bytes(31) + b"x", one, b"info"),
        seal_seed(bytes(32), other, b"info"),
        seal_seed(bytes(32), one, b"infx"),
    }
    assert len(others) == 3
    assert not {sealed[:32] for sealed in others} & {first[:32]}  # no ephemeral key is used twice
