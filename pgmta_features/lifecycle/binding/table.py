"""A table of an application, as pg_catalog describes it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from pgmta.config.types import hint
from pgmta.errors import ConfigError

_QUERY = (Path(__file__).parent / "table.sql").read_text(encoding="utf-8")
_MAX_SHOWN_TABLES = 10  # in an error
_NO_TABLES = {
    "v": "is a view: name its table",
    "m": "is a materialized view: name its table",
    "f": "is a foreign table, whose triggers do not see the changes of others",
}
"""Why a relation of this kind (pg_class.relkind) can't be bound."""


@dataclass(frozen=True)
class Column:
    """A column. `sql` is its quoted name, and `base` its type without domains."""

    name: str
    sql: str
    type: str
    base: str
    category: str
    generated: bool
    not_null: bool
    has_default: bool
    equals: str | None
    labels: list[str] | None

    @property
    def is_text(self) -> bool:
        """Whether it holds text, such as varchar or citext."""
        return self.category == "S"

    @property
    def is_time(self) -> bool:
        """Whether it holds a date or a time of one."""
        return self.category == "D"

    @property
    def is_boolean(self) -> bool:
        """Whether it is true or false."""
        return self.base == "boolean"


@dataclass(frozen=True)
class Table:
    """A table, its owner, and that of the schema lifecycle. Fields with `sql` are quoted names."""

    schema: str
    name: str
    schema_sql: str
    sql: str
    kind: str
    is_partition: bool
    persistence: str
    hides_rows: bool
    owner: str
    owner_sql: str
    of_superuser: bool
    of_mail_owner: bool
    same_owner: bool
    lifecycle_owner: str
    lifecycle_owner_sql: str
    login_sql: str
    primary_key: list[str] | None
    indexes: list[tuple[str, bool]]
    columns: list[Column]
    grantees: list[str]
    strangers: list[str]
    taken: list[str]

    @property
    def is_partitioned(self) -> bool:
        """Whether its rows are in partitions."""
        return self.kind == "p"

    def column(self, name: str, flag: str) -> Column:
        """Return a column; the case of its name counts if two differ in it alone.

        Raises ConfigError, which names the flag and the nearest column.
        """
        found = [each for each in self.columns if each.name == name]
        found += [each for each in self.columns if each.name.lower() == name.lower() != each.name]
        if not found:
            advice = hint(name, [each.name for each in self.columns])
            raise ConfigError([f"{flag} {name}: {self.sql} has no such column; {advice}"])
        return found[0]

    def indexed(self, expression: str) -> bool:
        """Whether an index of all rows begins with this expression."""
        return expression in (text for text, _ in self.indexes)

    def unique(self, column: Column) -> bool:
        """Whether an index lets each value of this column be there once."""
        return (column.sql, True) in self.indexes

    def fault(self) -> str | None:
        """Return why no column of it would do; None if the columns decide."""
        if self.kind in _NO_TABLES:
            return f"{self.sql} {_NO_TABLES[self.kind]}"
        if self.is_partition:
            return f"{self.sql} is a partition: name the partitioned table"
        if self.persistence == "t":
            return f"{self.sql} is a temporary table"
        if self.hides_rows:
            return (
                f"row security hides rows of {self.sql} from its owner too, and so from pgmta: "
                f"ALTER TABLE {self.sql} NO FORCE ROW LEVEL SECURITY;"
            )
        if self.same_owner and self.strangers:
            return (
                f"triggers of {self.sql} run functions of others with the rights of "
                f"{self.owner_sql}: ALTER FUNCTION {self.strangers[0]} OWNER TO {self.owner_sql};"
            )
        if self.same_owner:
            return None
        if self.of_superuser or self.of_mail_owner:
            whose = "a superuser" if self.of_superuser else "a role that owns the mail"
            return (
                f"{self.sql} belongs to {self.owner_sql}, {whose}, and schema lifecycle to "
                f"{self.lifecycle_owner_sql}: "
                f"ALTER TABLE {self.sql} OWNER TO {self.lifecycle_owner_sql};"
            )
        return None


def read_table(db: psycopg.Connection[Any], name: str) -> Table:
    """Return the table of a name as in SQL, with or without a schema.

    If there is none, its case does not count. Raises ConfigError, psycopg.Error.
    """
    parts = _parts(db, name)
    schema, relation = parts if len(parts) == 2 else (None, parts[0])
    cursor = db.cursor(row_factory=dict_row)
    rows = cursor.execute(_QUERY, {"schema": schema, "name": relation}).fetchall()
    exact = [row for row in rows if row["name"] == relation and schema in (None, row["schema"])]
    found = exact or rows
    if not found:
        raise ConfigError([_no_table(db, name, schema, relation)])
    if len(found) > 1:
        names = ", ".join(shlex.quote(row["sql"]) for row in found)
        raise ConfigError([f"{name} may be one of {names}: name it with its schema"])
    (row,) = found
    columns = [Column(**each) for each in row.pop("columns") or []]
    indexes = [(text, unique) for text, unique in row.pop("indexes")]
    return Table(columns=columns, indexes=indexes, **row)


def _parts(db: psycopg.Connection[Any], name: str) -> list[str]:
    wrong = ConfigError([f"{name!r} is no name of a table: write TABLE or SCHEMA.TABLE, and one "
                         "with blanks or signs as '\"Shop Users\"'"])  # fmt: skip
    try:
        with db.transaction():
            ((parts,),) = db.execute("SELECT parse_ident(%s)", [name]).fetchall()
    except psycopg.DataError:
        raise wrong from None
    if len(parts) not in (1, 2):
        raise wrong
    return list(parts)


def _no_table(db: psycopg.Connection[Any], name: str, schema: str | None, relation: str) -> str:
    """Return why a name is that of no table, with a name that is near, or the tables."""
    of_others = db.execute(
        "SELECT format('%%I.%%I', n.nspname, c.relname), n.nspname = 'pgmta' AND NOT EXISTS"
        " (SELECT FROM pgmta.rights AS r WHERE r.object = c.relname)"
        " FROM pg_class AS c JOIN pg_namespace AS n"
        " ON n.oid = c.relnamespace WHERE lower(c.relname) = lower(%s)"
        " AND lower(n.nspname) = lower(coalesce(%s, n.nspname)) AND c.relkind IN ('r', 'p', 'v')"
        " ORDER BY 1 LIMIT 1",
        [relation, schema],
    ).fetchone()
    if of_others and of_others[1]:
        return (
            f"{of_others[0]} came into schema pgmta by a search_path: "
            f"ALTER TABLE {of_others[0]} SET SCHEMA public;"
        )
    if of_others:
        return f"{of_others[0]} belongs to pgmta or PostgreSQL: name a table of your application"
    rows = db.execute(
        "SELECT format('%I.%I', n.nspname, c.relname), quote_ident(c.relname) FROM pg_class AS c"
        " JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p')"
        " AND NOT c.relispartition AND n.nspname !~"
        " '^(pg_|information_schema$|pgmta$|lifecycle)' ORDER BY 1 LIMIT 1000"
    ).fetchall()
    if not rows:
        return f"there is no table {name}: the database has no table of an application"
    advice = hint(name, [each for row in rows for each in row])
    if not advice.startswith("did you mean"):
        more = len(rows) - _MAX_SHOWN_TABLES
        advice = f"there is {', '.join(shlex.quote(full) for full, _ in rows[:_MAX_SHOWN_TABLES])}"
        advice += f", and {more} more" if more > 0 else ""
    return f"there is no table {name}; {advice}"
