"""Conditions that a role stores see the columns of queue alone."""

from __future__ import annotations

import re

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from pgmta.store.admin.workers import Registry
from pgmta.store.queue.claim import SESSION, Claims
from tests.sql.test_surface import linked
from tests.sql.test_text_of_callers import LONG, WIDE
from tests.support.rows import column, message, row

SECRET = "SELECT private_key FROM pgmta.dkim_keys"

OUTSIDE = [
    f"EXISTS ({SECRET})",
    f"sender = ({SECRET} LIMIT 1)",
    "sender IN (SELECT name FROM pgmta.users)",
    "sender = ANY (ARRAY(SELECT name FROM pgmta.users))",
    "(SELECT count(*) FROM pg_authid) > 0",
    "EXISTS (WITH x AS (SELECT 1) TABLE x)",
    f"(SELECT word FROM ts_stat('{SECRET}') LIMIT 1)::int = 1",
    f"ts_stat('{SECRET}') IS NOT NULL",
    f"ts_rewrite('a'::tsquery, '{SECRET}') IS NOT NULL",
    f"query_to_xml('{SECRET}', true, true, '') IS NOT NULL",
    f"query_to_xmlschema('{SECRET}', true, true, '') IS NOT NULL",
    f"query_to_xml_and_xmlschema('{SECRET}', true, true, '') IS NOT NULL",
    "table_to_xml('pgmta.dkim_keys', true, true, '') IS NOT NULL",
    "table_to_xmlschema('pgmta.dkim_keys', true, true, '') IS NOT NULL",
    "schema_to_xml('pgmta', true, true, '')::text = ''",
    "database_to_xml(true, true, '')::text = ''",
    "cursor_to_xml('c', 1, true, true, '')::text = ''",
    "xpath('/a', query_to_xml('SELECT 1', true, true, ''))::text = ''",
    "xmlelement(name a, sender)::text = ''",
    "xmlparse(document metadata->>'x')::text = ''",
    "metadata->>'x' = xmlserialize(content '<a/>' AS text)",
    "lo_import('/etc/passwd') > 0",
    "lo_export(1, '/tmp/x') > 0",
    "lo_get(1) IS NULL",
    "lo_creat(1) > 0",
    "lo_from_bytea(0, 'x') > 0",
    "pg_read_file('/etc/passwd') = ''",
    "pg_read_binary_file('/etc/passwd') = ''",
    "pg_ls_dir('/') = 'etc'",
    "pg_stat_file('/etc/passwd') IS NULL",
    "pg_relation_filepath('queue') = ''",
    "set_config('search_path', 'evil', false) = ''",
    "current_setting('data_directory') = ''",
    "nextval('pgmta.message_ids') > 0",
    "currval('pgmta.message_ids') > 0",
    "setval('pgmta.message_ids', 1) > 0",
    "pg_notify('x', sender) IS NULL",
    "pg_terminate_backend(1)",
    "pg_sleep(1) IS NULL",
    "pg_advisory_lock(1) IS NULL",
    "pg_get_viewdef('pgmta.queue_overview'::regclass) = ''",
    "pg_stat_get_backend_activity(1) = ''",
    "pg_has_role('pg_monitor', 'MEMBER')",
    "has_table_privilege('pgmta.dkim_keys', 'SELECT')",
    "pg_input_is_valid('x', 'regclass') AND pg_column_size(sender) > 0",
    "'pgmta.dkim_keys'::regclass = 1",
    "sender::regclass = 'x'::regclass",
    "(sender || '')::text::regrole IS NULL",
    "to_regclass(sender) IS NULL",
    "ctid IS NULL",
    "queue IS NULL",
    "queue::text = ''",
    "queue.sender = ''",
    "(queue).sender = ''",
    "pgmta.queue.sender = ''",
    "row_to_json(queue)::text = ''",
    "outer_space.spy(sender)",
    "outer_space.quiet(sender)",
    "public.own(sender)",
    "sender OPERATOR(outer_space.~~~) 'x'",
    "sender::outer_space.checked = 'x'",
    "CAST(sender AS outer_space.checked) = ''",
    "sender::outer_space.mood IS NULL",
    "metadata->>'x' = 'sad'::outer_space.mood::text",
    "pgmta.sees_all_mail()",
    "pgmta.queue_delete('true', 'x') > 0",
    "pgmta.condition_path() = ''",
    "inet_server_addr() IS NULL",
    "txid_current() > 0",
    "random() < 0.5",
    "dblink('host=x', 'SELECT 1') IS NULL",
    "count(*) > 1",
    "row_number() OVER () > 1",
    "generate_series(1, 2) = 1",
    "true; DROP TABLE pgmta.traces",
    "true); DROP TABLE pgmta.traces; SELECT (true",
    "true) UNION SELECT 1 FROM pgmta.dkim_keys WHERE (true",
]

