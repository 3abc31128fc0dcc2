"""Operators' WHERE conditions: checked by PostgreSQL, never trusted as text."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Container, Mapping

import psycopg
from psycopg import errors as pg_errors
from psycopg import pq
from psycopg.pq.abc import PGresult
from psycopg.sql import Literal

from pgmta.config.types import hint
from pgmta.errors import Blocked, ConfigError, LoginRefused, SchemaMismatch
from pgmta.postgres import blockers
from pgmta.postgres.link import connect, unavailable
from pgmta.postgres.link_connection import LinkConnection
from pgmta.postgres.role import ROLE_QUESTION, lacking
from pgmta.store.schema import migrations, mismatch

_QUOTED = re.compile(
    r"""\b[eE]'(?:[^'\\]|''|\\.)*' | '(?:[^']|'')*' | "(?:[^"]|"")*"
    | \$([A-Za-z_]\w*)?\$.*?\$\1\$""",
    re.VERBOSE | re.DOTALL,
)
_FORBIDDEN_TOKENS = (
    ("--", "a comment is not allowed in a condition"),
    ("/*", "a comment is not allowed in a condition"),
    (";", "a condition is one expression, ';' is not allowed"),
)
_DOTTED_NAME = re.compile(r"[\w.@-]+")
_CALL = re.compile(r"([^\W\d][\w$]*)\"?\s*\(")
_FORBIDDEN_NAMES = (
    (r"\b(?:select|table|values)\b", "a subselect is not allowed in a condition"),
    (r"\b(?:[cx]min|[cx]max|ctid|tableoid)\b",
     "only the columns of queue may be named, no system columns"),
)  # fmt: skip
_VOLATILE = """
SELECT proname FROM pg_proc WHERE proname = ANY (%s) AND pg_function_is_visible(oid)
GROUP BY proname HAVING bool_and(provolatile = 'v')
"""
_COLUMNS = """
SELECT attname FROM pg_attribute
WHERE attrelid = 'queue'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_COLUMN_NAME = re.compile(r'(?:queue\.)?"?(\w+)')  # of a column
_PARTITION_KEY = re.compile(r"metadata\s*->>\s*'_partid'", re.IGNORECASE)
_CASE = re.compile(
    r"(?<![\w.])(?P<column>sender|recipient)\s*(?:NOT\s+)?"
    r"(?P<operator>LIKE\b|IN\b|SIMILAR\b|=|<>|!=|!?~(?![~*]))(?!\s*'')",
    re.IGNORECASE,
)
_DOMAIN = re.compile(
    r"(?<![\w.'])(?:queue\.)?(?P<column>(?i:sender_domain|domain))\s*(?i:NOT\s+)?"
    r"(?:(?i:LIKE\b|SIMILAR\s+TO\b)|=|<>|!=|(?i:IN)\s*\((?:[^()']|'[^']*')*?"
    r"|=\s*(?i:ANY)\s*\(\s*(?i:ARRAY)\s*\[(?:[^]']|'[^']*')*?)"
    r"\s*(?P<text>'[^']*[A-Z][^']*')"
)
_LITERAL = re.compile(r"'(?:[^']|'')*'")
_LOGIC = re.compile(
    r"\b(?:and|or|not|in|is|null|true|false|any|array)\b|[(),=\[\]\s]|<>", re.IGNORECASE
)


LOWEST_PRIORITY = 9


def all_of(first: str | None, second: str | None) -> str | None:
    """Return the condition that both conditions hold; None means every row."""
    parts = [f"(\n{part}\n)" for part in (first, second) if part]
    return " AND ".join(parts) or None


def takes(condition: str | None, action: str, priority: int) -> str | None:
    """Return the condition of a worker with its priority, which counts for deliveries only."""
    if action != "deliver" or priority >= LOWEST_PRIORITY:
        return condition
    limit = f"priority <= {priority}"
    return all_of(condition, limit) if condition else limit


def unless_exempt(holder: str, condition: str) -> str:
    """Return the condition of a holder, without the rows that were released from it.

    A holder is named as in `queue.held_under`: `rule 7` by the number of a rule, or `worker NAME`.
    """
    name = Literal(holder).as_string(None)
    return f"({name} = ANY (exempt_from)) IS NOT TRUE AND (\n{condition}\n)"


