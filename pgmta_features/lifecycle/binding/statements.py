"""The statements that bind a table, and those that take the binding away (pure)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pgmta_features.lifecycle.binding.choice import Choice, Wish
from pgmta_features.lifecycle.binding.status import literal
from pgmta_features.lifecycle.binding.table import Column

_FOLDER = Path(__file__).parent
_PLACE = re.compile(r"@([a-z_]+)@")
_LINE = re.compile(r"^( *)@([a-z_]+)@\n", re.MULTILINE)
_SNIPPET = re.compile(r"^-- name: (\w+)\n(.*?)\n(?=\n-- name: |\Z)", re.MULTILINE | re.DOTALL)
_OF_LIFECYCLE = (
    "account_rows(text[])", "account_named(text)", "account_lock(text)",
    "account_activate(text, text)",
)  # fmt: skip
"""The functions in lifecycle_bound."""
_CALLED = (
    "account_inserted(text, text)", "account_changed(text, text)", "mailbox_changed(text)",
    "account_deleted(text)", "accounts_truncated()",
)  # fmt: skip
"""The functions in lifecycle that the trigger calls."""


class Part(NamedTuple):
    """Statements that run as one role; `role_sql` is its quoted name."""

    role: str
    role_sql: str
    statements: str


class Owners(NamedTuple):
    """Roles and their quoted names: the owners of the objects beside a table, and of lifecycle."""

    table: str
    table_sql: str
    lifecycle: str
    lifecycle_sql: str


class Bound(NamedTuple):
    """A table that is bound.

    `place` is the quoted name of its schema, and `table` its own, which is None if it is gone.
    With `apart` it belongs to another role than the schema lifecycle.
    """

    wish: Wish
    place: str
    table: str | None
    owners: Owners
    apart: bool


def bind_parts(choice: Choice, wish: Wish) -> list[Part]:
    """Return the statements that bind a table, in their order. They belong to one transaction."""
    table = choice.table
    values = _values(choice)
    apart = not table.same_owner
    record = wish.as_json() | {"schema": table.schema, "apart": apart}
    rest = _fill(_text("lifecycle_functions.sql"), values)
    rest += values["apart"]
    rest += (
        "\nALTER TABLE lifecycle.tokens DROP CONSTRAINT tokens_account_fkey,\n"
        "    ADD CONSTRAINT tokens_account_fkey FOREIGN KEY (account)\n"
        "    REFERENCES lifecycle.holders (number) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED;"
        "\nUPDATE lifecycle.installation SET bound =\n"
        f"    {literal(json.dumps(record, ensure_ascii=False))};\n"
    )
    before = "SELECT lifecycle.binding_role();  -- makes the role pgmta_binding\n"
    return [
        *([Part(table.lifecycle_owner, table.lifecycle_owner_sql, before)] if apart else []),
        Part(table.owner, table.owner_sql, _fill(_text("table_objects.sql"), values)),
        Part(table.lifecycle_owner, table.lifecycle_owner_sql, rest),
    ]


def unbind_parts(bound: Bound, own_accounts: str, *, ends: bool) -> list[Part]:
    """Return the statements that take a binding away, in their order.

    `own_accounts` makes the functions about accounts of the schema lifecycle. If the binding does
    not end, another one of the same table follows, and tokens stay.
    """
    place = bound.place
    # first, as programs do: their triggers read the view
    lock = f"LOCK TABLE {bound.table} IN ACCESS EXCLUSIVE MODE;\n" if bound.table else ""
    objects = lock + (
        f"DROP VIEW IF EXISTS {place}.pgmta_accounts;\n"
        f"DROP FUNCTION IF EXISTS {place}.pgmta_activate(text, text, jsonb);\n"
        f"DROP FUNCTION IF EXISTS {place}.pgmta_account_changed() CASCADE;  -- with its triggers\n"
    )
    names = ", ".join(f"lifecycle_bound.{name}" for name in _OF_LIFECYCLE)
    rest = (
        f"DROP FUNCTION IF EXISTS {names};\n"
        f"SET LOCAL search_path = lifecycle;\n{own_accounts}"
        "SET LOCAL search_path = pg_catalog, pg_temp;\n"
    )
    if bound.apart:
        called = ", ".join(f"lifecycle.{name}" for name in _CALLED)
        objects += f"REVOKE USAGE ON SCHEMA {place} FROM pgmta_binding;\n"
        rest += (
            "REVOKE USAGE ON SCHEMA pgmta FROM pgmta_binding;\n"
            f"REVOKE EXECUTE ON FUNCTION {called} FROM {bound.owners.table_sql};\n"
            f"REVOKE USAGE ON SCHEMA lifecycle FROM {bound.owners.table_sql};\n"
        )
    if ends:
        rest += (
            "DELETE FROM lifecycle.holders;  -- with their tokens, which withdraws mail\n"
            "DELETE FROM lifecycle.proofs;\n"
            "ALTER TABLE lifecycle.tokens DROP CONSTRAINT tokens_account_fkey,\n"
            "    ADD CONSTRAINT tokens_account_fkey FOREIGN KEY (account)\n"
            "    REFERENCES lifecycle.accounts (id) ON DELETE CASCADE DEFERRABLE INITIALLY"
            " DEFERRED;\n"
            "UPDATE lifecycle.installation SET bound = NULL;\n"
        )
    return [
        Part(bound.owners.table, bound.owners.table_sql, objects),
        Part(bound.owners.lifecycle, bound.owners.lifecycle_sql, rest),
    ]


def _values(choice: Choice) -> dict[str, str]:
    table, status = choice.table, choice.status
    public = ", ".join(["PUBLIC", *table.grantees])
    words = ", ".join(
        f"{literal(word)}, coalesce(u.{column.sql}::text, '')"
        for word, column in choice.words.items()
    )
    values = {
        "place": table.schema_sql, "table": table.sql, "view": f"{table.schema_sql}.pgmta_accounts",
        "id": choice.id.sql, "email": choice.email.sql, "login": choice.login.sql,
        "id_type": choice.id_type, "id_in_json": "::bigint" if choice.id_is_number else "",
        "status_of_u": status.of("u"), "status_of_new": status.of("NEW"),
        "status_of_old": status.of("OLD"), "changes": status.changes(),
        "provisioned": status.provisioned("u"), "public": public,
        "language": f"u.{choice.language.sql}::text" if choice.language else "NULL::text",
        "words": f"jsonb_build_object({words})" if words else "NULL::jsonb",
        "named": _named(choice), "owner": table.owner_sql,
        "owner_name": literal(table.owner),
        "called": ", ".join(f"lifecycle.{name}" for name in _CALLED),
    }  # fmt: skip
    values["quote"] = _quote("".join(values.values()))
    snippets = dict(_SNIPPET.findall(_text("snippets.sql")))
    for name, text in snippets.items():
        used = table.is_partitioned if name.startswith("moved") else not table.same_owner
        values[name] = _fill(text, values) if used else ""
    return values


def _named(choice: Choice) -> str:
    by_mailbox = "pgmta.mailbox_key(a.email::text) = pgmta.mailbox_key($1)"
    if choice.login == choice.email:
        return by_mailbox
    return f"a.login {_equals(choice.login)} OR {by_mailbox}"


def _equals(column: Column) -> str:
    """Return the comparison with $1 that uses an index of a column of text."""
    if column.equals is None or column.base == "text":
        return "= $1"
    kind = "bpchar" if column.base == "character" else column.base
    return f"{column.equals} $1::{kind}"


def _quote(text: str) -> str:
    """Return a dollar quote that ends in none of the names."""
    number = 0
    while (found := f"$pgmta{number or ''}$") in text:
        number += 1
    return found


def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _fill(text: str, values: Mapping[str, str]) -> str:
    """Return a text with the values in place of @name@.

    A line with one alone becomes lines of the same indent, or none if the value is empty.
    """

    def lines(match: re.Match[str]) -> str:
        found = values[match[2]].splitlines()
        return "".join(f"{match[1]}{each}".rstrip() + "\n" for each in found)

    return _PLACE.sub(lambda match: values[match[1]], _LINE.sub(lines, text))
