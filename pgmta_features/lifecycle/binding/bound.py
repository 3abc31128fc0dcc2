"""Binds a table, and takes the binding away, each in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import psycopg

from pgmta.errors import MigrationError, StoreUnavailable
from pgmta_features.lifecycle.binding.choice import Choice, Wish, choose
from pgmta_features.lifecycle.binding.statements import (
    Bound,
    Owners,
    Part,
    bind_parts,
    unbind_parts,
)
from pgmta_features.lifecycle.binding.status import ActiveStatus, ConfirmedStatus, WordStatus
from pgmta_features.lifecycle.binding.table import Table, read_table
from pgmta_features.lifecycle.installation import installed_transaction, schema_topic

_BOUND = """
SELECT i.bound, b.place, to_regclass(i.bound ->> 'table')::text,
    o.rolname, quote_ident(o.rolname), l.rolname, quote_ident(l.rolname)
FROM lifecycle.installation AS i, LATERAL (SELECT quote_ident(i.bound ->> 'schema')) AS b (place)
    JOIN pg_namespace AS n ON n.nspname = 'lifecycle' JOIN pg_roles AS l ON l.oid = n.nspowner
    LEFT JOIN pg_proc AS p
        ON p.oid = to_regprocedure(b.place || '.pgmta_account_changed()')
    JOIN pg_roles AS o ON o.oid = coalesce(p.proowner, n.nspowner)
WHERE i.bound IS NOT NULL
"""
_MAY_BE = """
SELECT %(role)s = current_user OR pg_has_role(%(role)s,
    CASE WHEN current_setting('server_version_num')::integer < 160000 THEN 'MEMBER' ELSE 'SET' END)