INSIDE = [
    "true",
    "domain = E'it\\'s' AND sender LIKE '%--; $1 U&\"x\" a.b' AND priority > 1.5",
    "priority = 1.e0 OR pg_catalog.length(recipient) > .5 OR \"sender\" = ''\n",
    "CAST(sender AS pg_catalog.varchar(9)) = '' OR ts > timestamp with time zone '2026-01-01'",
    "now() - ts > make_interval(0, 0, 0, 3) AND 'x@y' = ANY (exempt_from[1:2])",
    "interval '1' day * 2 > now() - ts",
    "sender_domain = 'x.example' AND NOT recipient ILIKE '%@y.example'",
    "metadata->>'_partid' IN ('1', '2') OR metadata ? 'x' OR metadata @> '{\"a\": 1}'",
    "CASE WHEN metadata->>'n' ~ '^[0-9]{1,9}$' THEN (metadata->>'n')::int > 3 ELSE false END",
    "ts < now() - interval '1 day' AND extract(hour FROM ts AT TIME ZONE 'UTC') BETWEEN 1 AND 5",
    "date_trunc('day', ts) = current_date AND to_char(ts, 'YYYY') = '2026'",
    "coalesce(last_reply, '') LIKE '4%' AND nullif(attempts, 2) IS DISTINCT FROM 3",
    "greatest(attempts, 2) = ANY (ARRAY[2, 3]) AND (attempts, priority) = (2, 5)",
    "lower(recipient) SIMILAR TO '%x' AND split_part(sender, '@', 2) <> '' AND length(sender) > 3",
    "jsonb_path_exists(metadata, '$.a[*] ? (@ > 2)') AND jsonb_typeof(metadata->'a') = 'array'",
    "regexp_replace(sender, '\\+.*@', '@') COLLATE \"C\" < 'b' AND md5(sender) <> format('%s', id)",
    "queue_malformed(sender, recipient, domain) AND hashtext(domain) % 2 = 0",
    "concat(sender, id) <> '{SUBLINK' AND (metadata->>'ip')::inet <<= '10.0.0.0/8'",
    "to_tsvector(coalesce(last_reply, '')) @@ to_tsquery('spam')",
]

TRAPS = """
CREATE SCHEMA outer_space;
CREATE FUNCTION outer_space.spy(text) RETURNS boolean STABLE LANGUAGE sql
    AS $$ SELECT EXISTS (SELECT FROM pgmta.dkim_keys) $$;
CREATE FUNCTION outer_space.quiet(text) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION public.own(text) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION outer_space.match(text, text) RETURNS boolean IMMUTABLE LANGUAGE sql
    AS 'SELECT true';
CREATE OPERATOR outer_space.~~~ (LEFTARG = text, RIGHTARG = text, FUNCTION = outer_space.match);
CREATE DOMAIN outer_space.checked AS text CHECK (outer_space.spy(VALUE));
CREATE TYPE outer_space.mood AS ENUM ('sad');
CREATE FUNCTION outer_space.feel(text) RETURNS outer_space.mood IMMUTABLE LANGUAGE sql
    AS $$ SELECT 'sad'::outer_space.mood $$;
CREATE CAST (text AS outer_space.mood) WITH FUNCTION outer_space.feel(text);
GRANT USAGE ON SCHEMA outer_space TO PUBLIC;
"""  # fmt: skip

ADD = "INSERT INTO rules (name, action, condition, reason, origin) VALUES (%s, 'hold', %s, '', %s)"


@pytest.fixture
def trapped(db: psycopg.Connection) -> psycopg.Connection:
    """A database with a row, and objects of another schema that every role may use."""
    db.execute(TRAPS.encode())
    row(db, message(db, 1), metadata={"n": "secret"})
    return db


