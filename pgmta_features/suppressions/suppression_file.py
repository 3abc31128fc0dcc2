"""Files of suppressions: an address a line, or CSV with named columns; read as a stream."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches

from pgmta.errors import AddressError, ConfigError
from pgmta.mail.address import parse_recipient, with_domain

from .suppression_table import REASONS, Suppression

_COLUMNS = ("address", "tenant", "scope", "reason", "source", "at", "until")
_MAX_SOURCE_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is left out, by its number from 1, and why."""

    line: int
    reason: str


def read_suppressions(
    lines: Iterable[str], default: Suppression, check: Callable[[str, str], None]
) -> Iterator[Suppression | BadLine]:
    """Yield what the lines say; `default` has the values that they leave out.

    `check` raises ValueError for a tenant and its scope if there is no such scope.

    Raises ConfigError if the first line names a column that there is none of, or no address.
    """
    reader = csv.reader(lines, strict=True)
    columns: list[str] = []
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield BadLine(reader.line_num, str(error))
            continue
        if not columns:
            columns = _columns(cells)
            if columns == cells or "@" not in (cells[0] if cells else ""):
                continue  # the row was the header
        if any(cell.strip() for cell in cells):
            yield _read(dict(zip(columns, map(str.strip, cells), strict=False)),
                        reader.line_num, default, check)  # fmt: skip


def _columns(cells: list[str]) -> list[str]:
    """Return the columns that the first line names; a list of addresses has one."""
    if not cells or "@" in cells[0]:
        return ["address"]
    names = [cell.strip().lower() for cell in cells]
    for name in names:
        if name not in _COLUMNS:
            near = get_close_matches(name, _COLUMNS, 1)
            hint = f"did you mean {near[0]}?" if near else f"columns are {', '.join(_COLUMNS)}"
            raise ConfigError([f"line 1: there is no column {name[:64]!r}; {hint}"])
    if "address" not in names:
        raise ConfigError(["line 1: there is no column 'address'"])
    return names


def _read(
    cells: dict[str, str], line: int, default: Suppression, check: Callable[[str, str], None]
) -> Suppression | BadLine:
    try:
        address = with_domain(*parse_recipient(cells.get("address", "")))
        reason = cells.get("reason") or default.reason
        if reason not in REASONS:
            raise ValueError(f"{reason[:64]!r} is none of {', '.join(REASONS)}")
        tenant = cells.get("tenant") or default.tenant
        scope = cells.get("scope") or default.scope
        check(tenant, scope)
        return replace(
            default,
            address=address,
            tenant=tenant,
            scope=scope,
            reason=reason,
            source=" ".join((cells.get("source") or default.source).split())[
                :_MAX_SOURCE_CHARACTERS
            ],
            at=_time(cells.get("at", "")) or default.at,
            until=_time(cells.get("until", "")) or default.until,
        )
    except (AddressError, ValueError) as error:
        return BadLine(line, str(error))


def _time(text: str) -> datetime | None:
    if not text:
        return None
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
