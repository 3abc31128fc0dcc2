"""How a table says the status of an account: as SQL that reads it, and that activates (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pgmta.config.types import hint
from pgmta.errors import ConfigError
from pgmta_features.lifecycle.binding.table import Column

STATUSES = ("provisioned", "active", "suspended")
"""The statuses of an account."""


def literal(text: str) -> str:
    """Return a constant of SQL, with standard_conforming_strings."""
    return "'" + text.replace("'", "''") + "'"


class Status(Protocol):
    """Where the status of an account is. `row` is what its columns belong to, such as NEW."""

    @property
    def columns(self) -> list[Column]:
        """Return the columns that say it."""
        ...

    def of(self, row: str) -> str:
        """Return the expression of the status: one of STATUSES, or inactive.

        An inactive account is provisioned if it was never active since it was inserted, else
        suspended.
        """
        ...

    def changes(self) -> str:
        """Return the assignments that activate a provisioned account."""
        ...

    def provisioned(self, row: str) -> str:
        """Return the condition of a provisioned or inactive account."""
        ...

    def values(self, status: str) -> dict[str, str | None]:
        """Return values by column of an account with one of STATUSES, as text; None: null."""
        ...


@dataclass(frozen=True)
class WordStatus:
    """A column with a word. Words that are not in `words` count as suspended."""

    column: Column
    words: Mapping[str, str]

    def __post_init__(self) -> None:
        """Raise ConfigError for a word that the type of the column does not have."""
        if self.column.category not in "SEN":
            raise ConfigError([
                f"--status {self.column.name}: its type is {self.column.type}: expected text, an "
                "enum or a number; --active and --confirmed take booleans and times"
            ])  # fmt: skip
        for word in self.words:
            if self.column.labels is not None and word not in self.column.labels:
                raise ConfigError([
                    f"--status {self.column.name}: {self.column.type} has no word {word!r}; "
                    f"{hint(word, self.column.labels)}"
                ])  # fmt: skip
        for status in STATUSES[:2]:
            if status not in self.words.values():
                raise ConfigError([f"--status-words: no word means {status}"])

    @property
    def columns(self) -> list[Column]:
        """Return the column."""
        return [self.column]

    def of(self, row: str) -> str:
        """Return the expression of the status."""
        place = f"{row}.{self.column.sql}::text"
        cases = " ".join(
            f"WHEN {place} {_among(self._words(status))} THEN {literal(status)}"
            for status in STATUSES[:2]
        )
        return f"CASE {cases} ELSE 'suspended' END"

    def changes(self) -> str:
        """Return the assignment of the first word for active."""
        return f"{self.column.sql} = {literal(self._words('active')[0])}"

    def provisioned(self, row: str) -> str:
        """Return the condition of the words for provisioned."""
        return f"{row}.{self.column.sql}::text {_among(self._words('provisioned'))}"

    def values(self, status: str) -> dict[str, str | None]:
        """Return the first word for a status; {} if there is none."""
        words = self._words(status)
        return {self.column.name: words[0]} if words else {}

    def _words(self, status: str) -> list[str]:
        return [word for word, meaning in self.words.items() if meaning == status]


@dataclass(frozen=True)
class ActiveStatus:
    """One boolean, such as Django's is_active."""

    column: Column

    def __post_init__(self) -> None:
        """Raise ConfigError for a column of another type."""
        _check_flag(self.column, "--active", times=False)

    @property
    def columns(self) -> list[Column]:
        """Return the column."""
        return [self.column]

    def of(self, row: str) -> str:
        """Return the expression of the status."""
        return f"CASE WHEN {row}.{self.column.sql} THEN 'active' ELSE 'inactive' END"

    def changes(self) -> str:
        """Return the assignment."""
        return f"{self.column.sql} = true"

    def provisioned(self, row: str) -> str:
        """Return the condition of an inactive account."""
        return f"{row}.{self.column.sql} IS NOT TRUE"

    def values(self, status: str) -> dict[str, str | None]:
        """Return the boolean."""
        return {self.column.name: "true" if status == "active" else "false"}


@dataclass(frozen=True)
class ConfirmedStatus:
    """A boolean or a time of the confirmation, and perhaps one of a block."""

    confirmed: Column
    blocked: Column | None

    def __post_init__(self) -> None:
        """Raise ConfigError for a column of another type."""
        _check_flag(self.confirmed, "--confirmed", times=True)
        if self.blocked:
            _check_flag(self.blocked, "--blocked", times=True)

    @property
    def columns(self) -> list[Column]:
        """Return both columns, or the one."""
        return [self.confirmed, *([self.blocked] if self.blocked else [])]

    def of(self, row: str) -> str:
        """Return the expression of the status."""
        blocked = f"WHEN {_set(self.blocked, row)} THEN 'suspended' " if self.blocked else ""
        confirmed = f"WHEN {_set(self.confirmed, row)} THEN 'active'"
        return f"CASE {blocked}{confirmed} ELSE 'provisioned' END"

    def changes(self) -> str:
        """Return the assignment."""
        value = "true" if self.confirmed.is_boolean else "pg_catalog.now()"
        return f"{self.confirmed.sql} = {value}"

    def provisioned(self, row: str) -> str:
        """Return the condition of an account that is neither confirmed nor blocked."""
        return " AND ".join(_unset(column, row) for column in self.columns)

    def values(self, status: str) -> dict[str, str | None]:
        """Return values of both columns; {} for suspended if there is no column of blocks."""
        if status == "suspended" and not self.blocked:
            return {}
        found = {self.confirmed.name: _value(self.confirmed, status == "active")}
        if self.blocked:
            found[self.blocked.name] = _value(self.blocked, status == "suspended")
        return found


def _check_flag(column: Column, flag: str, *, times: bool) -> None:
    if not (column.is_boolean or (times and column.is_time)):
        expected = "boolean or a time" if times else "boolean"
        raise ConfigError([
            f"{flag} {column.name}: its type is {column.type}: expected {expected}"
        ])  # fmt: skip


def _among(words: list[str]) -> str:
    if len(words) == 1:
        return f"= {literal(words[0])}"
    return f"IN ({', '.join(literal(word) for word in words)})"


def _set(column: Column, row: str) -> str:
    return f"{row}.{column.sql}" + ("" if column.is_boolean else " IS NOT NULL")


def _unset(column: Column, row: str) -> str:
    return f"{row}.{column.sql} IS " + ("NOT TRUE" if column.is_boolean else "NULL")


def _value(column: Column, yes: bool) -> str | None:
    if column.is_boolean:
        return "true" if yes else "false"
    return "now" if yes else None