@pytest.mark.parametrize("role", ["pgmta_operator", "pgmta_queued", None])
def test_no_role_stores_a_condition_that_reaches_outside(
    trapped: psycopg.Connection, role: str | None
) -> None:
    db = trapped
    before = column(db, "SELECT last_value FROM message_ids")
    origin = "operator" if role == "pgmta_operator" else "worker"
    if role:
        db.execute(f"SET ROLE {role}".encode())
    for number, condition in enumerate(INSIDE):
        db.execute(ADD, (f"in{number}", condition, origin))
    for number, condition in enumerate(OUTSIDE):
        for statement, values in (
            (ADD, (f"out{number}", condition, origin)),
            ("UPDATE rules SET condition = %s WHERE name = 'in0'", (condition,)),
            ("SELECT queue_suspend('condition', %s, 'r')", (condition,)),
        ):
            try:
                with db.transaction():
                    db.execute(statement, values)
            except psycopg.Error:
                continue
            pytest.fail(f"{role} stores: {condition}")
    assert len(column(db, "SELECT name FROM rules")) == len(INSIDE)
    db.execute("RESET ROLE")
    assert column(db, "SELECT count(*) FROM suspensions") == [0]
    assert column(db, "SELECT last_value FROM message_ids") == before, "nothing is evaluated"


def test_a_name_that_is_allowed_has_no_harmful_namesake(db: psycopg.Connection) -> None:
    """The judge knows names: other functions of them, operators and casts see no more."""
    db.execute("CREATE TEMPORARY VIEW callable AS SELECT *, condition_may_call(oid) AS may"
               " FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace")  # fmt: skip
    assert not db.execute("""
        SELECT oid::regprocedure FROM callable WHERE NOT may
            AND (provolatile = 'v' OR prokind <> 'f' OR proretset OR prosecdef)
            AND proname IN (SELECT proname FROM callable WHERE may)
    """).fetchall()
    assert {name for (name,) in db.execute("""
        SELECT DISTINCT proname FROM callable WHERE NOT may
            AND proname IN (SELECT proname FROM callable WHERE may)
    """)} == {"in_range", "json_to_tsvector", "jsonb_to_tsvector", "length", "numeric",
              "ts_headline"}  # fmt: skip
    # times with and without a zone compare by the setting; the name of pg_lsn is refused
    assert {
        name
        for (name,) in db.execute("""
        SELECT DISTINCT oprleft::regtype::text FROM pg_operator
        JOIN callable ON callable.oid = oprcode WHERE NOT may
    """)
    } == {"timestamp without time zone", "timestamp with time zone", "pg_lsn"}
    assert not db.execute("""
        SELECT proname FROM pg_proc WHERE pronamespace = 'pgmta'::regnamespace
            AND proname IN (SELECT proname FROM callable)
    """).fetchall()


CODE = """
CREATE SEQUENCE {place}.ran;
CREATE FUNCTION {place}.run(text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
    PERFORM nextval('{place}.ran');
    RETURN true;
END $$;
CREATE DOMAIN {place}.evil AS text CHECK ({place}.run(VALUE));
CREATE TYPE {place}.row AS (one {place}.evil);
CREATE TYPE {place}.span AS RANGE (SUBTYPE = {place}.evil, MULTIRANGE_TYPE_NAME = {place}.spans);
CREATE DOMAIN {place}."od""d" AS {place}.evil;
"""
"""Types whose literals run a function when PostgreSQL analyses a statement."""
CODE += f"""
CREATE TYPE {{place}}.{LONG} AS (one {{place}}.evil);
CREATE TYPE {{place}}.{WIDE} AS (one {{place}}.evil);
CREATE DOMAIN {{place}}.collate AS {{place}}.evil;
"""

SLIPS = [
    f"'(a)'::{LONG} IS NULL",
    f"'(a)'::{LONG}e IS NULL",
    f"'(a)'::{LONG.upper()}E IS NULL",
    f"'(a)'::\"{LONG}e\" IS NULL",
    f"'{{(a)}}'::{LONG}e[] IS NULL",
    f"'{{(a)}}'::_{LONG} IS NULL",
    f"{LONG}e '(a)' IS NULL",
    f"CAST('(a)' AS {LONG}e) IS NULL",
    f"'(a)'::{WIDE} IS NULL",
    f"'(a)'::{WIDE}\u3000 IS NULL",
    f"{WIDE}\u3000 '(a)' IS NULL",
    "'(a)'::\"collate\" IS NULL",
    "\"collate\" '(a)' IS NULL",
    "'(a)'::\"year\" IS NULL",
    "'(a)'::sender IS NULL",
    "'(a)'::\u0131d IS NULL",
]
"""Names of types that a judge may read in another way than PostgreSQL."""

