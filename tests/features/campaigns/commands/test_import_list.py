"""`queuectl campaign import`: all that fits, each bad line by its number, or nothing."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.features.campaigns.commands.site import Site
from tests.sql.test_roles import acting
from tests.support.rows import column

HEAD = "recipient,name,city\n"


def problems(path: Path) -> dict[int, str]:
    with path.open(encoding="utf-8", newline="") as file:
        return {int(row["line"]): row["problem"] for row in csv.DictReader(file)}


def test_lists_as_programs_write_them(site: Site) -> None:
    """With a BOM, CR LF, other columns in any order, blanks, quoted line ends, no last line end."""
    text = (
        "\ufeffcity,age,recipient,name\r\n"
        '"Köln, ""Süd""",4, ann@x.example ,"Ann\r\nMüller"\r\n'
        "\r\nKiel,,Böb@MÜLLER.example,Bob"
    )
    found = site.imported(text, "--errors", str(site.folder / "bad.csv"), code=1)
    assert found == {"rows": 2, "imported": 1, "suppressed": 0, "bad": 1, "duplicates": 0}
    # the subject takes no line end
    assert problems(site.folder / "bad.csv") == {
        2: "name has a line end; the row goes on to line 3"
    }
    assert site.recipients() == ["Böb@xn--mller-kva.example"]
    found = site.imported("name;recipient;city\nÄnn;a@x.example;\n")
    assert found["imported"] == 1
    assert site.imported("mail,name,city\nb@x.example,B,K\n", "--column", "mail")["imported"] == 1
    assert column(site.db, "SELECT params FROM campaign_recipients ORDER BY number") == [
        {"name": "Bob", "city": "Kiel"}, {"name": "Änn", "city": ""}, {"name": "B", "city": "K"},
    ]  # fmt: skip
    assert column(site.db, "SELECT domain FROM campaign_recipients ORDER BY number")[0] == (
        "xn--mller-kva.example"
    )


def test_bad_lines_and_duplicates_are_named_and_the_rest_goes_on(site: Site) -> None:
    text = HEAD + (
        "a@x.example,A,K\n"  # 2
        "no-address,B,K\n"
        "c@x.example,C\n"
        'A@X.example,again,K\n"""a""@x.example",quoted,K\n'  # 5, 6
        'd@x.example,"D"D,K\n'
        "e@x.example,E\0,K\n"
        f"f@x.example,F,{'x' * (1 << 20)}\n"
        f"g@x.example,G,{'ä' * 40_000}\n"  # 10
        f"h@x.example,{'n' * 999},K\n"
        'i@x.example,"open,K\n'
        "j@x.example,J,K\n"
    )
    content = text.encode() + b"k@x.example,\xff,K\nl@x.example,L,\xc3\xa9\n"
    found = site.imported(content, "--errors", str(site.folder / "bad.csv"), code=1)
    assert found == {"rows": 14, "imported": 3, "suppressed": 0, "bad": 9, "duplicates": 2}
    assert site.recipients() == ["a@x.example", "j@x.example", "l@x.example"]
    named = problems(site.folder / "bad.csv")
    assert named == {
        3: "no domain in 'no-address'", 4: "it has 2 cells, and there are 3 columns",
        5: "'A@X.example': it is already in line 2",
        6: "'\"a\"@x.example': it is already in line 2",
        7: "there is text behind the quote that ends a cell",
        8: "name has NUL",
        9: "a cell is over 65536 characters, or a quote has no end",
        10: "the words are over 65536 octets", 11: "name is over 998 characters",
        12: "a quote has no end", 14: "name has the octet 0xFF, which is not in UTF-8",
    }  # fmt: skip
    # a second list goes on behind the first
    more = site.run("import", "news", site.file(HEAD + "m@x.example,M,K\nJ@x.example,,\n,,\n"))
    assert more.exit_code == 1
    assert more.stderr.splitlines() == [
        "list.csv:4: no domain in ''", "list.csv:3: 'J@x.example': the campaign has it already",
    ]  # fmt: skip
    assert "imported 1 recipients into news, 0 of them suppressed" in more.stdout
    assert site.recipients()[3:] == ["m@x.example"]
    assert site.books() == (4, 4, 2)


