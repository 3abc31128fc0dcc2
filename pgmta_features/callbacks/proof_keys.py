"""Keys that check signatures of callbacks: secrets of HMAC, and public keys."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable

type Verify = Callable[[bytes, bytes], bool]
"""Says whether a signature of a message is right."""


def verifier(by: str, algorithm: str, key_encoding: str, path: str, key: bytes) -> Verify:
    """Return the check of a signature by one key. Raises ValueError, whose text names the file."""
    if by == "public_key":
        return _public(path, key)
    if key_encoding == "base64":
        try:
            key = base64.b64decode(key.removeprefix(b"whsec_"), validate=True)
        except (ValueError, binascii.Error):
            raise ValueError(f"{path} has no base64") from None

    def verify(signature: bytes, message: bytes) -> bool:
        return hmac.compare_digest(signature, hmac.digest(key, message, algorithm))

    return verify


def _public(path: str, octets: bytes) -> Verify:
    # here, because a web daemon without such keys saves these megabytes
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    try:
        if octets.startswith(b"-----"):
            key = serialization.load_pem_public_key(octets)
        else:
            key = serialization.load_der_public_key(base64.b64decode(octets, validate=True))
    except (ValueError, TypeError, binascii.Error, UnsupportedAlgorithm):
        raise ValueError(f"{path} has no public key, as PEM or base64") from None
    if not isinstance(key, ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey):
        raise ValueError(f"{path} has a key that is neither ECDSA nor Ed25519")

    def verify(signature: bytes, message: bytes) -> bool:
        try:
            if isinstance(key, ec.EllipticCurvePublicKey):
                key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
            else:
                key.verify(signature, message)
        except InvalidSignature:
            return False
        return True

    return verify
