"""Which columns of a table are the accounts: what was asked for, and what it means (pure)."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

from pgmta.config.types import hint
from pgmta.errors import ConfigError
from pgmta_features.lifecycle.binding.status import (
    STATUSES,
    ActiveStatus,
    ConfirmedStatus,
    Status,
    WordStatus,
)
from pgmta_features.lifecycle.binding.table import Column, Table

_ID_TYPES = ("smallint", "integer", "bigint", "uuid", "text", "character varying")
_LOGINS = ("username", "login", "name")  # names of the column without --login
_OWN_WORDS = ("link", "token", "login", "email", "new_email", "code", "minutes")
_WORD = re.compile(r"[a-z][a-z0-9_]{0,62}")


@dataclass(frozen=True)
class Wish:
    """The options of `queuectl lifecycle bind`, which the table `installation` keeps as well."""

    table: str
    id: str | None = None
    email: str | None = None
    login: str | None = None
    status: str | None = None
    status_words: dict[str, str] = field(default_factory=dict)
    active: str | None = None
    confirmed: str | None = None
    blocked: str | None = None
    language: str | None = None
    words: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return what was given."""
        return {name: value for name, value in asdict(self).items() if value}


@dataclass(frozen=True)
class Choice:
    """The columns of a table that are those of an account."""

    table: Table
    id: Column
    email: Column
    login: Column
    status: Status
    language: Column | None
    words: dict[str, Column]

    @property
    def id_type(self) -> str:
        """Return the type as which the id is looked up."""
        if self.id.base in ("uuid", "text", "character varying"):
            return "pg_catalog.uuid" if self.id.base == "uuid" else "pg_catalog.text"
        return "bigint"

    @property
    def id_is_number(self) -> bool:
        """Whether the id is a number, for programs and in JSON."""
        return self.id_type == "bigint"

    def advice(self) -> list[str]:
        """Return statements that make missing indexes, for who asks by login or mailbox."""
        place = self.table.sql
        online = "" if self.table.is_partitioned else " CONCURRENTLY"
        found = []
        by_mailbox = f"pgmta.mailbox_key({self.email.sql}{_as_text(self.email)})"
        if not self.table.indexed(by_mailbox):
            found.append(f"CREATE INDEX{online} ON {place} ({by_mailbox});")
        if self.login != self.email and not self.table.indexed(self.login.sql):
            found.append(f"CREATE INDEX{online} ON {place} ({self.login.sql});")
        return found


def choose(table: Table, wish: Wish) -> Choice:
    """Return the columns that a wish means. Raises ConfigError with all mistakes."""
    if fault := table.fault():
        raise ConfigError([fault])
    problems: list[str] = []

    def attempt[T](step: Any, *args: Any) -> T | None:
        try:
            return step(*args)  # type: ignore[no-any-return]
        except ConfigError as error:
            problems.extend(error.problems)
            return None

    id_: Column | None = attempt(_id, table, wish)
    email: Column | None = attempt(_email, table, wish)
    login: Column | None = attempt(_login, table, wish, email)
    status: Status | None = attempt(_status, table, wish)
    language: Column | None = attempt(_language, table, wish)
    words: dict[str, Column] | None = attempt(_words, table, wish)
    if problems or not (id_ and email and login and status) or words is None:
        raise ConfigError(problems)
    return Choice(table, id_, email, login, status, language, words)


def _id(table: Table, wish: Wish) -> Column:
    key = table.primary_key or []
    if not wish.id and len(key) != 1:
        which = f"has the columns {', '.join(key)}" if key else "is missing"
        raise ConfigError([f"the primary key of {table.sql} {which}: name a column by --id"])
    column = table.column(wish.id or key[0], "--id")
    if column.base not in _ID_TYPES:
        raise ConfigError([
            f"--id {column.name}: its type is {column.type}: expected one of {', '.join(_ID_TYPES)}"
        ])  # fmt: skip
    # the key of a partitioned table may need further columns
    if not (table.unique(column) or (table.is_partitioned and column.name in key[:1])):
        raise ConfigError([f"--id {column.name}: no unique index of {table.sql} has it alone"])
    return column


def _email(table: Table, wish: Wish) -> Column:
    if not wish.email and not any(each.name.lower() == "email" for each in table.columns):
        raise ConfigError([f"{table.sql} has no column email: name that of the address by --email"])
    return _text(table, wish.email or "email", "--email")


def _login(table: Table, wish: Wish, email: Column | None) -> Column | None:
    if wish.login:
        return _text(table, wish.login, "--login")
    for name in _LOGINS:
        for column in table.columns:
            if column.name.lower() == name and column.is_text:
                return column
    return email


def _text(table: Table, name: str, flag: str) -> Column:
    column = table.column(name, flag)
    if not column.is_text:
        raise ConfigError([
            f"{flag} {column.name}: its type is {column.type}: expected text, varchar or citext"
        ])  # fmt: skip
    return column


def _status(table: Table, wish: Wish) -> Status:
    given = {"--status": wish.status, "--active": wish.active, "--confirmed": wish.confirmed}
    flags = [flag for flag, name in given.items() if name]
    if len(flags) != 1:
        found = [each.name for each in table.columns if each.is_boolean]
        among = f"; its booleans: {', '.join(found)}" if found and not flags else ""
        if flags:
            among = f", not by {' and '.join(flags)}"
        raise ConfigError([
            f"name the column of the status by one of {', '.join(given)}{among}"
        ])  # fmt: skip
    if wish.blocked and not wish.confirmed:
        raise ConfigError(["--blocked belongs to --confirmed"])
    if wish.status_words and not wish.status:
        raise ConfigError(["--status-words belongs to --status"])
    if wish.status:
        words = wish.status_words or {status: status for status in STATUSES}
        for word, meaning in words.items():
            if meaning not in STATUSES:
                raise ConfigError([f"--status-words {word}={meaning}: {hint(meaning, STATUSES)}"])
        column = table.column(wish.status, "--status")
        if not wish.status_words and column.labels is not None:
            # an enum may have no word for suspended
            words = {word: word for word in column.labels if word in STATUSES} or words
        return WordStatus(column, words)
    if wish.active:
        return ActiveStatus(table.column(wish.active, "--active"))
    blocked = table.column(wish.blocked, "--blocked") if wish.blocked else None
    return ConfirmedStatus(table.column(str(wish.confirmed), "--confirmed"), blocked)


def _language(table: Table, wish: Wish) -> Column | None:
    return _text(table, wish.language, "--language") if wish.language else None


def _words(table: Table, wish: Wish) -> dict[str, Column]:
    words: dict[str, Column] = {}
    for name in wish.words:
        column = table.column(name, "--words")
        word = column.name.lower()
        if not _WORD.fullmatch(word):
            raise ConfigError([f"--words {name}: a template has no word of this name"])
        if word in _OWN_WORDS:
            raise ConfigError([f"--words {name}: this word of a mail has another meaning"])
        if words.setdefault(word, column) != column:
            raise ConfigError([f"--words {name}: another column is the same word"])
    return words


def _as_text(column: Column) -> str:
    return "" if column.base == "text" == column.type else "::text"
