"""`queuectl campaign export`: read by csv, psql, pandas, and by spreadsheets as text."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import psycopg
import pytest

from tests.features.campaigns.commands.site import Site

HEAD = "recipient,name,city\n"
FORMULAS = (
    '=cmd@x.example,=1+1,+2\n-a@x.example,-3,"\t=4"\n+b@x.example,@SUM(A1),"\r=5"\n'
    'plain@x.example,"a, ""b""","=HYPERLINK(""http://x"")\nnext"\n'
)
SENT = (
    "UPDATE campaign_recipients SET state = 'sent', sent_at = '2026-01-02 03:04:05.5+01',"
    " answered_at = '2026-01-02 03:04:06+01', message_id = 7 WHERE number = 2"
)
FAILED = (
    "UPDATE campaign_recipients SET state = 'failed', bounced = true, error_code = '550',"
    " error_sub_type = '5.1.1 unknown_user', answered_at = now() WHERE number = 3"
)
PANDAS = """
import pandas, sys
frame = pandas.read_csv(sys.argv[1], parse_dates=["sent_at", "answered_at"])
assert str(frame.sent_at.dt.tz) == "UTC", frame.sent_at
print(len(frame), frame.state.tolist(), frame.sent_at[1].isoformat(), frame.error_code[2])
lines = pandas.read_json(sys.argv[2], lines=True)
print(len(lines), lines.recipient.tolist() == frame.recipient.tolist())
"""


@pytest.fixture
def sent(site: Site) -> Site:
    """A campaign some of whose recipients have an outcome."""
    site.imported(HEAD + FORMULAS)
    site.db.execute(SENT.encode())
    site.db.execute(FAILED.encode())
    return site


def test_outcomes_as_csv_and_json(sent: Site) -> None:
    head, first, second, third, last = sent.exported("--words")
    assert head == [
        "number", "recipient", "state", "bounced", "unsubscribed", "complained", "sent_at",
        "answered_at", "error_code", "error_sub_type", "message_id",
        "template", "version", "word_city", "word_name",
    ]  # fmt: skip
    assert first == ["1", "=cmd@x.example", "unsent", *"fff", *[""] * 7, "+2", "=1+1"]
    assert second[2:13] == [
        "sent", *"fff", "2026-01-02T02:04:05.500000Z", "2026-01-02T02:04:06.000000Z", "", "", "7",
        "hello", "1",
    ]  # fmt: skip
    assert third[2:4] == ["failed", "t"]
    assert third[8:10] == ["550", "5.1.1 unknown_user"]
    assert last[-2:] == ['=HYPERLINK("http://x")\nnext', 'a, "b"']
    lines = sent.said("export", "news", "--json", "--words").splitlines()
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert [row["number"] for row in rows] == [1, 2, 3, 4]
    assert rows[1]["sent_at"] == "2026-01-02T02:04:05.500000Z"
    assert rows[3]["word_city"] == '=HYPERLINK("http://x")\nnext'
    assert [row[1] for row in sent.exported("--state", "sent", "--state", "failed")[1:]] == [
        "-a@x.example", "+b@x.example",
    ]  # fmt: skip
    path = sent.folder / "out.csv"
    assert sent.said("export", "news", "-o", str(path)) == ""
    assert path.read_text().splitlines()[1].startswith("1,=cmd@x.example,unsent,f,")


def test_no_cell_of_a_spreadsheet_begins_a_formula(sent: Site) -> None:
    sent.db.execute("UPDATE campaign_recipients SET error_code = '=1', error_sub_type = '@2'")
    rows = sent.exported("--words", "--spreadsheet")
    assert not [cell for row in rows for cell in row if cell.startswith(tuple("=+-@\t\r\n"))]
    assert rows[1][1] == "'=cmd@x.example"
    assert rows[4][-2:] == ['\'=HYPERLINK("http://x")\nnext', 'a, "b"']
    lines = sent.said("export", "news", "--json", "--spreadsheet").splitlines()
    assert json.loads(lines[0])["recipient"] == "'=cmd@x.example"


def test_psql_reads_it(sent: Site, database: str, db: psycopg.Connection) -> None:
    if not shutil.which("psql"):
        pytest.skip("psql is not installed")
    path = sent.folder / "out.csv"
    sent.said("export", "news", "-o", str(path), "--words")
    columns = (
        "number integer, recipient text, state text, bounced boolean, unsubscribed boolean,"
        " complained boolean, sent_at timestamptz, answered_at timestamptz, error_code text,"
        " error_sub_type text, message_id bigint, template text, version integer, city text,"
        " name text"
    )
    db.execute(f"CREATE TABLE public.report ({columns})".encode())
    copy = f"\\copy public.report FROM '{path}' WITH (FORMAT csv, HEADER)"
    conninfo = psycopg.conninfo.make_conninfo(database)
    subprocess.run(["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", conninfo, "-c", copy],
                   check=True, timeout=60)  # fmt: skip
    same = (
        "SELECT count(*) FROM public.report AS o JOIN campaign_recipients AS r USING (number)"
        " WHERE (o.recipient, o.state, o.bounced, o.name) ="
        " (r.recipient, r.state, r.bounced, r.params ->> 'name')"
        " AND (o.sent_at, o.error_code, o.message_id) IS NOT DISTINCT FROM"
        " (r.sent_at, r.error_code, r.message_id)"
    )
    assert db.execute(same.encode()).fetchone() == (4,)


@pytest.mark.needs("python3-pandas")
def test_pandas_reads_it(sent: Site) -> None:
    table, lines = sent.folder / "out.csv", sent.folder / "out.json"
    sent.said("export", "news", "-o", str(table))
    sent.said("export", "news", "-o", str(lines), "--json")
    done = subprocess.run(["/usr/bin/python3", "-c", PANDAS, str(table), str(lines)],
                          check=True, timeout=120, capture_output=True, text=True)  # fmt: skip
    assert done.stdout.splitlines() == [
        "4 ['unsent', 'sent', 'failed', 'unsent'] 2026-01-02T02:04:05.500000+00:00 550.0",
        "4 True",
    ]