def rule_holder(number: int) -> str:
    """Return the name under which the rule with this number holds rows."""
    return f"rule {number}"


def rule_holds(number: int) -> str:
    """Return the condition of the rows that the rule with this number holds."""
    return f"held_under = '{rule_holder(number)}'"


def release_hint(number: int) -> str:
    """Return the command that releases what a rule that has ended held."""
    return f'queuectl release --where "{rule_holds(number)}"'


def rule_takes(number: int, condition: str) -> str:
    """Return the condition of the rows that a standing rule holds."""
    return unless_exempt(rule_holder(number), condition)


def partition_condition(condition: str | None) -> str:
    """Return the condition if it is only about `metadata->>'_partid'`, else `true`.

    Such a condition chooses partitions. It may be in each step of a claim by domain, without
    making that longer.
    """
    if not condition or not _PARTITION_KEY.search(condition):
        return "true"
    rest = _LOGIC.sub("", _LITERAL.sub("", _PARTITION_KEY.sub("", condition)))
    return condition if not rest else "true"


def case_hint(condition: str) -> str | None:
    """Return a warning of a condition whose comparison misses rows by their case, or None.

    Domains are stored in lower case, so that a text with a capital letter never matches.
    """
    if match := _DOMAIN.search(condition):
        return (
            f"{match['column'].lower()} is in lower case, so {match['text']} never matches: "
            "write it in lower case"
        )
    bare = _LITERAL.sub(lambda literal: literal[0] if literal[0] == "''" else "'x'", condition)
    match = _CASE.search(bare)
    if not match:
        return None
    column = match["column"].lower()
    domain = "sender_domain" if column == "sender" else "domain"
    return (
        f"{column} {match['operator'].upper()} is case-sensitive; "
        f"{domain} is in lower case, ILIKE and lower({column}) ignore case"
    )


_SESSION = {"default_transaction_read_only": "off", "lock_timeout": "3s"}


async def check_conditions(
    uri: str,
    conditions: Mapping[str, str],
    stored: Container[str] = (),
    role: str = "pgmta_operator",
) -> None:
    """Let PostgreSQL analyse each condition and run none; the keys name them in errors.

    A condition is one boolean expression over the columns of queue: no subselect, no volatile
    function, nothing after it. Those with a key in `stored` become rules: the function
    condition_fault of the database judges them too. Raises ConfigError with all problems.
    Raises StoreUnavailable if the server cannot be reached; LoginRefused also if the login does not
    see the queue because it lacks `role`; UndefinedTable if there is no queue; SchemaMismatch if
    conditions are wrong and the schema is of another version.
    """
    if problems := await condition_problems(uri, conditions, stored, role):
        raise ConfigError([f"{key}: {reason}" for key, reason in problems.items()])


async def condition_problems[K](
    uri: str, conditions: Mapping[K, str], stored: Container[K], role: str
) -> dict[K, str]:
    """Return the mistakes by key. Raises the same errors, without ConfigError."""
    problems: dict[K, str] = {}
    try:
        connection = await connect(uri, "check", _SESSION)
    except psycopg.Error as error:
        raise unavailable(error) from error
    try:
        cursor = await connection.execute("SELECT to_regclass('queue') IS NULL")
        if await cursor.fetchone() == (True,):
            cursor = await connection.execute(ROLE_QUESTION, {"role": role})
            if reason := lacking(role, (await cursor.fetchall())[0]):
                raise LoginRefused(reason)
            raise pg_errors.UndefinedTable("the database has no queue yet")
        for key, condition in conditions.items():
            problem = await _problem(connection, condition)
            if not problem and key in stored:
                problem = await _judge(connection, condition)
            if problem:
                problems[key] = problem
        if problems:
            await _require_schema(connection)
    except pg_errors.LockNotAvailable as error:
        raise Blocked(await asyncio.to_thread(blockers.named, uri, error)) from error
    finally:
        await connection.close()
    return problems


async def _require_schema(connection: LinkConnection) -> None:
    """Raise SchemaMismatch if the schema is of another version, which may be all that is wrong."""
    try:
        cursor = await connection.execute("SELECT name FROM schema_migrations")
    except psycopg.errors.InsufficientPrivilege:
        return
    names = {name for (name,) in await cursor.fetchall()}
    if reason := mismatch(list(migrations()), names):
        raise SchemaMismatch(reason)