def test_what_is_suppressed_is_imported_as_invalid(site: Site, db: psycopg.Connection) -> None:
    db.execute(
        "INSERT INTO suppressions (address, scope, reason) VALUES ('a@x.example', '', 'bounced'),"
        " ('b@x.example', 'other', 'unsubscribed')"
    )
    found = site.imported(HEAD + "A@x.example,A,\nb@x.example,B,\n")
    assert (found["imported"], found["suppressed"]) == (2, 1)
    rows = db.execute(
        "SELECT recipient, state, error_code FROM campaign_recipients ORDER BY number"
    )
    assert rows.fetchall() == [
        ("A@x.example", "invalid", "suppressed"), ("b@x.example", "unsent", None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "list.csv: it is empty"),
        ("\n\n", "list.csv: it is empty"),
        ("\ufeff", "list.csv: it is empty"),
        (
            "Recipients,name,city\na@x.example,,\n",
            "no column recipient; did you mean 'Recipients'? Give --column recipient=Recipients",
        ),
        ("a@x.example,A,B\n", "there is no column recipient; it has 'a@x.example', 'A', 'B'"),
        ("recipient,name,plaza\na@x.example,,\n", "no column city; it has"),
        ("recipient,name,name,city\na@x.example,,,\n", "several columns 'name'"),
        ("recipient,Name,NAME,city\na@x.example,,,\n", "several columns 'Name' and 'NAME'"),
        ("a,b;recipient\n", "comma and semicolon make 2 columns each; --separator says which"),
        ("sep=|\nrecipient|name|city\n", "list.csv:1: '|' separates no cells here"),
        ('recipient,name,"city\na@x.example,,\n', "list.csv:1: a quote has no end"),
        (
            HEAD.encode("utf-16-le"),
            "it has NUL; it seems to be UTF-16 without a BOM: --encoding utf-16-le",
        ),
        (HEAD.encode("utf-16-be"), "--encoding utf-16-be"),
        (HEAD.encode("utf-32"), "list.csv:1: it has NUL; --encoding names another one"),
        (
            b"recipient,name,city\x81\n",
            "list.csv:1: it has the octet 0x81, which is not in windows-1252",
        ),
        (
            (HEAD + "a@x.example,,\n").encode("utf-16") + b"x",
            "list.csv:3: it ends with half of a unit of UTF-16, the octet 0x78",
        ),
    ],
)
def test_a_list_that_does_not_fit_the_template_is_refused(
    site: Site, content: str | bytes, reason: str
) -> None:
    assert reason in site.refused(content)


def test_a_list_without_a_recipient_is_refused(site: Site) -> None:
    assert "no recipient is left of 0: nothing was imported" in site.refused(HEAD, code=1)
    assert "no recipient is left of 1" in site.refused(HEAD + "a,b,c\n", code=1)
    assert "No such file" in site.run("import", "news", "nowhere.csv").stderr
    assert "there is no campaign new; did you mean news?" in site.run("import", "new", "x").stderr
    assert "either FILE or --sql" in site.run("import", "news").stderr
    assert site.books() == (0, 0, 0)


def test_a_template_with_an_unclosed_brace_is_refused(site: Site) -> None:
    site.db.execute(
        "INSERT INTO templates (name, version, sender, from_field, subject, body, words)"
        " VALUES ('broken', 1, '', 'a@x.example', 'Hello', E'Dear\\n{{name', '{}')"
    )
    made = site.run("create", "other", "--template", "broken", "--credential", "c")
    assert made.exit_code == 2
    assert "template broken version 1: body, line 2: {{ begins a word, and no }}" in made.stderr
    assert column(site.db, "SELECT name FROM campaigns") == ["news"]
    site.db.execute("SELECT campaign_create('other', 'c', 'broken')")
    found = site.run("import", "other", site.file(HEAD + "a@x.example,A,K\n"))
    assert found.exit_code == 2
    assert "body, line 2: {{ begins a word" in found.stderr
    assert site.books() == (0, 0, 0)


def test_a_hundred_thousand_columns(site: Site) -> None:
    names = [f"c{n}" for n in range(100_000)]
    wide = ",".join(["recipient", *names, "name", "city"])
    row = ",".join(["a@x.example", *names, "Ann", "Kiel"])
    assert site.imported(f"{wide}\n{row}\n")["imported"] == 1
    assert site.recipients() == ["a@x.example"]
    assert "no column name" in site.refused(",".join(["recipient", *names]) + "\na@x.example\n")


def test_an_import_that_loses_its_campaign_leaves_nothing(site: Site) -> None:
    query = "SELECT 'a@x.example' AS recipient, '' AS name, campaign_delete(id)::text AS city"
    found = site.run("import", "news", "--sql", f"{query} FROM campaigns")
    assert found.exit_code == 1
    assert "read-only transaction" in found.stderr
    site.db.execute("SELECT campaign_delete(id) FROM campaigns")
    assert site.run("import", "news", site.file(HEAD + "a@x.example,,\n")).exit_code == 1


def test_an_import_without_the_right_to_temporary_tables_names_it(
    site: Site, db: psycopg.Connection
) -> None:
    db.execute(f"REVOKE TEMPORARY ON DATABASE {db.info.dbname} FROM PUBLIC".encode())
    uri = make_conninfo(site.uri, options="-c role=pgmta_operator")
    site.configure({"environment": {"database": {"uri": uri}}})
    told = site.refused(HEAD + "a@x.example,,\n", code=1)
    assert f"GRANT TEMPORARY ON DATABASE {db.info.dbname} TO pgmta_operator;" in told


