"""SCRAM-SHA-256 (RFC 7677) by scramp: the server's side of one exchange."""

from __future__ import annotations

import hashlib
import hmac

from pgmta.password import ITERATIONS, parse_scram_keys, preparable
from smtpd.auth.mechanisms import SCRAM, Malformed

_SALT = 16  # octets

type Keys = tuple[bytes, bytes, bytes, int]
"""Salt, stored key, server key, iterations."""


class ScramExchange:
    """Takes the two messages of a client."""

    def __init__(self, first: bytes) -> None:
        """Take the client's first message. Raises Malformed."""
        from scramp import ScramException, ScramMechanism  # 12 MB, which other mechanisms save

        self._first = _text(first)
        if not preparable(self._first):
            raise Malformed("the first message of SCRAM is too long")
        self._mechanism = ScramMechanism(SCRAM)
        names: list[str] = []

        def note(name: str) -> Keys:
            names.append(name)
            return b"0" * _SALT, b"", b"", ITERATIONS

        try:  # only to find the name, because its keys are not here yet
            self._mechanism.make_server(note).set_client_first(self._first)
        except ScramException:
            raise Malformed("not a first message of SCRAM") from None
        self.name = names[0]
        """The login name, as the client sent it, prepared."""

    def challenge(self, keys: Keys) -> bytes:
        """Return the server's first message. Raises Malformed."""
        from scramp import ScramException

        self._server = self._mechanism.make_server(lambda _: keys)
        try:
            self._server.set_client_first(self._first)
        except ScramException:
            raise Malformed("not a first message of SCRAM") from None
        return str(self._server.get_server_first()).encode()

    def verify(self, final: bytes) -> bytes:
        """Return the server's final message, or nothing if the password is wrong.

        Raises Malformed.
        """
        from scramp import ScramException

        try:
            self._server.set_client_final(_text(final))
            return str(self._server.get_server_final()).encode()
        except ScramException as error:
            if error.server_error and error.server_error.value == "invalid-proof":
                return b""
            raise Malformed("not a final message of SCRAM") from None


def keys_of(scram: str | None, name: str, secret: bytes) -> Keys:
    """Return the keys of a user; for others such that no password has, always the same.

    Raises ValueError if `scram` is malformed.
    """
    if scram:
        return parse_scram_keys(scram)
    salt = hmac.digest(secret, b"salt " + name.encode(), hashlib.sha256)[:_SALT]
    key = hmac.digest(secret, b"key " + name.encode(), hashlib.sha256)
    return salt, key, key, ITERATIONS


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise Malformed("not UTF-8") from None