LITERALS = [
    "'{{a}}'::{place}.evil[] IS NULL",
    "CAST('{{a}}' AS {place}._evil) IS NULL",
    "{place}.row '(a)' IS NULL",
    "'[a,b]'::{place}.span IS NULL",
    "'{{[a,b]}}'::{place}.spans IS NULL",
    '\'{{a}}\'::{place}."od""d"[] IS NULL',
    "'{{a}}'::{quoted}.\"evil\"[] IS NULL",
    "'{{a}}'::{quoted} /* x */ . evil[] IS NULL",
    '\'{{a}}\'::U&"{place}".U&"\\0065vil"[] IS NULL',
    "'{{a}}'::evil[] IS NULL",
    "'{{a}}'::EVIL[] IS NULL",
    '\'{{a}}\'::"od""d"[] IS NULL',
    "'{{a}}'::U&\"\\0065vil\"[] IS NULL",
    "'{{a}}'::U&\"!0065vil\" UESCAPE '!'[] IS NULL",
    "E'\\'' || '{{a}}'::evil[]::text || E'\\'' IS NULL",
    "$x$'$x$ = '{{a}}'::evil[]::text OR $x$'$x$ = ''",
    f"'(a)'::{LONG}e =>@ 1",
    f"'(a)'::{LONG}e => 1",
    f"sender COLLATE {LONG}e = '' OR '(a)'::{LONG}e IS NULL",
    "'{{a}}'::\"collate\"[] IS NULL",
    *(text.replace("{", "{{").replace("}", "}}") for text in SLIPS),
]


@pytest.mark.parametrize("role", ["pgmta_operator", "pgmta_reader"])
@pytest.mark.parametrize("place", ["pg_temp", "outer_space", "public"])
def test_the_judge_runs_no_code_of_a_role(
    trapped: psycopg.Connection, role: str, place: str
) -> None:
    db = trapped
    db.execute("GRANT CREATE ON SCHEMA outer_space, public TO PUBLIC")
    db.execute(f"SET ROLE {role}".encode())
    db.execute(CODE.format(place=place).encode())
    found = []
    for text in LITERALS:
        condition = text.format(place=place, quoted=f'"{place}"')
        (fault,) = column(db, "SELECT condition_fault(%s)", condition)
        if role == "pgmta_operator":
            with pytest.raises(psycopg.Error), db.transaction():
                db.execute(ADD, ("evil", condition, "operator"))
        if not fault or column(db, f"SELECT is_called FROM {place}.ran") == [True]:
            found.append(condition)
            db.execute(f"ALTER SEQUENCE {place}.ran RESTART".encode())
    assert found == []


def slips(db: psycopg.Connection) -> list[str]:
    """Return what the judge passes of SLIPS, though PostgreSQL finds a type of the session."""
    for name in (LONG, WIDE, '"collate"', "year", "sender", "\u0131d"):
        db.execute(f"CREATE TYPE pg_temp.{name} AS (one text)".encode())
    passed = []
    for condition in SLIPS:
        db.execute("SELECT pgmta.condition_analyse(%s, 'pg_catalog, pgmta, pg_temp')", [condition])
        if column(db, "SELECT pgmta.condition_fault(%s)", condition) == [None]:
            passed.append(condition)
    return passed


def test_a_name_that_postgresql_reads_in_another_way_is_refused(db: psycopg.Connection) -> None:
    assert slips(db) == []


HARMLESS = [
    "CREATE TEMPORARY TABLE x (a text, b jsonb[], c timestamptz, d mood, e moods)",
    "CREATE TEMPORARY VIEW x AS SELECT id, ts FROM pgmta.queue",
]
HARMFUL = [
    "CREATE DOMAIN pg_temp.x AS text CHECK (run(VALUE))",
    "CREATE DOMAIN pg_temp.x AS evil",
    "CREATE DOMAIN pg_temp.x AS text[] CHECK (run(VALUE[1]))",
    "CREATE TYPE pg_temp.x AS (one evil)",
    "CREATE TYPE pg_temp.x AS (one evil[])",
    "CREATE TYPE pg_temp.x AS (one evils)",
    "CREATE TYPE pg_temp.x AS (one inner_row)",
    "CREATE TYPE pg_temp.x AS RANGE (SUBTYPE = evil)",
    "CREATE TEMPORARY TABLE x (one evil)",
    "CREATE TEMPORARY VIEW x AS SELECT 'a'::evil AS one",
]


