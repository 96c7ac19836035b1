"""Seeds encrypted to helpers such that each holder of a seed can check all of its encryptions.

HPKE in base mode (RFC 9180) with DHKEM(X25519, HKDF-SHA256), HKDF-SHA256 and ChaCha20-Poly1305, whose
ephemeral key is derived from the seed and from what it is bound to, where it is drawn at random otherwise. A
seed has 256 random bits, so nobody else can guess it and try; and its holders, who know it anyway, make the
ciphertexts of the other holders again and compare them. So a site cannot give one holder a seed that does
not open, or that differs, without all honest holders of the group noticing it.
"""

import hmac
from hashlib import sha256

from offbeat.core.extras import requires_extra
from offbeat.secure.committee import SEED_BYTES, hashed_text

with requires_extra("secure", "secure aggregation: "):
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

_KEM = b"KEM" + (0x0020).to_bytes(2, "big")
_HPKE = b"HPKE" + b"".join(number.to_bytes(2, "big") for number in (0x0020, 0x0001, 0x0003))
_NONCE_BYTES = 12


def seal_seed(seed: bytes, public_key: bytes, info: bytes) -> bytes:
    """A seed encrypted to a helper: the same bytes for the same seed, key and info.

    Args:
        seed: 32 random bytes.
        public_key: The helper's X25519 public key.
        info: What the ciphertext is bound to.

    Raises:
        ValueError: The key is none of X25519.
    """
    ikm = sha256(hashed_text("offbeat/1/ephemeral", seed, public_key, info)).digest()
    ephemeral = X25519PrivateKey.from_private_bytes(
        _expand(_KEM, _extract(_KEM, b"", b"dkp_prk", ikm), b"sk", b"", SEED_BYTES)
    )
    encapsulated = ephemeral.public_key().public_bytes_raw()
    shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(public_key))
    prk = _extract(_KEM, b"", b"eae_prk", shared)
    secret = _expand(_KEM, prk, b"shared_secret", encapsulated + public_key, 32)
    return encapsulated + _seal(secret, info, seed)


def _seal(shared_secret: bytes, info: bytes, plaintext: bytes) -> bytes:
    """The first message of the key schedule of RFC 9180, section 5.1, base mode."""
    hashes = (
        _extract(_HPKE, b"", label, own) for label, own in ((b"psk_id_hash", b""), (b"info_hash", info))
    )
    context = b"\x00" + b"".join(hashes)
    secret = _extract(_HPKE, shared_secret, b"secret", b"")
    key = _expand(_HPKE, secret, b"key", context, 32)
    nonce = _expand(_HPKE, secret, b"base_nonce", context, _NONCE_BYTES)
    return ChaCha20Poly1305(key).encrypt(nonce, plaintext, b"")


def _extract(suite: bytes, salt: bytes, label: bytes, ikm: bytes) -> bytes:
    """LabeledExtract of RFC 9180, section 4."""
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + ikm, "sha256")


def _expand(suite: bytes, prk: bytes, label: bytes, info: bytes, size: int) -> bytes:
    """LabeledExpand of RFC 9180, section 4, of 32 bytes at most: one block of HKDF."""
    text = size.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    return hmac.digest(prk, text + b"\x01", "sha256")[:size]
