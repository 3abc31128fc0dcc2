"""Mechanisms whose client sends its password: PLAIN (RFC 4616) and LOGIN (pure)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from pgmta.password import login_name

MAX_LINE_OCTETS = 12288
"""The longest line of an exchange (RFC 4954, section 4)."""

USERNAME, PASSWORD = b"Username:", b"Password:"
"""The challenges of LOGIN, in the words that clients expect."""


SCRAM = "SCRAM-SHA-256"


def offered(
    mechanisms: Iterable[str], *, authenticator: bool, others: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the mechanisms that a listener offers; `others` are those of hooks.

    An authenticator in place of the table of users has no keys for SCRAM.
    """
    own = (name for name in mechanisms if not (authenticator and name == SCRAM))
    return tuple(dict.fromkeys((*own, *others)))


class Malformed(ValueError):
    """A response that does not follow its mechanism; the text has none of it."""


class OtherIdentity(ValueError):
    """A client wants to act for another user than that of its password."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A name and a password, as the client sent them."""

    name: str
    password: bytes = field(repr=False)


def decode(text: bytes) -> bytes:
    """Return the octets of a response in base64. Raises Malformed."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise Malformed("not base64") from None


def plain(response: bytes) -> Credentials:
    """Return the credentials of PLAIN. Raises Malformed, and OtherIdentity."""
    parts = response.split(b"\0")
    if len(parts) != 3:
        raise Malformed("PLAIN has three parts")
    identity, name, password = parts
    given = credentials(name, password)
    check_identity(identity.decode("utf-8", "replace"), given.name)
    return given


def check_identity(identity: str, name: str) -> None:
    """Raise OtherIdentity unless the identity to act as is empty or the login name.

    No user acts for others (RFC 4616, section 2; RFC 5802, section 5.1).
    """
    if identity in ("", name):
        return
    with suppress(ValueError):
        if login_name(identity) == login_name(name):
            return
    raise OtherIdentity


def credentials(name: bytes, password: bytes) -> Credentials:
    """Return a name and a password. Raises Malformed if one is empty, or the name not UTF-8."""
    if not name or not password:
        raise Malformed("name or password is empty")
    try:
        return Credentials(name.decode(), password)
    except UnicodeDecodeError:
        raise Malformed("the name is not UTF-8") from None