def test_no_session_with_types_that_run_code_is_served(db: psycopg.Connection) -> None:
    """Whatever the names: PostgreSQL finds temporary types in each search_path."""
    db.execute("""
        CREATE SCHEMA outer_space; SET search_path = outer_space, pgmta;
        CREATE FUNCTION run(text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
        CREATE DOMAIN evil AS text CHECK (run(VALUE));
        CREATE DOMAIN evils AS text[] CHECK (run(VALUE[1]));
        CREATE TYPE inner_row AS (one evil);
        CREATE TYPE mood AS ENUM ('sad'); CREATE TYPE moods AS ENUM ('sad');
    """)
    for kind in HARMLESS + HARMFUL:
        with db.transaction(force_rollback=True):
            db.execute(kind.encode())
            fault = column(db, "SELECT condition_fault('attempts = 0')")
        assert (fault == [None]) == (kind in HARMLESS), kind


def test_no_setting_of_a_session_blinds_the_judge(trapped: psycopg.Connection) -> None:
    trapped.execute("SET ROLE pgmta_operator")
    leak = f"query_to_xml('{SECRET}', true, true, '') IS NOT NULL"
    for condition in ("sender = (SELECT '')", "true"):  # the first plans a part of the function
        assert column(trapped, "SELECT condition_fault(%s) IS NULL", condition) == [
            condition == "true"
        ]
        trapped.execute("SET standard_conforming_strings = off")
        assert column(trapped, "SELECT condition_fault(%s)", leak) == [
            "function query_to_xml is not allowed in a condition"
        ]
        trapped.execute("RESET standard_conforming_strings")


async def test_a_rule_is_judged_again_when_it_is_read(
    trapped: psycopg.Connection, database: str
) -> None:
    trapped.execute("ALTER TABLE rules DISABLE TRIGGER rules_valid")
    leak = f"(xpath('//text()', query_to_xml('{SECRET}', true, true, '')))[1]::text::int > 0"
    for name, condition in (("old", leak), ("good", "domain = 'held.example'")):
        trapped.execute(ADD, (name, condition, "operator"))
    held = row(trapped, 1, domain="held.example")
    async with linked(database, role="pgmta_queued", **SESSION) as link:
        with capture_logs() as logs:
            items = (await Claims(link, "w", 60).claim(9, [])).items
        assert held not in {item.id for item in items}
        assert len(items) == 1
        (told,) = [log for log in logs if log["event"] == "a standing rule is passed over"]
        assert (told["condition"], told["reason"]) == (
            "rule old",
            "function query_to_xml is not allowed in a condition",
        )
        assert [rule.name for rule in await Registry(link, "h:1").operator_rules()] == ["good"]
    assert column(trapped, "SELECT faults FROM queue WHERE faults IS NOT NULL") == []


def test_a_fault_has_no_value_of_the_row(trapped: psycopg.Connection) -> None:
    found = trapped.execute(
        "SELECT error FROM queue_test('(metadata->>''n'')::int > 1', ARRAY(SELECT id FROM queue))"
    ).fetchall()
    assert found == [("SQLSTATE 22P02 (no value of that type)",)]


def test_a_rule_with_a_domain_in_capitals_is_told(db: psycopg.Connection) -> None:
    told: list[str] = []
    db.add_notice_handler(lambda diag: told.append(str(diag.message_primary)))
    for number, (condition, hint) in enumerate(
        {
            "domain = 'Bad.Test'": "domain is in lower case, so 'Bad.Test' never matches",
            "domain IN ('a.test', 'B.test')": "domain is in lower case, so 'B.test' never matches",
            "domain LIKE '%.Test'": "domain is in lower case, so '%.Test' never matches",
        }.items()
    ):
        db.execute(ADD, (f"r{number}", condition, "operator"))
        assert told.pop() == hint
    db.execute(
        ADD, ("good", "domain ILIKE 'Bad%' OR domain = 'x' OR recipient = 'A@b'", "operator")
    )
    assert told == []


