"""Files of suppressions: an address a line, or CSV with named columns; read as a stream."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pgmta.config.types import hint
from pgmta.errors import AddressError, ConfigError
from pgmta.mail.address import parse_recipient, with_domain
from pgmta.mail.names import check_tenant
from pgmta.mail.text import printable

from .suppression_table import ALL_TENANTS, REASONS, Suppression

_COLUMNS = ("address", "tenant", "scope", "reason", "source", "at", "until")
MAX_SOURCE_CHARACTERS = 200
# those of a time zone away have to be in reach of datetime too
_FIRST_YEAR, _LAST_YEAR = 1900, 9998


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is left out, by its number from 1, and why."""

    line: int
    reason: str


def read_suppressions(
    name: str, lines: Iterable[str], default: Suppression, check: Callable[[str, str], None]
) -> Iterator[Suppression | BadLine]:
    """Yield what the lines say; `default` has the values that they leave out.

    Octets that are no UTF-8 come as surrogates, and make a bad line. `check` raises
    ValueError for a tenant and its scope if there is no such scope.

    Raises ConfigError if the first line of the file `name` names an unknown column, or no address.
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
            columns = _columns(name, cells)
            if columns == cells or "@" not in (cells[0] if cells else ""):
                continue  # the row was the header
        cells = [cell.strip() for cell in cells]
        if any(cells[len(columns) :]):
            reason = f"it has more than {', '.join(columns)}; the first line may name columns"
            yield BadLine(reader.line_num, reason)
        elif any(cells):
            yield _read(dict(zip(columns, cells, strict=False)), reader.line_num, default, check)


def _columns(file: str, cells: list[str]) -> list[str]:
    """Return the columns that the first line names; a list of addresses has one."""
    if not cells or "@" in cells[0]:
        return ["address"]
    names = [cell.strip().lower() for cell in cells]
    for name in names:
        if not _is_utf8(name):
            raise ConfigError([f"{file}:1: it is not UTF-8"])
        if name not in _COLUMNS:
            advice = hint(name, _COLUMNS)
            raise ConfigError([f"{file}:1: there is no column {name[:64]!r}; {advice}"])
    if "address" not in names:
        raise ConfigError([f"{file}:1: there is no column 'address'"])
    return names


def _read(
    cells: dict[str, str], line: int, default: Suppression, check: Callable[[str, str], None]
) -> Suppression | BadLine:
    try:
        if not all(map(_is_utf8, cells.values())):
            raise ValueError("it is not UTF-8")
        address = with_domain(*parse_recipient(cells.get("address", "")))
        reason = cells.get("reason") or default.reason
        if reason not in REASONS:
            raise ValueError(f"there is no reason {reason[:64]!r}; {hint(reason, REASONS)}")
        tenant = cells.get("tenant") or default.tenant
        if tenant != ALL_TENANTS:
            check_tenant(tenant)
        scope = cells.get("scope") or default.scope
        check(tenant, scope)
        until = _time(cells.get("until", ""))
        if until and until <= datetime.now(UTC):
            raise ValueError("it is over, by its column 'until'")
        return replace(
            default,
            address=address,
            tenant=tenant,
            scope=scope,
            reason=reason,
            source=source_of(cells.get("source") or default.source),
            at=_time(cells.get("at", "")) or default.at,
            until=until or default.until,
        )
    except (AddressError, ValueError) as error:
        return BadLine(line, str(error))


def _is_utf8(cell: str) -> bool:
    try:
        cell.encode()
    except UnicodeEncodeError:
        return False
    return True


def source_of(text: str) -> str:
    """Return words of proof as the table takes them: one line of 200 characters."""
    return printable(" ".join(text.split()))[:MAX_SOURCE_CHARACTERS]


def _time(text: str) -> datetime | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if not moment or not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
        raise ValueError(f"{text[:64]!r} is no time such as 2027-01-31 or 2027-01-31T12:00:00Z")
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
