"""Proves a bound table: an account lives through all that pgmta does, and is rolled back."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg

from pgmta.errors import MigrationError
from pgmta_features.lifecycle.binding.bound import read_bound
from pgmta_features.lifecycle.binding.choice import Choice, choose
from pgmta_features.lifecycle.binding.statements import Bound
from pgmta_features.lifecycle.binding.table import Column, read_table
from pgmta_features.lifecycle.installation import installed_transaction

_LENGTH = re.compile(r"\((\d+)\)")
_KEY = re.compile(r"Key \((.*?)\)=")
_BY_CATEGORY = {"S": "", "N": "0", "B": "false", "D": "now", "T": "0", "A": "{}"}
"""Values by pg_type.typcategory for a table without rows."""
_BY_TYPE = {"json": {}, "jsonb": {}, "inet": "127.0.0.1", "bytea": "\\x"}


class Step(NamedTuple):
    """A step of the proof; `fault` is None if it went well."""

    name: str
    fault: str | None


def prove(uri: str, values: Mapping[str, str]) -> Iterator[Step]:
    """Yield the steps until one fails. `values` are those of columns of the account.

    Raises ConfigError for a column that is none, MigrationError if no table is bound or its code
    may not run in the session; StoreUnavailable; psycopg.Error.
    """
    with installed_transaction(uri) as db:
        try:
            bound = read_bound(db)
            if not bound:
                raise MigrationError("no table is bound: `queuectl lifecycle bind` binds one")
            if bound.apart:
                raise MigrationError(
                    f"{bound.wish.table} belongs to {bound.owners.table_sql}, whose code does not"
                    " run in a session of the owner of schema lifecycle"
                )
            choice = choose(read_table(db, bound.wish.table), bound.wish)
            yield from _Account(db, bound, choice, values).life()
        finally:
            db.rollback()


class _Account:
    """An account that is not committed."""

    def __init__(
        self, db: psycopg.Connection[Any], bound: Bound, choice: Choice, values: Mapping[str, str]
    ) -> None:
        self._db, self._choice = db, choice
        self._owner_sql = bound.owners.table_sql
        self._values = {
            choice.table.column(name, "--set").name: value for name, value in values.items()
        }
        self._mark = secrets.token_hex(4)
        self._email = ""
        self._id: Any = None
        self._number = 0

    def life(self) -> Iterator[Step]:
        """Yield the steps until one fails."""
        steps: list[tuple[str, Callable[[], str | None]]] = [
            ("an account is inserted", self._insert),
            ("its activation waits", self._activation_waits),
            ("its mail has its words", self._words),
            ("the token is consumed", self._consume),
            ("the account is active", lambda: self._has_status("active")),
            ("its mailbox asks for a recovery", self._recover),
            ("its status changes, and mail is withdrawn", self._suspend),
            ("its mailbox changes, and links end", self._move),
            ("it is deleted, and nothing remains", self._delete),
        ]
        for name, step in steps:
            try:
                fault = step()
            except psycopg.errors.OperationalError:
                raise
            except psycopg.Error as error:
                fault = _reason(error)
            yield Step(name, fault)
            if fault:
                return

    # -- steps --

    def _insert(self) -> str | None:
        choice, table = self._choice, self._choice.table
        columns = [column for column in table.columns if not column.generated]
        row = self._copy(columns)
        columns = [column for column in columns if column.name in row]
        names = ", ".join(column.sql for column in columns)
        found = self._as_owner(
            "INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE"
            " SELECT {names} FROM jsonb_populate_record(NULL::{table}, %s::jsonb)"
            " RETURNING {id}::text, {email}::text",
            json.dumps(row), names=names, email=choice.email.sql,
        )  # fmt: skip
        if not found:
            return "a trigger of the table left the row out"
        ((self._id, self._email),) = found
        return None

    def _activation_waits(self) -> str | None:
        if not self._ask("SELECT FROM lifecycle.actions WHERE name = 'activation'"):
            return "there is no action activation"
        found = self._ask("SELECT number FROM lifecycle.holders WHERE id = %s", [self._id])
        if not found:
            return "the trigger of the table has not told pgmta"
        ((self._number,),) = found
        return None if self._waiting("activation") else "no token waits"

    def _words(self) -> str | None:
        rows = self._ask(
            "SELECT email, login, words FROM lifecycle.account_rows(%s)", [[self._number]]
        )
        if not rows:
            return "the view does not have the account"
        ((email, login, words),) = rows
        if email != self._email:
            return f"the view has the address {email!r}, not {self._email!r}"
        if not login:
            return "it has no login"
        for (template,) in self._ask(
            "SELECT a.template FROM lifecycle.actions AS a WHERE a.name IN ('activation',"
            " 'password_recovery') AND lifecycle.action_words(a.template) IS NULL ORDER BY 1"
        ):
            return f"there is no template {template}: `queuectl template put` stores one"
        missing = self._ask(
            "SELECT a.template, array_agg(w ORDER BY w) FROM lifecycle.actions AS a,"
            " jsonb_object_keys(lifecycle.action_words(a.template)) AS w"
            " WHERE a.name IN ('activation', 'password_recovery') AND w <> ALL"
            " ('{link,token,login,email,code,minutes}') AND NOT coalesce(%s::jsonb, '{}') ? w"
            " GROUP BY 1 ORDER BY 1",
            [json.dumps(words)],
        )
        for template, names in missing:
            return f"the template {template} has words that no column gives: {', '.join(names)}"
        return None

    def _consume(self) -> str | None:
        ((_, secret),) = self._waiting("activation")
        ((why,),) = self._ask("SELECT why FROM lifecycle.token_consume(%s, 'activation')", [secret])
        return f"it was refused: {why}" if why else None

    def _recover(self) -> str | None:
        if not self._ask("SELECT FROM lifecycle.actions WHERE name = 'password_recovery'"):
            return None
        self._ask("SELECT lifecycle.recover(%s)", [self._email.swapcase()])
        waiting = self._waiting("password_recovery")
        if not waiting:
            return f"no account has the mailbox {self._email}"
        ((token, _),) = waiting
        # in place of the mail that a collector makes
        self._ask(
            "WITH mail AS (SELECT pgmta.submit(sender => '', recipients => ARRAY[%s]::text[],"
            " content => convert_to(E'Subject: check\\r\\n\\r\\n', 'UTF8')) AS id)"
            " UPDATE lifecycle.tokens SET message_id = mail.id, collected_at = now() FROM mail"
            " WHERE tokens.id = %s RETURNING 1",
            [self._email, token],
        )
        return None

    def _suspend(self) -> str | None:
        status = self._choice.status
        wanted = "suspended" if status.values("suspended") else "provisioned"
        self._update(status.values(wanted))
        if fault := self._has_status(wanted):
            return fault
        left = self._ask(
            "SELECT FROM lifecycle.tokens AS t JOIN pgmta.queue AS q ON q.message_id = t.message_id"
            " WHERE t.account = %s AND q.status <> 'DELETE'",
            [self._number],
        )
        return "mail is still in the queue" if left else None

    def _move(self) -> str | None:
        self._update(self._choice.status.values("active"))
        self._ask("SELECT lifecycle.ask_named('password_recovery', %s)", [self._email])
        self._email = self._address("moved")
        self._update({self._choice.email.name: self._email})
        left = self._ask(
            "SELECT FROM lifecycle.tokens WHERE account = %s AND consumed_at IS NULL"
            " AND expires_at > lifecycle.epoch()",
            [self._number],
        )
        return "a token to the earlier mailbox is still good" if left else None

    def _delete(self) -> str | None:
        self._as_owner("DELETE FROM {table} WHERE {id}::text = %s RETURNING 1", self._id)
        left = self._ask(
            "SELECT FROM lifecycle.holders WHERE number = %s"
            " UNION ALL SELECT FROM lifecycle.tokens WHERE account = %s",
            [self._number, self._number],
        )
        return "its tokens remain" if left else None

    # -- statements --

    def _ask(self, query: str, fields: list[Any] | None = None) -> list[tuple[Any, ...]]:
        cursor = self._db.execute(query.encode(), fields)
        return cursor.fetchall()

    def _as_owner(self, query: str, *fields: Any, **parts: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement about the table; its words in braces are SQL."""
        self._db.execute(f"SET LOCAL ROLE {self._owner_sql}".encode())
        names = {"table": self._choice.table.sql, "id": self._choice.id.sql, **parts}
        found = self._ask(query.format(**names), list(fields))
        self._db.execute("SET LOCAL ROLE NONE")
        return found

    def _update(self, values: Mapping[str, str | None]) -> None:
        columns = [column for column in self._choice.table.columns if column.name in values]
        changes = ", ".join(f"{column.sql} = r.{column.sql}" for column in columns)
        self._as_owner(
            "UPDATE {table} AS u SET {changes}"
            " FROM jsonb_populate_record(NULL::{table}, %s::jsonb) AS r"
            " WHERE u.{id}::text = %s RETURNING 1",
            json.dumps(values), self._id, changes=changes,
        )  # fmt: skip

    def _waiting(self, action: str) -> list[tuple[Any, ...]]:
        return self._ask(
            "SELECT t.id, t.secret FROM lifecycle.tokens AS t JOIN lifecycle.waiting_tokens AS w"
            " ON w.action = t.action AND w.token = t.id WHERE t.account = %s AND t.action = %s",
            [self._number, action],
        )

    def _has_status(self, wanted: str) -> str | None:
        ((found,),) = self._ask("SELECT lifecycle.account_status(%s)", [self._number])
        return None if found == wanted else f"its status is {found}, not {wanted}"

    # -- values --

    def _copy(self, columns: list[Column]) -> dict[str, Any]:
        """Return the row to insert: a copy of one that is there, with values of its own."""
        choice, table = self._choice, self._choice.table
        found = self._as_owner("SELECT to_jsonb(u) FROM {table} AS u LIMIT 1")
        if found:
            row = dict(found[0][0])
            for column in columns:
                if table.unique(column):
                    row[column.name] = self._other(column, row[column.name])
        else:
            row = {
                column.name: _by_type(column)
                for column in columns if column.not_null and not column.has_default
            }  # fmt: skip
        row[choice.login.name] = _cut(f"check-{self._mark}", choice.login)
        row[choice.email.name] = self._address("check")
        row |= choice.status.values("provisioned")
        row[choice.id.name] = self._new_id()
        return row | self._values

    def _address(self, name: str) -> str:
        address = f"pgmta-{name}-{self._mark}@example.invalid"
        short = f"{name[0]}{self._mark}@x.invalid"
        return address if _cut(address, self._choice.email) == address else short

    def _new_id(self) -> str:
        column, id_type = self._choice.id, self._choice.id_type
        if id_type == "bigint":
            ((number,),) = self._as_owner("SELECT least(min({id}), 0) - 1 FROM {table}")
            return str(number)
        new = uuid4()
        return str(new) if id_type == "pg_catalog.uuid" else _cut(new.hex, column)

    def _other(self, column: Column, value: Any) -> Any:
        """Return a value that no other row has, for a column with a unique index."""
        if not column.not_null:
            return None
        if column.base == "uuid":
            return str(uuid4())
        return _cut(f"{self._mark}{value}", column) if column.is_text else value


def _by_type(column: Column) -> Any:
    if column.labels:
        return column.labels[0]
    if column.base == "uuid":
        return str(uuid4())
    return _BY_TYPE.get(column.base, _BY_CATEGORY.get(column.category))


def _cut(text: str, column: Column) -> str:
    length = _LENGTH.search(column.type) if column.is_text else None
    return text[: int(length[1])] if length else text


def _reason(error: psycopg.Error) -> str:
    """Return what PostgreSQL says, without the values of the row, which are those of a person."""
    diag = error.diag
    key = _KEY.match(diag.message_detail or "")
    columns = diag.column_name or (key and key[1])
    where = f" (column {columns})" if columns else ""
    text = str(diag.message_primary or error).rstrip(".")
    return f"{text}{where}; --set COLUMN=VALUE gives a column another value"
