"""SCRAM-SHA-256 without channel binding (RFC 5802, RFC 7677): the server's side of one exchange."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import b64encode

from pgmta.accounts.mechanisms import Malformed, check_identity, decode
from pgmta.password import ITERATIONS, parse_scram_keys, preparable, prepared_name

_SALT_OCTETS = 16
_SERVER_NONCE_OCTETS = 18  # of randomness, before base64
# The grammar of RFC 5802, section 7. An extension is an attribute of a letter that SCRAM does not
# know. It may stand behind the nonce and is ignored there. Nothing else may be added, and no
# attribute `m`, which only a server that knows the extension may take (section 5.1).
_SASLNAME = r"(?:[^\0,=]|=2C|=3D)+"
_NONCE_TEXT = r"[!-+\--~]+"
_EXTENSIONS = r"((?:,[A-Zbdf-hj-loqtuw-z]=[^\0,]+)*)"
_BASE64 = r"[A-Za-z0-9+/]+=*"
_CLIENT_FIRST = re.compile(
    rf"([ny],(?:a=({_SASLNAME}))?,)(n=({_SASLNAME}),r=({_NONCE_TEXT}){_EXTENSIONS})"
)
_CLIENT_FINAL = re.compile(rf"(c=({_BASE64}),r=({_NONCE_TEXT}){_EXTENSIONS}),p=({_BASE64})")

type Keys = tuple[bytes, bytes, bytes, int]
"""Salt, stored key, server key, iterations."""


class ScramExchange:
    """Takes the two messages of a client."""

    def __init__(self, first: bytes) -> None:
        """Take the client's first message. Raises Malformed, and OtherIdentity."""
        text = _text(first)
        found = _CLIENT_FIRST.fullmatch(text) if preparable(text) else None
        if not found:
            raise Malformed("not a first message of SCRAM")
        self._header, identity, self._first, name, self._nonce, extensions = found.groups()
        _check_letters(extensions)
        try:
            self.name = prepared_name(_unescaped(name))
            """The login name, as the client sent it, prepared."""
        except ValueError:
            raise Malformed("the name can't be prepared") from None
        check_identity(_unescaped(identity or ""), self.name)

    def challenge(self, keys: Keys) -> bytes:
        """Return the server's first message."""
        salt, self._stored, self._server, iterations = keys
        self._nonce += secrets.token_urlsafe(_SERVER_NONCE_OCTETS)
        self._challenge = f"r={self._nonce},s={b64encode(salt).decode()},i={iterations}"
        return self._challenge.encode()

    def verify(self, final: bytes) -> bytes:
        """Return the server's final message, or nothing if the password is wrong.

        Raises Malformed.
        """
        found = _CLIENT_FINAL.fullmatch(_text(final))
        if not found:
            raise Malformed("not a final message of SCRAM")
        unproven, binding, nonce, extensions, proof = found.groups()
        _check_letters(extensions)
        if decode(binding.encode()) != self._header.encode() or nonce != self._nonce:
            raise Malformed("the final message of SCRAM is that of another exchange")
        signed = f"{self._first},{self._challenge},{unproven}".encode()
        signature = hmac.digest(self._stored, signed, "sha256")
        given = decode(proof.encode())
        if len(given) != len(signature):
            return b""
        key = bytes(one ^ other for one, other in zip(given, signature, strict=True))
        if not hmac.compare_digest(hashlib.sha256(key).digest(), self._stored):
            return b""
        return b"v=" + b64encode(hmac.digest(self._server, signed, "sha256"))


def keys_of(scram: str | None, name: str, secret: bytes) -> Keys:
    """Return the keys of a user; for others such that no password has, always the same.

    Raises ValueError if `scram` is malformed.
    """
    if scram:
        return parse_scram_keys(scram)
    salt = hmac.digest(secret, b"salt " + name.encode(), hashlib.sha256)[:_SALT_OCTETS]
    key = hmac.digest(secret, b"key " + name.encode(), hashlib.sha256)
    return salt, key, key, ITERATIONS


def _check_letters(extensions: str) -> None:
    """Raise Malformed if an extension stands twice."""
    letters = [extension[0] for extension in extensions.split(",")[1:]]
    if len(set(letters)) < len(letters):
        raise Malformed("an attribute of SCRAM stands twice")


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise Malformed("not UTF-8") from None
