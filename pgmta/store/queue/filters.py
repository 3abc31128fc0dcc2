"""The filters of all queue commands: short flags become a condition on columns of queue."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from psycopg.sql import Literal

from pgmta.config.types import parse_duration
from pgmta.errors import AddressError
from pgmta.mail.address import normalise_domain

_RANGE = re.compile(r"(.*?)\.\.(.*)")
_COMPARISON = re.compile(r"(<=|>=|<|>|=)?\s*(.+)")


@dataclass(frozen=True, slots=True)
class Filter:
    """The values of the flags. Values of one flag are alternatives; different flags must all hold.

    Patterns know `*` for any text. Addresses, domains and patterns ignore case. `age` and
    `attempts` know `>2h`, `<=3`, `10m..2h` and a bare value: for an age at least that old, for
    attempts the exact number.
    """

    where: str | None = None
    id: Sequence[int] = ()
    sender: Sequence[str] = ()
    recipient: Sequence[str] = ()
    domain: Sequence[str] = ()
    status: Sequence[str] = ()
    age: Sequence[str] = ()
    attempts: Sequence[str] = ()
    metadata: Sequence[str] = ()
    reply: Sequence[str] = ()
    hold_reason: Sequence[str] = ()

    def condition(self) -> str | None:
        """Return the SQL condition, None if there is no filter.

        Raises ValueError, which names the flag.
        """
        groups = [
            [f"message_id = {number}" for number in self.id],
            [_sender(text) for text in self.sender],
            [alike("recipient", text) for text in self.recipient],
            [_pattern("domain", _domain(text)) for text in self.domain],
            [f"status = {quoted(text.upper())}" for text in self.status],
            [_age(text) for text in self.age],
            [_number("attempts", text) for text in self.attempts],
            [metadata_is("metadata", text) for text in self.metadata],
            [_within("last_reply", text) for text in self.reply],
            [_within("hold_reason", text) for text in self.hold_reason],
        ]
        parts = [f"({' OR '.join(group)})" for group in groups if group]
        if self.where:
            parts.append(f"(\n{self.where}\n)")
        return " AND ".join(parts) or None


def quoted(text: str) -> str:
    """Return a text as an SQL literal. Raises ValueError."""
    if "\0" in text:
        raise ValueError("a value can't contain NUL")
    return Literal(text).as_string(None)


def _pattern(column: str, text: str) -> str:
    return alike(column, text) if "*" in text else f"{column} = {quoted(text)}"


def _within(column: str, text: str) -> str:
    return alike(column, text if "*" in text else f"*{text}*")


def alike(column: str, text: str) -> str:
    """Return the condition that a column is like a pattern; `*` stands for any text."""
    like = re.sub(r"([\\%_])", r"\\\1", text).replace("*", "%")
    return f"{column} ILIKE {quoted(like)}"


def _sender(text: str) -> str:
    local, at, domain = text.rpartition("@")
    if (local, at) == ("*", "@") and domain and "*" not in domain:
        return f"sender_domain = {quoted(_domain(domain))}"
    return alike("sender", text)


def _domain(text: str) -> str:
    try:
        return normalise_domain(text)
    except AddressError:  # a pattern, for one
        return text.lower()


def metadata_is(column: str, text: str) -> str:
    """Return the condition for `key=value` on a column of metadata. Raises ValueError."""
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise ValueError(f"--metadata {text!r}: expected key=value, or key= for an absent one")
    part = f"({column} ->> {quoted(key)})"
    return f"{part} IS NULL" if not value else _pattern(part, value)


def _age(text: str) -> str:
    def since(value: str) -> str:
        try:
            return f"now() - interval '{parse_duration(value.strip()):f} seconds'"
        except ValueError as error:
            raise ValueError(f"--age {text!r}: {error}") from None

    if span := _RANGE.fullmatch(text):
        return f"ts BETWEEN {since(span[2])} AND {since(span[1])}"
    sign, value = _split(text, "--age")
    flipped = {">": "<", ">=": "<=", "<": ">", "<=": ">=", None: "<="}
    if sign not in flipped:
        raise ValueError(f"--age {text!r}: an age is compared with > or <")
    return f"ts {flipped[sign]} {since(value)}"


def _number(column: str, text: str) -> str:
    def whole(value: str) -> int:
        if not (value.strip().isascii() and value.strip().isdigit()):
            raise ValueError(f"--{column} {text!r}: {value.strip()!r} is no number")
        return int(value)

    if span := _RANGE.fullmatch(text):
        return f"{column} BETWEEN {whole(span[1])} AND {whole(span[2])}"
    sign, value = _split(text, f"--{column}")
    return f"{column} {sign or '='} {whole(value)}"


def _split(text: str, flag: str) -> tuple[str | None, str]:
    match = _COMPARISON.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{flag} needs a value")
    return match[1], match[2]