"""
_MOST_DEADLOCKS = 10
_LOCK = "LOCK TABLE lifecycle.accounts, lifecycle.tokens IN ACCESS EXCLUSIVE MODE"


class Binding(NamedTuple):
    """A binding that was planned or made: its columns, its statements, and advice as statements."""

    choice: Choice
    statements: str
    advice: list[str]


def bind(uri: str, wish: Wish, *, create: bool) -> Binding:
    """Bind a table, or the bound one again; without `create`, return what would run.

    Raises ConfigError if the table or a column does not do, MigrationError if the database does
    not; StoreUnavailable; psycopg.Error. Nothing is changed then.
    """
    return _patiently(lambda: _bind(uri, wish, create))


def _bind(uri: str, wish: Wish, create: bool) -> Binding:
    with installed_transaction(uri) as db:
        table = read_table(db, wish.table)
        choice = choose(table, wish)
        wish = _resolved(choice, wish)
        former = read_bound(db)
        _check_former(db, table, wish, former)
        parts = bind_parts(choice, wish)
        if former:
            own_accounts = schema_topic("own_accounts")
            parts = [*unbind_parts(former, own_accounts, ends=False), *parts]
        if not table.same_owner:
            _check_binding_role(db)
        if create:
            _check_roles(db, parts)
            _run(db, parts)
        else:
            db.rollback()
    return Binding(choice, _script(table.login_sql, parts), choice.advice())


def unbind(uri: str) -> tuple[str, int]:
    """Take the binding away; return the table and how many tokens ended.

    Raises MigrationError if there is none, StoreUnavailable, psycopg.Error.
    """
    return _patiently(lambda: _unbind(uri))


def _unbind(uri: str) -> tuple[str, int]:
    with installed_transaction(uri) as db:
        bound = read_bound(db)
        if not bound:
            raise MigrationError("no table is bound")
        parts = unbind_parts(bound, schema_topic("own_accounts"), ends=True)
        _check_roles(db, parts)
        first, second = parts
        _run_as(db, first)
        db.execute(_LOCK)
        ((number,),) = db.execute(
            "SELECT count(*) FROM lifecycle.tokens"
            " WHERE account IS NOT NULL AND consumed_at IS NULL AND expires_at > lifecycle.epoch()"
        ).fetchall()
        _run_as(db, second)
    return bound.wish.table, int(number)


def _patiently[T](work: Callable[[], T]) -> T:
    """Return what the work returns; it begins anew after a deadlock.

    It locks the table before the view, as programs do that write to the table; collectors read the
    view, which locks both in the other order.
    """
    for _ in range(_MOST_DEADLOCKS):
        try:
            return work()
        except StoreUnavailable as error:
            if not isinstance(error.__cause__, psycopg.errors.DeadlockDetected):
                raise
    return work()


def read_bound(db: psycopg.Connection[Any]) -> Bound | None:
    """Return the binding of a database; None if there is none. Raises psycopg.Error."""
    rows = db.execute(_BOUND).fetchall()
    if not rows:
        return None
    ((record, place, table, *owners),) = rows
    apart = record.pop("apart")
    del record["schema"]
    return Bound(Wish(**record), place, table, Owners(*owners), apart)


def _resolved(choice: Choice, wish: Wish) -> Wish:
    """Return the wish with the names that it means, so that it means the same later."""
    status: dict[str, Any] = {"status": None, "active": None, "confirmed": None, "blocked": None}
    match choice.status:
        case WordStatus(column, words):
            status |= {"status": column.name, "status_words": dict(words)}
        case ActiveStatus(column):
            status["active"] = column.name
        case ConfirmedStatus(confirmed, blocked):
            status |= {"confirmed": confirmed.name, "blocked": blocked and blocked.name}
    return replace(
        wish, table=choice.table.sql, id=choice.id.name, email=choice.email.name,
        login=choice.login.name, language=choice.language.name if choice.language else None,
        words=[column.name for column in choice.words.values()], **status,
    )  # fmt: skip


def _check_former(
    db: psycopg.Connection[Any], table: Table, wish: Wish, former: Bound | None
) -> None:
    """Raise MigrationError if accounts of another place are in the way."""
    if former and former.wish.table != table.sql:
        raise MigrationError(
            f"{former.wish.table} is bound already: `queuectl lifecycle unbind` takes that away"
        )
    if former:
        ((holders,),) = db.execute("SELECT count(*) FROM lifecycle.holders").fetchall()
        if holders and former.wish.id != wish.id:
            raise MigrationError(
                f"tokens name accounts by the column {former.wish.id}: `queuectl lifecycle unbind`"
                " ends them"
            )
        return
    if table.taken:
        raise MigrationError(f"there is already {', '.join(table.taken)}, which is not of pgmta")
    _check_accounts(db)


def _check_accounts(db: psycopg.Connection[Any]) -> None:
    ((number,),) = db.execute("SELECT count(*) FROM lifecycle.accounts").fetchall()
    if number:
        raise MigrationError(
            f"lifecycle.accounts has {number} rows: delete them first, which withdraws their mail"
        )


def _check_binding_role(db: psycopg.Connection[Any]) -> None:
    ((needed,),) = db.execute("SELECT lifecycle.binding_role()").fetchall()
    if needed:
        raise MigrationError(
            "the table has another owner than schema lifecycle, and so its code runs as the role"
            f" pgmta_binding. A superuser runs: {needed}"
        )


def _check_roles(db: psycopg.Connection[Any], parts: Iterable[Part]) -> None:
    """Raise MigrationError if the login can't act as the roles that run the parts."""
    for role, role_sql in dict.fromkeys((part.role, part.role_sql) for part in parts):
        ((may,),) = db.execute(_MAY_BE, {"role": role}).fetchall()
        if not may:
            ((login,),) = db.execute("SELECT quote_ident(current_user)").fetchall()
            raise MigrationError(
                f"{login} can't act as {role_sql}, which has to run a part of the statements:"
                f" `GRANT {role_sql} TO {login};` allows it, or log in as a superuser"
            )


def _run(db: psycopg.Connection[Any], parts: list[Part]) -> None:
    *first, last = parts
    for part in first:
        _run_as(db, part)
    # The table of the application is locked first, as its programs do.
    db.execute(_LOCK)
    _check_accounts(db)
    _run_as(db, last)


def _run_as(db: psycopg.Connection[Any], part: Part) -> None:
    db.execute(f"SET LOCAL ROLE {part.role_sql}".encode())
    db.execute(part.statements.encode())
    db.execute("SET LOCAL ROLE NONE")


def _script(login_sql: str, parts: list[Part]) -> str:
    """Return the parts as they run, with the changes of the role that the login needs."""
    lines = ["BEGIN;\nSET LOCAL search_path = pg_catalog, pg_temp;\n"]
    for part in parts:
        change = f"SET LOCAL ROLE {part.role_sql};\n" if part.role_sql != login_sql else ""
        back = "SET LOCAL ROLE NONE;\n" if change else ""
        lines.append(f"\n-- as {part.role_sql}\n{change}{part.statements}{back}")
    return "".join([*lines, "\nCOMMIT;"])