NAMED = st.sampled_from(
    [
        "sender",
        "metadata",
        "lower",
        "pg_catalog.lower",
        '"lower"',
        "text",
        "pg_catalog.text",
        "year",
        "jsonb",
        "sad",
        "queue",
        "queue.sad",
        "queue.sender",
        "outer_space.checked",
        "outer_space.spy",
        "outer_space.quiet",
        "regclass",
        "public.own",
        "now",
        "count",
        "ctid",
        "U&",
        LONG,
        f"{LONG}e",
        f'"{LONG}e"',
        f"_{LONG}",
        WIDE,
        f"{WIDE}\u3000",
        f"sender{WIDE}",
        "\u017fender",
        '"year"',
        '"collate"',
    ]
)
SPACES = st.sampled_from(
    [" ", "", "\t", "\n", "\f", "\v", "\u3000", "\xa0", "\u2028", "\x1c", "\ufeff"]
)
VALUES = ["'a'", "''", "'it''s'", "E'\\''", "E'\\\\'", "'\\'", "1.5e1", ".5", "'{a}'", "'a'\n'b'",
          "E'a'\n'\\''", "$x$'$x$", "N'a'", "null", "true", "'(a)'", "1e", "1e'a'", "$1",
          ]  # fmt: skip
OPERATORS = st.sampled_from(
    ["=", "||", "->>", "~~~", "OR", "AND", "COLLATE", "LIKE", ",", "-- ", "=>", "=>@", "<=>", "@>",
     "?", "OPERATOR(pg_catalog.=)", "OPERATOR(outer_space.~~~)", "AT TIME ZONE", "::"]
)  # fmt: skip
EXPRESSIONS = st.recursive(
    NAMED | st.sampled_from(VALUES),
    lambda inner: st.one_of(
        st.builds("{}({})".format, NAMED, inner),
        st.builds("({})::{}{}".format, inner, NAMED, st.sampled_from(["", "[]"])),
        st.builds("{}{}{}".format, NAMED, SPACES, st.sampled_from(VALUES)),
        st.builds("{}{}::{}{}".format, st.sampled_from(VALUES), SPACES, SPACES, NAMED),
        st.builds(
            "{}{}{}{}{}".format,
            inner,
            SPACES,
            OPERATORS,
            SPACES,
            inner,
        ),
        st.builds("CASE WHEN {} THEN {} END".format, inner, inner),
        st.builds("({})".format, inner),
        st.builds("(SELECT {})".format, inner),
        st.builds("ARRAY[{}]".format, inner),
        st.builds("{} IS NULL".format, inner),
    ),
    max_leaves=8,
)
TREE = "SELECT ev_action::text FROM pg_rewrite WHERE ev_class = 'pg_temp.tried'::regclass"
OF_TREE = r"""
SELECT 'function ' || proname
FROM regexp_matches(%(tree)s, ':(?:funcid|opfuncid) (\d+)', 'g') AS hit
    JOIN pg_proc ON oid = hit[1]::oid
WHERE NOT condition_may_call(oid)
    AND proname NOT IN ('queue_malformed', 'queue_sender_domain', 'length')
UNION ALL SELECT 'type ' || typname
FROM regexp_matches(%(tree)s, ':(?:consttype|\w*resulttype|\w+_typeid) (\d+)', 'g') AS hit
    JOIN pg_type ON oid = hit[1]::oid
WHERE typnamespace <> 'pg_catalog'::regnamespace OR typname ~ '^_?(reg|pg_)'
"""


@pytest.mark.slow
def test_what_the_judge_passes_has_a_harmless_tree(trapped: psycopg.Connection) -> None:
    """PostgreSQL's own tree of the condition is the witness."""
    db = trapped
    db.execute("CREATE SCHEMA queue; CREATE DOMAIN queue.sender AS text; SET search_path = pgmta")
    db.execute("CREATE TYPE queue.sad AS ENUM ('a')")
    for name in (LONG, WIDE, "year", '"collate"', "sender"):  # harmless, or nothing is judged
        db.execute(f"CREATE TYPE pg_temp.{name} AS (one text)".encode())
    passed = []

    @settings(max_examples=2000)
    @given(EXPRESSIONS)
    def judge(expression: str) -> None:
        condition = f"{expression} IS NULL"  # of any type
        if column(db, "SELECT condition_fault(%s)", condition) != [None]:
            return
        passed.append(condition)
        with db.transaction(force_rollback=True):
            made = f"CREATE TEMP VIEW tried AS SELECT FROM queue WHERE (\n{condition}\n)"
            db.execute(made.encode())
            (tree,) = column(db, TREE)
            assert not re.search(r"\{SUBLINK|:varattno (-|0)", tree), condition
            assert db.execute(OF_TREE.encode(), {"tree": tree}).fetchall() == [], condition

    judge()
    assert len(passed) > 20
