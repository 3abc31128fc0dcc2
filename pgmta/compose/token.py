"""Signed tokens: links that a server verifies without asking the database (pure).

A token is base64url without padding of `secret ‖ HMAC-SHA256(key, message)`: 64 octets, 86
characters (RFC 4648, section 5; RFC 2104). The message is the path of the page, then the secret,
then the code if the action has one. So a token of one purpose or action is none of another. Tokens
that unsubscribe have numbers in place of a secret (`LinkNumbers`): 50 octets, 67 characters.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple, Self

from pgmta.config.token_keys import TokenKeys

SECRET_OCTETS = 32
"""The size of a secret, of a key, and of a signature."""

LINK_OCTETS = 18
"""The size of the numbers in a link that unsubscribes."""

LINK_WORDS = ("link", "token")
"""Words of a template whose values are made when the mail is composed."""

ACTION_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
"""The name of an action, as in the table lifecycle.actions."""

_TOKEN = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_CODE = re.compile(r"[0-9]{0,5}", re.ASCII)
_EPOCH = date(1970, 1, 1)
_MAX_DAY = 32767  # of two octets, in 2059


class LinkNumbers(NamedTuple):
    """What a link that unsubscribes says of its recipient.

    For mail of a campaign: the campaign, and the number of the recipient. For other mail: minus the
    message id, the id of the row, and the day from which on the log has it, in days since 1970.
    """

    list: int
    number: int
    day: int = 0

    @classmethod
    def of_row(cls, message_id: int, row_id: int, since: datetime) -> Self:
        """Return those of a row that is in the queue since then."""
        days = (since.astimezone(UTC).date() - _EPOCH).days
        return cls(-message_id, row_id, min(max(days, 0), _MAX_DAY))

    @classmethod
    def read(cls, octets: bytes) -> Self:
        """Return the numbers in a token."""
        numbers = octets[:8], octets[8:16], octets[16:]
        return cls(*(int.from_bytes(each, signed=True) for each in numbers))

    @property
    def octets(self) -> bytes:
        """What a token signs. Raises OverflowError for other numbers."""
        parts = (self.list, 8), (self.number, 8), (self.day, 2)
        return b"".join(number.to_bytes(size, signed=True) for number, size in parts)

    @property
    def date(self) -> date:
        """The day as a date."""
        return _EPOCH + timedelta(self.day)


class Purpose(StrEnum):
    """The purpose of a token. Each has its own keys and its own path.

    CONFIRM is that of all actions but the first two, and each of these has a page of its own.
    """

    ACTIVATE = "activate"
    RECOVER = "recover"
    CONFIRM = "confirm"
    UNSUBSCRIBE = "unsubscribe"

    @property
    def path(self) -> str:
        """The path of its page; that of CONFIRM goes on with / and the name of the action."""
        return f"/{self}"

    def signed(self, action: str = "") -> bytes:
        """Return the octets with which the signed message begins.

        Those of an action end in ?, which no name has: no name begins another message.
        """
        return (f"{self.path}/{action}?" if self is Purpose.CONFIRM else self.path).encode()

    @property
    def octets(self) -> int:
        """Octets of a token without its signature."""
        return LINK_OCTETS if self is Purpose.UNSUBSCRIBE else SECRET_OCTETS


class UnknownKey(Exception):
    """The key that a token has to be signed with is not configured; its text names the key."""


class TokenKey(NamedTuple):
    """A key of HMAC-SHA256: 32 octets, and the name by which rows refer to it."""

    id: str
    secret: bytes

    def __repr__(self) -> str:
        return f"TokenKey({self.id})"


class KeyRing:
    """The keys of one purpose: the first one signs, and all of them verify.

    A ring of CONFIRM signs and verifies tokens of one action.
    """

    def __init__(self, purpose: Purpose, keys: Iterable[TokenKey], action: str = "") -> None:
        self._purpose = purpose
        self._begin = purpose.signed(action)
        self._octets = purpose.octets
        self._keys = tuple(keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def of_action(self, action: str) -> KeyRing:
        """Return the ring of an action, with the same keys."""
        return KeyRing(self._purpose, self._keys, action)

    @property
    def signer(self) -> str:
        """The id of the key that signs new tokens. Raises UnknownKey if there is none."""
        if not self._keys:
            raise UnknownKey(f"there is no key in tokens.{self._purpose}")
        return self._keys[0].id

    def sign(self, secret: bytes, code: str = "", key_id: str | None = None) -> str:
        """Return the token of a secret, and of its `code` if the action has one.

        `key_id` names the key; without it the signer is used. Raises UnknownKey.
        """
        wanted = self.signer if key_id is None else key_id
        for key in self._keys:
            if key.id == wanted:
                return _encoded(secret + self._signature(key, secret, code))
        raise UnknownKey(f"there is no key {wanted} in tokens.{self._purpose}")

    def verify(self, token: str, code: str = "") -> bytes | None:
        """Return the secret of a token that one of the keys signed; None for any other text.

        All keys are tried, in constant time each, so that the time says nothing about the keys.
        """
        octets = _decoded(token, self._octets)
        if octets is None or not _CODE.fullmatch(code):
            octets, code = bytes(self._octets + SECRET_OCTETS), "-"  # no code is "-"
        secret, signature = octets[: self._octets], octets[self._octets :]
        found = False
        for key in self._keys:
            found |= hmac.compare_digest(self._signature(key, secret, code), signature)
        return secret if found and code != "-" else None

    def _signature(self, key: TokenKey, secret: bytes, code: str) -> bytes:
        return hmac.digest(key.secret, self._begin + secret + code.encode(), hashlib.sha256)


@dataclass(frozen=True, slots=True)
class KeyRings:
    """The key rings of all purposes, and the URL with which links begin that unsubscribe."""

    rings: Mapping[Purpose, KeyRing]
    url: str = ""

    @classmethod
    def of(cls, section: TokenKeys, url: str = "") -> KeyRings:
        """Return the rings of a configuration."""
        rings = {
            Purpose(purpose): KeyRing(
                Purpose(purpose), [TokenKey(key.id, key.secret) for key in keys]
            )
            for purpose, keys in section.purposes()
        }
        return cls(rings, url)

    def ring(self, purpose: Purpose, action: str = "") -> KeyRing:
        """Return the ring of a purpose; that of CONFIRM is the one of an action."""
        ring = self.rings[purpose]
        return ring.of_action(action) if purpose is Purpose.CONFIRM else ring

    def words(self, order: Any, wanted: Container[str]) -> dict[str, str]:
        """Return the values of LINK_WORDS that a template has.

        `order` is the part `token` of the message's parameters: `purpose`, `action`, `secret` in
        hex, `code`, `key` and `url`, to which the token is added. Raises UnknownKey, and ValueError
        if a part is not there.
        """
        try:
            purpose, secret = Purpose(order["purpose"]), bytes.fromhex(order["secret"])
            code, key, url = order.get("code") or "", order["key"], order["url"]
            action = order.get("action", "")
            if len(secret) != SECRET_OCTETS or not _CODE.fullmatch(code):
                raise ValueError(code)
            if purpose is Purpose.CONFIRM and not ACTION_NAME.fullmatch(action):
                raise ValueError(action)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ValueError("the part token is broken") from None
        token = self.ring(purpose, action).sign(secret, code, key)
        values = {"link": f"{url}?token={token}", "token": token}
        return {word: value for word, value in values.items() if word in wanted}

    def unsubscription(self, numbers: LinkNumbers) -> str:
        """Return the link that unsubscribes a recipient. Raises UnknownKey, OverflowError."""
        if not self.url or Purpose.UNSUBSCRIBE not in self.rings:
            raise UnknownKey("tokens.unsubscribe_url is missing, with which links begin")
        token = self.rings[Purpose.UNSUBSCRIBE].sign(numbers.octets)
        return f"{self.url}{Purpose.UNSUBSCRIBE.path}?token={token}"


def secret_of(token: str, purpose: Purpose) -> bytes | None:
    """Return the secret in a text that has the form of a token, with any signature.

    A wrong code leaves the signature wrong, and the failure counts for this secret.
    """
    octets = _decoded(token, purpose.octets)
    return octets[: purpose.octets] if octets else None


def _encoded(octets: bytes) -> str:
    return urlsafe_b64encode(octets).rstrip(b"=").decode()


def _decoded(token: str, secret: int) -> bytes | None:
    """Return the octets of a token in its only spelling, None for another text."""
    characters = -(-4 * (secret + SECRET_OCTETS) // 3)
    if len(token) != characters or not _TOKEN.fullmatch(token):
        return None
    octets = urlsafe_b64decode(token + "=" * (-characters % 4))
    return octets if _encoded(octets) == token else None
