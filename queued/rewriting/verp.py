"""VERP addresses: reverse-paths that name the row of a delivery (pure).

Such an address has an id, two numbers, and a hash: the day and a MAC over id and day by HMAC. So
only holders of the key can make one, and an old one is recognised. The id names one row, and with
it sender and recipient. All of it is lower case and digits: hosts on the way may change the case.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime

from pgmta.mail.address import unquoted
from queued.config import VerpTemplate

_DIGITS = "0123456789abcdefghijklmnopqrstuv"  # base32hex of RFC 4648, section 7
_DAY_NUMBERS = 32 * 32  # that a hash can have
_MAC_DIGITS = 14  # 70 bits
_AFTER_ALL_IDS = 1 << 63
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()


@dataclass(frozen=True, slots=True)
class VerpRow:
    """The row that a VERP address names, and the day of the delivery, if the address is good.

    `problem` says why it is not.
    """

    message_id: int
    row_id: int
    day: date
    problem: str = ""


@dataclass(frozen=True, slots=True)
class VerpKeys:
    """The keys, of which the first makes addresses, and the age in days up to which they count."""

    keys: tuple[bytes, ...] = field(repr=False)
    age: int = 14


class VerpAddresses:
    """Makes the addresses of one template, and knows them again."""

    def __init__(self, template: str, keys: VerpKeys) -> None:
        self._template = VerpTemplate(template)
        self._keys = keys
        self.domain = self._template.domain
        self.text = self._template.text

    def address(self, message_id: int, row_id: int, now: datetime) -> str:
        """Return the address for the delivery of a row."""
        identity = f"{_digits(message_id)}-{_digits(row_id)}"
        day = _number(now)
        mac = self._hash(self._keys.keys[0], identity, day)
        return self._template.address(identity, mac)

    def named(self, local: str, now: datetime) -> VerpRow | None:
        """Return the row that a local part names; None if it is no VERP address of the template."""
        match = self._template.pattern.fullmatch(local.lower())
        if not match:
            return None
        identity, mac = match["id"], match["hash"]
        numbers = [int(part, 32) for part in identity.split("-")]
        today = _number(now)
        age = (today - int(mac[:2], 32)) % _DAY_NUMBERS
        if age == _DAY_NUMBERS - 1:  # the clock of the host that made the address is ahead
            age = -1
        day = today - age
        problem = ""
        hashes = [self._hash(key, identity, day) for key in self._keys.keys]
        if not any([hmac.compare_digest(each, mac) for each in hashes]):  # noqa: C419 - all
            problem = "5.7.1 the hash of the address is wrong"
        elif age > self._keys.age:
            problem = f"5.4.7 the address is {age} days old"
        elif max(numbers) >= _AFTER_ALL_IDS:
            problem = "5.1.1 the address names no row"
        return VerpRow(numbers[0], numbers[1], date.fromordinal(_EPOCH_ORDINAL + day), problem)

    def _hash(self, key: bytes, identity: str, day: int) -> str:
        words = f"pgmta verp 1 {self._template.text} {identity} {day}".encode()
        mac = int.from_bytes(hmac.digest(key, words, "sha256")[:9]) >> 2
        return _digits(day % _DAY_NUMBERS).rjust(2, "0") + _digits(mac).rjust(_MAC_DIGITS, "0")


class ReturnAddresses:
    """All templates of a configuration, by their domains."""

    def __init__(self, templates: Iterable[str], keys: VerpKeys) -> None:
        self._by_domain: dict[str, list[VerpAddresses]] = {}
        for text in dict.fromkeys(templates):
            found = VerpAddresses(text, keys)
            self._by_domain.setdefault(found.domain, []).append(found)

    def __bool__(self) -> bool:
        return bool(self._by_domain)

    def named(self, recipient: str, domain: str, now: datetime) -> VerpRow | None:
        """Return the row that a recipient names; None if it is no VERP address."""
        local = unquoted(recipient.rpartition("@")[0])
        for each in self._by_domain.get(domain, ()):
            if found := each.named(local, now):
                return found
        return None


def _number(now: datetime) -> int:
    return now.astimezone(UTC).toordinal() - _EPOCH_ORDINAL


def _digits(number: int) -> str:
    """Return a number to the base 32, as int(text, 32) reads it."""
    found = ""
    while True:
        number, digit = divmod(number, 32)
        found = _DIGITS[digit] + found
        if not number:
            return found