async def _problem(connection: LinkConnection, condition: str) -> str | None:
    if not condition.strip():
        return "the condition is empty"
    if "\0" in condition:
        return "a condition can't contain NUL"
    # Planned twice, in brackets of two kinds: an expression that closes one leaves the other open.
    for head, tail in (("SELECT FROM queue WHERE (ARRAY[\n", "\n])[1]"),
                       ("SELECT FROM queue WHERE (\n", "\n)")):  # fmt: skip
        # not by psycopg, because libpq blocks in this call
        text = f"{head}{condition}{tail}".encode()
        result = await asyncio.to_thread(connection.pgconn.prepare, b"", text)
        if result.status != pq.ExecStatus.COMMAND_OK:
            error = pg_errors.error_from_result(result)
            if blockers.limited(error):
                raise error  # the error is not about the text
            at = _position(result) - len(head)
            syntax = _state(result) == pg_errors.SyntaxError.sqlstate
            if not syntax and (fault := _forbidden_words(condition)):
                return fault  # it says more than PostgreSQL's message about a part of the text
            reason = _words(result) + (f", at character {at}" if at > 0 else "")
            if _state(result) == pg_errors.UndefinedTable.sqlstate:
                name = _DOTTED_NAME.match(condition[max(0, at - 1) :])
                reason += f"; a text stands in quotes: '{name[0] if name else 'TEXT'}'"
            return reason + await _near(connection, result, condition[max(0, at - 1) :])
    bare = _QUOTED.sub("''", condition)
    for token, reason in _FORBIDDEN_TOKENS:
        if token in bare:
            return reason
    try:
        return await _inspect(connection, condition)
    except (pg_errors.DataError, pg_errors.ProgrammingError, pg_errors.NotSupportedError) as error:
        return str(error.diag.message_primary)


async def _judge(connection: LinkConnection, condition: str) -> str | None:
    try:
        cursor = await connection.execute("SELECT condition_fault(%s)", [condition])
        ((fault,),) = await cursor.fetchall()
    except pg_errors.UndefinedFunction as error:
        # the schema is an earlier one, which the caller reports
        return str(error.diag.message_primary)
    return str(fault) if fault else None


def _words(result: PGresult) -> str:
    return (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"refused").decode()


def _state(result: PGresult) -> str:
    return (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()


def _without_texts(condition: str) -> str:
    """Return a condition with empty texts; names in double quotes stay."""
    return _QUOTED.sub(lambda each: each[0] if each[0][0] == '"' else "''", condition)


def _forbidden_words(condition: str) -> str | None:
    """Return why a condition can't have a word that it has."""
    without_texts = _without_texts(condition)
    for pattern, reason in _FORBIDDEN_NAMES:
        if re.search(pattern, without_texts, re.IGNORECASE):
            return reason
    return None


def _position(result: PGresult) -> int:
    return int(result.error_field(pq.DiagnosticField.STATEMENT_POSITION) or 0)


async def _near(connection: LinkConnection, result: PGresult, text: str) -> str:
    """Return advice on the column that `text` begins with, if the error is that there is none."""
    name = _COLUMN_NAME.match(text)
    if _state(result) != pg_errors.UndefinedColumn.sqlstate or not name:
        return ""
    cursor = await connection.execute(_COLUMNS)
    return f"; {hint(name[1], [column for (column,) in await cursor.fetchall()])}"


async def _inspect(connection: LinkConnection, condition: str) -> str | None:
    """Look for what a condition that PostgreSQL analyses can't have, and let it be planned."""
    if fault := _forbidden_words(condition):
        return fault
    without_texts = _without_texts(condition)
    names = [name.lower() for name in _CALL.findall(without_texts)]
    volatile = await (await connection.execute(_VOLATILE, [names])).fetchall()
    if volatile:
        return f"function {volatile[0][0]} is volatile, which a condition can't be"
    # the planner evaluates constants such as 1/0, with the rights of the role
    rows = f"SELECT id FROM pgmta.queue WHERE (\n{condition}\n)"  # noqa: S608 - planned only
    await connection.execute(f"EXPLAIN {rows}", prepare=False)
    return None
