"""`queuectl forget`: one person is nowhere any more, others are, and stays suppressed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psycopg
from click.testing import CliRunner, Result
from psycopg.types.json import Jsonb

from pgmta.postgres.embedded.programs import tool
from queued.cli.queuectl import main as queuectl
from tests.features.suppressions.campaign import Campaign
from tests.support.rows import fetch, row
from tests.support.rows import message as put_message

JOE, ANN = "Joe@B.example", "ann@b.example"


def run(folder: Path, uri: str, *words: str, stdin: str | None = None) -> Result:
    config = folder / "queued.yaml"
    config.write_text(f"environment: {{database: {{uri: '{uri}'}}}}\n")
    return CliRunner().invoke(queuectl, [*words, "--config", str(config)], input=stdin)


def attempt(db: psycopg.Connection, recipient: str, sender: str, token: int) -> None:
    db.execute(
        "INSERT INTO attempts (started_at, row_id, message_id, lease_token, attempt, code, event,"
        " sender, recipient, domain, worker, host, command, enhanced, reply)"
        " VALUES (now(), 1, 1, %s, 1, 550, 'failed', %s, %s, 'b.example', 'w', 'h', 'RCPT', '',"
        " %s)",
        (token, sender, recipient, f"<{recipient}>: no"),
    )
    db.execute(
        "INSERT INTO transcripts VALUES (now(), 1, %s, '{1}', NULL, %s)",
        (token, f"> RCPT TO:<{recipient}>"),
    )


def fill(db: psycopg.Connection, campaign: Campaign) -> None:
    """Put both persons into all tables."""
    for token, name in enumerate((JOE, ANN), 1):
        row(db, put_message(db, token), recipient=name)
        attempt(db, name, "s@a.example", token)
        db.execute(
            "INSERT INTO reports (message_id, row_id, recipient, sender, kind)"
            " VALUES (1, 1, %s, 's@a.example', 'failed')", (name,),
        )  # fmt: skip
    attempt(db, "other@b.example", JOE.lower(), 3)
    campaign.add(JOE, ANN, f"{JOE}.org")
    db.execute("UPDATE campaign_recipients SET params = %s", (Jsonb({"name": "N", "mail": JOE}),))
    db.execute("UPDATE campaign_recipients SET state = 'sent', params = '{}' WHERE number > 1")
    db.execute("SELECT suppression_scope('ads', '*'), suppress(%s, 't', 'ads')", (JOE,))


def test_one_person(
    db: psycopg.Connection, database: str, campaign: Campaign, tmp_path: Path
) -> None:
    fill(db, campaign)
    sums = "SELECT to_jsonb(s) - 'unsent' - 'invalid' FROM campaign_sums AS s"
    books = fetch(db, sums)
    expected = {
        "suppressions": "1", "rows of the queue": "1", "recipients of campaigns": "1",
        "entries of the log": "2", "transcripts": "2", "reports": "1", "other rows": "0",
        "words of other rows": "0",
    }  # fmt: skip
    for words, end in ((["--dry-run"], ["would", "go"]), ([], ["removed"])):
        done = run(tmp_path, database, "forget", JOE.upper(), *words)
        assert done.exit_code == 0, done.output
        lines = [line.rsplit(maxsplit=len(end) + 1)[:] for line in done.output.splitlines()]
        numbers = {line[0].strip(): line[1] for line in lines}
        assert expected.items() <= numbers.items()  # other features have parts of their own
        assert all(line[2:] == end for line in lines)
    dump = subprocess.run(
        [tool("pg_dump"), "--data-only", database], capture_output=True, check=True, text=True
    ).stdout.lower()
    assert "joe@b.example\t" not in dump.replace("joe@b.example.org", "")
    assert JOE.lower() not in dump.replace("joe@b.example.org", "")
    assert dump.count(ANN) > 5
    assert fetch(db, sums) == books
    assert campaign.suppressed(JOE, ANN, scope="any", tenant="x") == [True, False]
    found = run(tmp_path, database, "suppression", "list", JOE)
    assert "hmac:" in found.output
    assert "forgotten" in found.output
    again = run(tmp_path, database, "forget", JOE, "--dry-run").output
    assert again.split().count("0") == len(numbers)
    released = run(tmp_path, database, "suppression", "remove", JOE, "--all-tenants")
    assert (released.exit_code, campaign.suppressed(JOE)) == (0, [False])


def test_row_under_way_ends_first(db: psycopg.Connection, database: str, tmp_path: Path) -> None:
    row(db, put_message(db, 1), recipient=JOE, status="SENDING", lease=60, lease_owner="w",
        lease_token=1)  # fmt: skip
    done = run(tmp_path, database, "forget", JOE)
    assert (done.exit_code, "run it again" in done.stderr) == (1, True)
    assert fetch(db, "SELECT status FROM queue") == ("DELETE",)


LATIN = (
    b"a@b.example\nm\xfcller@b.example\nb@b.example,news\n\0@b.example\nc@b.example\n"
    b'\xff\xfe\n"d@b.example,\n'
)


def test_a_file_that_is_no_list_of_addresses_has_bad_lines(
    db: psycopg.Connection, database: str, tmp_path: Path
) -> None:
    db.autocommit = True
    path = tmp_path / "list.csv"
    path.write_bytes(LATIN)
    done = run(tmp_path, database, "suppression", "import", str(path))
    assert (done.exit_code, done.stdout) == (1, "2 new, 0 newer, 0 older, 0 forgotten, 5 bad\n")
    assert [line.split(": ")[0] for line in done.stderr.splitlines()] == [
        f"list.csv:{n}" for n in (2, 3, 4, 6, 7)
    ]
    assert "list.csv:2: it is not UTF-8\nlist.csv:3: it has more than address;" in done.stderr
    path.write_text(
        "address,tenant,until,source\na@b.example,bad one,,\na@b.example,,2020-01-01,\n"
        "a@b.example,,soon,\na@b.example,,0001-01-01T00:00+14:00,\na@b.example,t,9998-01-01,a\0b\n"
    )
    done = run(tmp_path, database, "suppression", "import", str(path))
    assert done.stdout == "1 new, 0 newer, 0 older, 0 forgotten, 4 bad\n", done.output
    assert "'soon' is no time such as" in done.stderr
    path.write_bytes(b"\x89PNG\r\n\x1a\n")
    done = run(tmp_path, database, "suppression", "import", str(path))
    assert (done.exit_code, "list.csv:1: it is not UTF-8" in done.stderr) == (2, True)


def test_operators_learn_what_still_holds(
    db: psycopg.Connection, database: str, tmp_path: Path
) -> None:
    db.autocommit = True

    def ask(*words: str) -> tuple[int, str]:
        done = run(tmp_path, database, "suppression", *words)
        return done.exit_code, done.output

    db.execute("SELECT suppression_scope('news', 'shop')")
    assert ask("add", "a@b.example", "--until", "2020-01-01")[0] == 2
    assert ask("add", "a@b.example", "--tenant", "bad one")[0] == 2
    code, said = ask("add", "a@b.example", "--scope", "news")
    assert (code, "of mail without a tenant; tenant shop has it" in said) == (2, True)
    code, said = ask("list", "--scope", "newz")
    assert (code, "did you mean 'news'?" in said) == (2, True)
    assert ask("list", "--scope", "news")[0] == 1
    for options in ((), ("--tenant", "shop", "--scope", "news"), ("--all-tenants",)):
        assert ask("add", "a@b.example", *options)[0] == 0
    assert "already" in ask("add", "a@b.example", "--until", "2999-01-01")[1]
    code, said = ask("remove", "a@b.example")
    assert code == 0
    assert "suppressed as before: " in said
    assert "operator (--tenant shop --scope news)" in said
    code, said = ask("remove", "a@b.example")
    assert (code, "not suppressed there, but: " in said) == (1, True)
    assert "operator (--all-tenants)" in said
    ask("remove", "a@b.example", "--all-tenants")
    assert ask("remove", "a@b.example", "--tenant", "shop") == (
        0, "a@b.example gets mail again: 1 released\n",
    )  # fmt: skip


def test_import_list_and_export(
    db: psycopg.Connection, database: str, campaign: Campaign, tmp_path: Path
) -> None:
    text = (
        "\ufeffaddress,scope,reason,at,source\r\n"
        'a@b.example,news,unsubscribed,2026-01-01T00:00:00Z,"old\nsystem"\r\n'
        "nobody,,,,\r\n"
        "A@b.example,news,bounced,2025-01-01,\r\n"
        "b@b.example,,fancy,,\r\n"
        "c@bücher.example,,,2999-01-01,\r\n"
        "d@b.example,new,,,\r\n"
    )
    done = run(tmp_path, database, "suppression", "import", "-", stdin=text)
    assert done.exit_code == 1
    assert done.stdout == "2 new, 0 newer, 1 older, 0 forgotten, 3 bad\n"
    assert [line.split(":")[1] for line in done.stderr.splitlines()] == ["4", "6", "8"]
    assert "there is no scope 'new'; did you mean 'news'?" in done.stderr
    assert campaign.reasons() == [
        "a@b.example news unsubscribed",
        "c@xn--bcher-kva.example operator",
    ]
    exported = run(tmp_path, database, "suppression", "export")
    db.execute("TRUNCATE suppressions")
    again = run(tmp_path, database, "suppression", "import", "-", stdin=exported.stdout)
    assert again.stdout == "2 new, 0 newer, 0 older, 0 forgotten, 0 bad\n"
    assert run(tmp_path, database, "suppression", "export").stdout == exported.stdout
    simple = run(
        tmp_path, database, "suppression", "import", "-", stdin="x@b.example\ny@b.example\n"
    )
    assert simple.stdout.startswith("2 new")
    wrong = run(tmp_path, database, "suppression", "import", "-", stdin="address,reasn\n")
    assert (wrong.exit_code, "did you mean 'reason'?" in wrong.stderr) == (2, True)
    assert run(tmp_path, database, "suppression", "remove", "no@b.example").exit_code == 1
    assert run(tmp_path, database, "suppression", "add", "no").exit_code == 2
    unknown = run(tmp_path, database, "suppression", "add", "Z@b.example", "--scope", "ads")
    assert (unknown.exit_code, "--scope: there is no scope 'ads'" in unknown.output) == (2, True)
    for words in ("is declared", "was declared already"):
        declared = run(tmp_path, database, "suppression", "scope", "add", "ads")
        assert declared.output == f"ads {words}\n"
    assert run(tmp_path, database, "suppression", "scope", "add", "a b").exit_code == 2
    listed = run(tmp_path, database, "suppression", "scope", "list")
    assert listed.output.split() == [
        "TENANT",
        "SCOPE",
        "*",
        "transactional",
        "-",
        "ads",
        "-",
        "news",
    ]
    added = run(tmp_path, database, "suppression", "add", "Z@b.example", "--scope", "ads")
    assert added.output == "Z@b.example is suppressed\n"
    names = fetch(db, "SELECT count(*) FROM audit WHERE condition ~ 'b.example'")
    assert names == (0,), "the audit has hashes"
