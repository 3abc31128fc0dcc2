"""Secrets of endpoints, and signatures by Standard Webhooks, which receivers verify.

The database has a reference of a secret: `file:NAME` for a file of queued.yaml, or `key:ID:NONCE`.
The secret of the latter is HMAC-SHA256 of the nonce under the installation's key ID. So a copy of
the database does not have it, and a nonce that is restored with it is that of the same endpoint.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets as random_octets
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from standardwebhooks.webhooks import Webhook

from pgmta.config.token_keys import KeyFile

SECRET_PREFIX = "whsec_"  # noqa: S105 - a prefix
"""With which a secret begins for receivers."""
SECRET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}", re.ASCII)
"""A name in `webhooks.secrets`."""

_NONCE_OCTETS = 16
_CONTEXT = b"pgmta webhook secret\0"  # so that the key has no other use by accident


class Secrets:
    """The secrets of endpoints by their references."""

    def __init__(self, keys: Sequence[KeyFile], files: Mapping[str, str]) -> None:
        self._keys = {key.id: key.secret for key in keys}
        self._first = keys[0].id if keys else ""
        self._files = files

    def new_reference(self) -> str | None:
        """Return the reference of a new secret; None if the installation has no key."""
        if not self._first:
            return None
        return f"key:{self._first}:{random_octets.token_hex(_NONCE_OCTETS)}"

    def find(self, reference: str) -> str | None:
        """Return the secret as receivers have it; None if its key or file is not there."""
        kind, _, name = reference.partition(":")
        if kind == "file":
            return self._files.get(name)
        key_id, _, nonce = name.partition(":")
        key = self._keys.get(key_id)
        if key is None:
            return None
        derived = hmac.digest(key, _CONTEXT + nonce.encode(), hashlib.sha256)
        return SECRET_PREFIX + base64.b64encode(derived).decode()

    @staticmethod
    def missing(reference: str) -> str:
        """Return what has to be in queued.yaml for a reference that `find` does not know."""
        kind, _, name = reference.partition(":")
        if kind == "file":
            return f"webhooks.secrets has no {name!r}"
        return f"webhooks.keys has no key {name.partition(':')[0]!r}"


def signed_fields(
    secrets: Iterable[str], message: str, at: datetime, body: bytes
) -> dict[str, str]:
    """Return the header fields of a request: its id, its time, and a signature by each secret.

    docs: Standard Webhooks, section "Signature scheme".
    """
    text, at = body.decode(), at.astimezone(UTC)
    signatures = [Webhook(secret).sign(message, at, text) for secret in secrets]
    return {
        "webhook-id": message,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