def test_the_rows_of_a_query(site: Site, database: str, db: psycopg.Connection) -> None:
    db.execute("CREATE TABLE public.customers (recipient text, name text, city text, age int)")
    db.execute(
        "INSERT INTO public.customers VALUES ('a@x.example', 'A', NULL, 1), (NULL, 'B', '', 2),"
        " ('b@x.example', E'\"B\\\\,', E'K\\n\\t', 3), ('A@x.example', '', '', 4)"
    )
    query = "SELECT * FROM public.customers ORDER BY age -- all of them;"
    found = site.run("import", "news", "--sql", query)
    assert found.exit_code == 1
    assert found.stderr.splitlines() == [
        "row:2: no domain in ''", "row:4: 'A@x.example': it is already in line 1",
    ]  # fmt: skip
    assert column(db, "SELECT params FROM campaign_recipients ORDER BY number") == [
        {"name": "A", "city": ""}, {"name": '"B\\,', "city": "K\n\t"},
    ]  # fmt: skip
    # by another login, which has no right of pgmta
    db.execute("DROP ROLE IF EXISTS clist_shop")
    db.execute("CREATE ROLE clist_shop")
    db.execute("GRANT SELECT ON public.customers TO clist_shop")
    try:
        source = acting(database, "clist_shop")
        db.execute("UPDATE public.customers SET recipient = 'c@x.example' WHERE age = 1")
        words = ["import", "news", "--source", source, "--sql"]
        assert site.run(*words, "SELECT * FROM public.customers WHERE age = 1;").exit_code == 0
        assert "permission denied" in site.run(*words, "SELECT * FROM pgmta.campaigns").stderr
    finally:
        db.execute("DROP OWNED BY clist_shop")
        db.execute("DROP ROLE clist_shop")
    assert site.recipients() == ["a@x.example", "b@x.example", "c@x.example"]


@pytest.mark.parametrize(
    ("query", "code", "reason"),
    [
        ("SELECT 1; DROP TABLE public.kept", 2, "multiple commands"),
        ("SELECT 1) TO STDOUT; DROP TABLE public.kept; --", 2, "syntax error"),
        ("DELETE FROM public.kept RETURNING recipient, '' AS name, '' AS city", 2, "read-only"),
        ("VACUUM", 2, "it is no query with columns"),
        ("", 2, "it is no query with columns"),
        ("SELECT * FROM nowhere", 2, "does not exist"),
        ("SELECT recipient FROM public.kept", 2, "row: there is no column city"),
        (
            "SELECT recipient, '' AS name, (1 / (length(recipient) - 11)) AS city FROM public.kept",
            1,
            "division by zero",
        ),
        ("SELECT recipient, '' AS name, '' AS city FROM public.kept WHERE false", 1, "nothing was"),
    ],
)
def test_queries_that_are_refused(site: Site, query: str, code: int, reason: str) -> None:
    site.db.execute("CREATE TABLE public.kept AS SELECT 'a@x.example'::text AS recipient")
    found = site.run("import", "news", "--sql", query)
    assert found.exit_code == code
    assert reason in found.stderr
    assert column(site.db, "SELECT recipient FROM public.kept") == ["a@x.example"]
    assert site.books() == (0, 0, 0)


def test_a_campaign_goes_to_numbers_or_to_mailboxes(site: Site, db: psycopg.Connection) -> None:
    """Most of the first list decide, or its first recipient, and later lists are of that kind."""
    number = "is a telephone number, and the campaign goes to mailboxes"
    mailbox = "is a mailbox, and the campaign goes to telephone numbers"
    cases = (
        ("mails", ["a@x.example", "+491701234567", "b@x.example"], {3: number}, 2),
        ("sms", ["a@x.example", "+491701234567", "+491701234568"], {2: mailbox}, 2),
        ("sms", ["c@x.example", "d@x.example", "+491701234569"], {2: mailbox, 3: mailbox}, 1),
        ("even", ["+491701234567", "a@x.example"], {3: mailbox}, 1),
    )
    for name, recipients, bad, imported in cases:
        if name not in column(db, "SELECT name FROM campaigns"):
            site.create(name)
        text = HEAD + "".join(f"{each},Ann,Ulm\n" for each in recipients)
        words = [name, site.file(text), "--errors", str(site.folder / "bad.csv"), "--json"]
        done = site.run("import", *words)
        assert (done.exit_code, json.loads(done.stdout)["imported"]) == (1, imported), done.stderr
        assert problems(site.folder / "bad.csv") == {
            line: f"{recipients[line - 2]!r}: it {what}" for line, what in bad.items()
        }
