"""The filters of all queue commands: short flags become a condition on columns of queue."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pgmta.config.types import parse_duration
from pgmta.selection import Term, numbers, parse

_RANGE = re.compile(r"(.*?)\.\.(.*)")
_COMPARISON = re.compile(r"(<=|>=|<|>|=)?\s*(.+)")


def filter_condition(
    *,
    where: str | None = None,
    id: Sequence[int] = (),
    status: Sequence[str] = (),
    age: Sequence[str] = (),
    attempts: Sequence[str] = (),
    reply: Sequence[str] = (),
    hold_reason: Sequence[str] = (),
    submitted_by: Sequence[str] = (),
    **mail: Sequence[str],
) -> str | None:
    """Return the SQL condition of the values of the flags, None if there is no filter.

    Values of one flag are alternatives; different flags must all hold. `mail` is for `parse`.
    Patterns know `*` for any text, and ignore case. `age`, `attempts` and `priority` know `>2h`,
    `<=3`, `10m..2h` and a bare value: for an age at least that old, for others the exact number.
    Raises ValueError, which names the flag.
    """
    selection = parse(
        message_id=[str(number) for number in id],
        status=[text.upper() for text in status],
        last_reply=_within(reply),
        hold_reason=_within(hold_reason),
        **mail,
    )
    groups = [map(_age, age), map(_attempts, attempts)]
    parts = [f"({found})" for group in groups if (found := " OR ".join(group))]
    if selection.groups:
        parts.append(selection.condition())
    if submitted_by:
        term = Term.of("submitted_by", submitted_by).condition("m.")
        of_messages = "message_id IN (SELECT m.id FROM pgmta.messages AS m WHERE"
        parts.append(f"{of_messages} {term})")
    if where:
        parts.append(f"(\n{where}\n)")
    return " AND ".join(parts) or None


def _within(texts: Sequence[str]) -> list[str]:
    return [text if "*" in text else f"*{text}*" for text in texts]


def _age(text: str) -> str:
    def since(value: str) -> str:
        try:
            return f"now() - interval '{parse_duration(value.strip()):f} seconds'"
        except ValueError as error:
            raise ValueError(f"--age {text!r}: {error}") from None

    if span := _RANGE.fullmatch(text):
        return f"ts BETWEEN {since(span[2])} AND {since(span[1])}"
    match = _COMPARISON.fullmatch(text.strip())
    if not match:
        raise ValueError("--age needs a value")
    flipped = {">": "<", ">=": "<=", "<": ">", "<=": ">=", None: "<="}
    if match[1] not in flipped:
        raise ValueError(f"--age {text!r}: an age is compared with > or <")
    return f"ts {flipped[match[1]]} {since(match[2])}"


def _attempts(text: str) -> str:
    wanted = numbers(text, "--attempts ")
    return f"attempts BETWEEN {wanted.start} AND {wanted.stop - 1}"
