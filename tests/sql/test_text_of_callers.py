"""No text that a role hands over runs as anybody else, whatever takes it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import psycopg
import pytest

from pgmta_features.lifecycle.installation import install
from tests.support.rows import column, fetch, message, row

LONG = "e" * 63
"""The longest name that PostgreSQL has: it cuts longer ones to it."""
WIDE = "\u3000" * 21
"""The same of a space that is none for PostgreSQL, but a letter."""

PLACES = ("pg_temp", "public", "outer_space", "queue")
"""Schemas with traps. The last one has the name of the table that conditions are about."""

TRAPS = """
CREATE SEQUENCE {place}.ran;
GRANT USAGE ON SEQUENCE {place}.ran TO PUBLIC;
CREATE FUNCTION {place}.run(text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
    IF current_user <> '{role}' THEN PERFORM nextval('{place}.ran'); END IF;
    RETURN true;
END $$;
CREATE FUNCTION {place}.run(text, text) RETURNS boolean IMMUTABLE LANGUAGE sql
    AS 'SELECT {place}.run($1)';
CREATE FUNCTION {place}.later(text) RETURNS boolean STABLE LANGUAGE sql AS 'SELECT {place}.run($1)';
CREATE FUNCTION {place}.every(VARIADIC text[]) RETURNS boolean IMMUTABLE LANGUAGE sql
    AS 'SELECT {place}.run(''x'')';
CREATE FUNCTION {place}.some(a boolean DEFAULT {place}.run('x')) RETURNS boolean IMMUTABLE
    LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION {place}.any(anyelement) RETURNS anyelement IMMUTABLE LANGUAGE sql
    AS 'SELECT CASE WHEN {place}.run(''x'') THEN $1 END';
CREATE FUNCTION {place}.many(text) RETURNS SETOF boolean LANGUAGE sql AS 'SELECT {place}.run($1)';
CREATE FUNCTION {place}.step(boolean, text) RETURNS boolean IMMUTABLE LANGUAGE sql
    AS 'SELECT {place}.run($2)';
CREATE AGGREGATE {place}.total(text) (SFUNC = {place}.step, STYPE = boolean);
CREATE OPERATOR {place}.~~~ (LEFTARG = text, RIGHTARG = text, FUNCTION = {place}.run);
CREATE OPERATOR {place}.!!! (RIGHTARG = text, FUNCTION = {place}.run);
CREATE DOMAIN {place}.evil AS text CHECK ({place}.run(VALUE));
CREATE DOMAIN {place}.sender AS text CHECK ({place}.run(VALUE));
CREATE DOMAIN {place}.lower AS text CHECK ({place}.run(VALUE));
CREATE DOMAIN {place}.year AS text CHECK ({place}.run(VALUE));
CREATE DOMAIN {place}.text AS pg_catalog.text CHECK ({place}.run(VALUE::pg_catalog.text));
CREATE DOMAIN {place}."od""d" AS {place}.evil;
CREATE TYPE {place}.pair AS (one {place}.evil);
CREATE TYPE {place}.span AS RANGE (SUBTYPE = {place}.evil, MULTIRANGE_TYPE_NAME = {place}.spans);
CREATE FUNCTION {place}.made(text) RETURNS {place}.pair IMMUTABLE LANGUAGE sql
    AS 'SELECT ROW($1)::{place}.pair';
CREATE CAST (text AS {place}.pair) WITH FUNCTION {place}.made(text);
CREATE VIEW {place}.shown AS SELECT {place}.run('x') AS one;
"""
TRAPS += f"""
CREATE TYPE {{place}}.{LONG} AS (one {{place}}.evil);
CREATE TYPE {{place}}.{WIDE} AS (one {{place}}.evil);
"""
"""Everything that can call a function; that one knows when it runs as somebody else."""

TEXTS = [
    "{place}.run('x')",
    "{place}.run(sender)",
    "{place} . \"run\"('x')",
    "{place}.later('x')",
    "{place}.every('x', 'y')",
    "{place}.some()",
    "{place}.any(true)",
    "{place}.many('x')",
    "{place}.total(sender)",
    "'x' OPERATOR({place}.~~~) 'y'",
    "OPERATOR({place}.!!!) 'x'",
    "'x'::{place}.evil IS NULL",
    "'{{a}}'::{place}.evil[] IS NULL",
    "'{{a}}'::{place}.sender[] IS NULL",
    "'{{a}}'::{place}._text IS NULL",
    "{place}.pair '(a)' IS NULL",
    "('x'::text::{place}.pair).one = 'x'",
    "'[a,b]'::{place}.span IS NULL",
    "CAST('{{[a,b]}}' AS {place}.spans) IS NULL",
    '\'{{a}}\'::{place}."od""d"[] IS NULL',
    "EXISTS (SELECT FROM {place}.shown WHERE one)",
    "(VALUES ({place}.run('x'))) IS NOT NULL",
    "query_to_xml('SELECT {place}.run(''x'')', true, true, '') IS NOT NULL",
    "(SELECT word FROM ts_stat('SELECT to_tsvector({place}.run(''x'')::text)')) = ''",
    "ts_rewrite('a', 'SELECT {place}.run(''x'')::text::tsquery, ''b''::tsquery') IS NULL",
    "true) AND ({place}.run('x')",
    "true)\n UNION SELECT {place}.run('x') FROM pgmta.queue WHERE (true",
    "true /* '/* */ OR {place}.run('x') -- '",
    "E'\\'' || '{{a}}'::{place}.evil[]::text || E'\\'' = ''",
    "E'a'\n'\\'' = '' OR '{{a}}'::{place}.evil[] IS NULL OR '' = ''",
    "$x$'$x$ = ''::text OR {place}.run('x') OR $x$'$x$ = ''",
]

BARE = [
    "'{a}'::sender[] IS NULL",
    "'{a}'::lower[] IS NULL",
    "'{a}'::\"year\"[] IS NULL",
    "year '{a}' IS NULL",
    "'{a}'::EVIL[] IS NULL",
    "'{a}'::_evil IS NULL",
    "'{a}'::U&\"\\0065vil\"[] IS NULL",
    "sender 'a' IS NULL",
    "pair '(a)' IS NULL",
    "'{[a,b]}'::spans IS NULL",
    "'(a,b)'::text::pair IS NULL",
    f"'(a)'::{LONG}e =>@ 1",
    f"'(a)'::{LONG}e => 1",
    f"'(a)'::{LONG}e IS NULL",
    f"'(a)'::\"{LONG}e\" IS NULL",
    f"'{{(a)}}'::{LONG}e[] IS NULL",
    f"{LONG}e '(a)' IS NULL",
    f"sender COLLATE {LONG}e = '' OR '(a)'::{LONG}e IS NULL",
    f"'(a)'::{WIDE}\u3000 IS NULL",
    f"{WIDE}\u3000 '(a)' IS NULL",
]
"""The same by names without a schema: those of the temporary types, which are found last."""

CALLS = """
SELECT format('%I.%I', nspname, proname), proargtypes::regtype[]::text[],
    coalesce(proargnames, '{}')
FROM pg_proc JOIN pg_namespace AS n ON n.oid = pronamespace
WHERE nspname IN ('pgmta', 'lifecycle') AND prorettype <> 'trigger'::regtype
    AND prokind IN ('f', 'p') AND has_schema_privilege(n.oid, 'USAGE')
    AND has_function_privilege(pg_proc.oid, 'EXECUTE')
ORDER BY 1
"""

COLUMNS = """
SELECT format('%I.%I', nspname, relname), attname::text, atttypid::regtype::text, relkind = 'v',
    has_column_privilege(c.oid, attnum, 'SELECT'), has_column_privilege(c.oid, attnum, 'INSERT'),
    has_column_privilege(c.oid, attnum, 'UPDATE')
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace
    JOIN pg_attribute ON attrelid = c.oid
WHERE nspname IN ('pgmta', 'lifecycle') AND relkind IN ('r', 'p', 'v') AND NOT relispartition
    AND has_schema_privilege(n.oid, 'USAGE') AND attnum > 0 AND NOT attisdropped
ORDER BY 1, attnum
"""

ATTEMPT = """
CREATE FUNCTION outer_space.attempt(statement text, texts text[]) RETURNS integer LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE each pg_catalog.text; done integer := 0;
BEGIN
    FOREACH each IN ARRAY texts LOOP
        BEGIN
            EXECUTE replace(statement, '{text}', quote_literal(each));
            done := done + 1;
            RAISE EXCEPTION USING ERRCODE = 'PGM99';
        EXCEPTION WHEN OTHERS THEN
        END;
    END LOOP;
    RETURN done;
END $$;
"""
"""Runs a statement with each of the texts, and undoes what it did. Sequences are not undone."""

WORDS = {
    "kind": "'condition'", "action": "'hold'", "log": "'attempts'", "origin": "'operator'",
    "role": "session_user",
}  # fmt: skip
TYPES = {
    "text[]": "ARRAY[{}]",
    "jsonb[]": "ARRAY[jsonb_build_object('reason', {0}, 'condition', {0})]",
    "jsonb": "jsonb_build_object('reason', {0}, 'condition', {0}, 'to', {0}, 'subject', {0})",
    "json": "json_build_object('reason', {0})",
}


def given(name: str, kind: str, text: str | None = None) -> str:
    """SQL of an argument or column of this name and type; `text` is what is tried."""
    if kind in ("text", "name", "character varying"):
        return text or WORDS.get(name, "'x'")
    if kind in TYPES:
        return TYPES[kind].format(text or "'x'")
    if kind.startswith("timestamp"):
        value = "now() + interval '1 day'"
        return f"ARRAY[{value}]" if kind.endswith("[]") else value
    number = {"bigint", "integer", "smallint", "double precision", "real"}
    if kind.removesuffix("[]") in number:
        return f"'{{1}}'::{kind}" if kind.endswith("[]") else f"1::{kind}"
    return "true" if kind == "boolean" else f"NULL::{kind}"


def statements(db: psycopg.Connection) -> Iterator[str]:
    """Every statement by which the role of the session can hand a text over, once per place."""
    takes = {"text", "name", "character varying", *TYPES}
    for function, kinds, names in db.execute(CALLS.encode()).fetchall():
        arguments = list(itertools.zip_longest(names[: len(kinds)], kinds, fillvalue=""))
        for place, (_, wanted) in enumerate(arguments):
            if wanted in takes:
                values = (
                    given(name, kind, "{text}" if place == n else None)
                    for n, (name, kind) in enumerate(arguments)
                )
                yield f"SELECT * FROM {function}({', '.join(values)})"
    found = db.execute(COLUMNS.encode()).fetchall()
    for relation, rows in itertools.groupby(found, key=lambda each: each[0]):
        columns = list(rows)
        for _, name, kind, view, reads, inserts, updates in columns:
            if kind not in takes:
                continue
            value = given(name, kind, "{text}")
            if reads and view:
                yield f'SELECT FROM {relation} WHERE "{name}"::text = {{text}}'
            if updates:
                yield f'UPDATE {relation} SET "{name}" = {value}'
            if inserts:
                into = [(n, k) for _, n, k, _, _, may, _ in columns if may]
                into_names = ", ".join(f'"{n}"' for n, _ in into)
                filled = (given(n, k, "{text}" if n == name else None) for n, k in into)
                yield f"INSERT INTO {relation} ({into_names}) VALUES ({', '.join(filled)})"


@pytest.mark.slow
@pytest.mark.parametrize("role", ["smtpd", "queued", "operator", "reader", "submit", "web"])
def test_no_text_of_a_role_runs_with_the_rights_of_another(
    database: str, db: psycopg.Connection, role: str
) -> None:
    install(database)
    db.execute("CREATE SCHEMA outer_space; CREATE SCHEMA queue")
    db.execute("GRANT ALL ON SCHEMA outer_space, queue, public TO PUBLIC")
    db.execute(ATTEMPT.encode())
    row(db, message(db, 1))
    db.execute("INSERT INTO rules (name, action, condition, reason, origin)"
               " VALUES ('there', 'hold', 'true', 'x', 'operator')")  # fmt: skip
    made = (
        "SELECT md5(string_agg(prosrc || proowner, '' ORDER BY oid)) FROM pg_proc"
        " WHERE pronamespace IN ('pgmta'::regnamespace, 'lifecycle'::regnamespace)"
    )
    before = fetch(db, made)
    db.execute(f"SET SESSION AUTHORIZATION pgmta_{role}; SET search_path = pgmta".encode())
    wanted = list(statements(db))  # before a temporary type hides one of PostgreSQL
    for place in PLACES:
        db.execute(TRAPS.format(place=place, role=f"pgmta_{role}").encode())
    texts = [text.format(place=place) for text in TEXTS for place in PLACES] + BARE
    ran = []
    for statement in wanted:
        db.execute("SELECT outer_space.attempt(%s, %s)", [statement, texts])
        for place in PLACES:
            if column(db, f"SELECT is_called FROM {place}.ran") == [True]:
                ran.append((place, statement))
                db.execute(f"SELECT setval('{place}.ran', 1, false)".encode())
    assert len(wanted) > 5
    assert ran == []
    db.execute("RESET SESSION AUTHORIZATION")
    assert fetch(db, made) == before
    member = "SELECT FROM pg_auth_members WHERE member = %s::regrole"
    assert not db.execute(member, [f"pgmta_{role}"]).fetchall()
