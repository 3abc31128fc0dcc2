"""Decisions of hooks about a message beyond the interface of aiosmtpd: `envelope.pgmta`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from pgmta.mail.metadata import OWN_KEYS
from pgmta.model import NewMessage
from smtpd.hooks.answer import BadAnswer

QUARANTINE = "_quarantineid"
"""The metadata key of a quarantine."""

_MAX_REASON_CHARACTERS = 200
_MAX_VALUE_CHARACTERS = 1000  # of metadata
_MAX_KEY_CHARACTERS = 64  # of metadata
_MAX_LINE_OCTETS = 998  # RFC 5322, section 2.1.1
_FIELD = re.compile(r"([!-9;-~]+):([\t -~]*(?:\r\n[ \t]+[!-~][\t -~]*)*)")
_FOLD = re.compile(r"\r?\n(?=[ \t])")


class Decisions:
    """The attributes that a hook sets; each counts for the message of this envelope.

    A later hook may change what an earlier one decided.
    """

    def __init__(self) -> None:
        self.metadata: dict[str, str] = {}
        """Further metadata of each row. It replaces that of smtpd.yaml."""
        self.priority: int | None = None
        """Priority of each row: 0 is served first, 9 last."""
        self.hold = ""
        """Why the rows go on hold at once."""
        self.quarantine = ""
        """The id of a quarantine, into which the rows go: they are on hold until a release."""
        self.fields: list[tuple[str, str]] = []
        """Names and values of header fields that smtpd adds, the topmost first."""

    def __bool__(self) -> bool:
        """Return whether a hook has decided anything."""
        return vars(self) != _NONE

    def copy(self) -> Decisions:
        """Return decisions that later changes of these leave alone."""
        copied = Decisions()
        copied.__dict__.update(vars(self))
        if isinstance(self.metadata, dict):
            copied.metadata = dict(self.metadata)
        if isinstance(self.fields, list):
            copied.fields = list(self.fields)
        return copied


_NONE = vars(Decisions())


@dataclass(frozen=True, slots=True)
class Decided:
    """Decisions that were checked."""

    metadata: dict[str, str] = field(default_factory=dict)
    priority: int | None = None
    hold: str = ""
    fields: str = ""

    def apply(self, message: NewMessage) -> None:
        """Bring a message that is about to be committed in line."""
        if self.metadata:
            rows = message.metadata or ["{}"] * len(message.recipients)
            message.metadata = [json.dumps({**json.loads(row), **self.metadata}) for row in rows]
        if self.priority is not None:
            message.priority = self.priority
        if self.hold:
            message.holds = [
                one or self.hold for one in message.holds or [None] * len(message.recipients)
            ]
        message.trace = self.fields + message.trace


def check(decisions: Any) -> Decided | None:
    """Return decisions of which every part is as it has to be; None if there are none.

    Raises BadAnswer with the first part that is not.
    """
    if type(decisions) is not Decisions:
        if decisions is None:
            return None
        raise BadAnswer(f"envelope.pgmta is of type {type(decisions).__name__}")
    if not decisions:
        return None
    metadata = _metadata(decisions.metadata)
    quarantine = _text("quarantine", decisions.quarantine, _MAX_VALUE_CHARACTERS)
    hold = _text("hold", decisions.hold, _MAX_REASON_CHARACTERS)
    if quarantine:
        metadata[QUARANTINE] = quarantine
        hold = hold or f"quarantine {quarantine}"[:_MAX_REASON_CHARACTERS]
    return Decided(metadata, _priority(decisions.priority), hold, _fields(decisions.fields))


def _metadata(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise BadAnswer(f"metadata is of type {type(value).__name__}, not dict")
    found = {}
    for key, text in list(value.items()):
        if not (
            isinstance(key, str) and key and len(key) <= _MAX_KEY_CHARACTERS and key.isprintable()
        ):
            raise BadAnswer(
                f"{key!r} is no key of metadata: a word of at most {_MAX_KEY_CHARACTERS} characters"
            )
        if key in OWN_KEYS:
            raise BadAnswer(f"{key} is a key of metadata that pgmta alone gives")
        found[key] = _text(f"metadata {key!r}", text, _MAX_VALUE_CHARACTERS)
    return found


def _priority(value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= 9:
        raise BadAnswer(f"priority {value!r} is no number from 0 to 9")
    return value


def _text(name: str, value: Any, most: int) -> str:
    if not isinstance(value, str):
        raise BadAnswer(f"{name} is of type {type(value).__name__}, not str")
    if len(value) > most:
        raise BadAnswer(f"{name} has {len(value)} characters, more than {most}")
    if not value.isprintable():  # lone surrogates are not printable
        raise BadAnswer(f"{name} has characters that can't be printed")
    return value


def _fields(fields: Any) -> str:
    if not isinstance(fields, list):
        raise BadAnswer(f"fields is of type {type(fields).__name__}, not list")
    lines = []
    for one in list(fields):
        if not (
            isinstance(one, tuple | list) and len(one) == 2 and all(type(x) is str for x in one)
        ):
            raise BadAnswer("a field is a tuple of a name and a value")
        line = f"{one[0]}: {_FOLD.sub('\r\n', one[1])}"
        if not _FIELD.fullmatch(line):
            raise BadAnswer(f"{line[:60]!r} is no header field of printable ASCII (RFC 5322)")
        if max(map(len, line.split("\r\n"))) > _MAX_LINE_OCTETS:
            raise BadAnswer(
                f"field {one[0]} has a line of more than {_MAX_LINE_OCTETS} octets (RFC 5322)"
            )
        lines.append(f"{line}\r\n")
    return "".join(lines)
