"""Values of words and texts of composed mail are where its readers are, and nowhere else."""

from __future__ import annotations

import asyncio
import json
import threading
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner, Result
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgmta import Attachment, Mail, SubmissionError, TemplateMail, enqueue
from pgmta.client.own_connection import enqueue_many
from pgmta.compose.template import TemplateSource, compile_template
from queued.cli.queuectl import main as queuectl
from tests.scenarios.test_composed import put_template
from tests.support.nexthop import Do, Transaction
from tests.support.submit import post
from tests.support.system import System
from tests.support.waiting import eventually, until

WORDS = {name: f"w0rd-{name}-4711" for name in ("plain", "name", "field", "part", "mark")}
WORDS |= {"address": "w0rd-4711@a.example", "url": "https://a.example/w0rd-4711"}
TEXT, FILE = "b0dy-4711", b"f1le-4711" * 30
SECRETS = ["w0rd-", TEXT, b64encode(FILE)[:70].decode(), "f1le-"]
SECRETS += [f"\\x{text.encode().hex()}"[2:] for text in SECRETS]  # as PostgreSQL shows octets
SOURCE = TemplateSource(
    sender="shop@a.example", from_="{{name}} <{{address}}>", subject="Code {{field}}",
    reply_to="{{address}}", headers={"X-Mark": "{{field}}", "List-Id": "<{{mark}}.a.example>"},
    body="{{plain}} https://a.example/?q={{part}}\n",
    html='<a href="{{url}}" title="{{plain}}">{{plain}}</a><a href="https://b.example/{{part}}">x</a>',
)  # fmt: skip
COLUMNS = """
SELECT relname::text, array_agg(attname::text ORDER BY attnum)
FROM pg_class AS c JOIN pg_attribute ON attrelid = c.oid AND attnum > 0 AND NOT attisdropped
WHERE relnamespace = 'pgmta'::regnamespace AND relkind IN ('r', 'p', 'v', 'm')
    AND has_column_privilege('pgmta_reader', c.oid, attnum, 'SELECT')
GROUP BY relname
"""


def answer(point: str, line: str, transaction: Transaction | None) -> Do | None:
    """Refuse and defer by the recipient, at the beginning and at the end."""
    if point == "RCPT" and "<fail" in line:
        return Do(line="550 5.1.1 no")
    if point == "end of data" and transaction and "late" in transaction.recipients[0]:
        return Do(line="451 4.3.0 later")
    return None


def mails() -> Iterator[Mail | TemplateMail]:
    files = [Attachment("a.bin", FILE), Attachment("b.bin", FILE * 100)]
    for name in ("ok", "fail", "late"):
        for n in range(3):
            yield TemplateMail(
                template="code", recipient=f"{name}{n}@b.example", params=WORDS,
                on_failed="bounce", attachments=files[:n],
            )  # fmt: skip
            yield Mail(
                sender="shop@a.example", to=[f"{name}{n}p@b.example"], subject="x", body=TEXT,
                html=f"<p>{TEXT}</p>", on_failed="bounce", attachments=files[:n],
            )  # fmt: skip


def leaks(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


@contextmanager
def watching(uri: str) -> Iterator[set[str]]:
    """The texts of all statements that sessions of pgmta run meanwhile, as far as one sees them."""
    found: set[str] = set()
    end = threading.Event()

    def look() -> None:
        with psycopg.connect(uri, autocommit=True) as db:
            while not end.wait(0.005):
                found.update(
                    text for (text,) in db.execute(
                        "SELECT query FROM pg_stat_activity WHERE datname = current_database()"
                        " AND application_name LIKE 'pgmta%' AND pid <> pg_backend_pid()"
                    )
                )  # fmt: skip

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        end.set()
        thread.join()


def seen_by_reader(uri: str) -> dict[str, str]:
    """All that the role may read, by table, and what the planner knows of the columns."""
    with psycopg.connect(uri, autocommit=True) as db:
        db.execute("ANALYZE")
        tables: dict[str, list[str]] = dict(db.execute(COLUMNS).fetchall())
        ids = [number for (number,) in db.execute("SELECT id FROM messages")]
        db.execute("SET ROLE pgmta_reader")
        found = {
            table: str(db.execute(sql.SQL("SELECT concat_ws(' ', {}) FROM {}").format(
                sql.SQL(", ").join(map(sql.Identifier, columns)), sql.Identifier("pgmta", table)
            )).fetchall())
            for table, columns in tables.items()
        }  # fmt: skip
        found["status()"] = str(
            db.execute("SELECT s::text FROM status(%s) AS s", (ids,)).fetchall()
        )
        found["pg_stats"] = str(db.execute("SELECT s::text FROM pg_stats AS s").fetchall())
        for refused in (
            "params FROM messages",
            "composition_shown(template_id, '{}') FROM messages",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                db.execute(f"SELECT {refused}".encode())
    assert {"messages", "queue", "attempts", "templates", "transcripts"} <= found.keys()
    return found


class Commands:
    """queuectl with the login of a role."""

    def __init__(self, folder: Path, uri: str, role: str) -> None:
        self.path = folder / f"{role}.yaml"
        uri = make_conninfo(uri, options=f"-c role=pgmta_{role}")
        self.path.write_text(yaml.safe_dump({"environment": {"database": {"uri": uri}}}))

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(queuectl, [*words, "-c", str(self.path)])

    def said(self, *words: str) -> str:
        done = self.run(*words)
        assert done.exit_code == 0, (words, done.output)
        return done.output


def check_commands(system: System, operator: Commands, reader: Commands) -> None:
    """Look at all messages that wait."""
    waiting = system.queue()
    assert len(waiting) == 7
    for row in waiting:
        number = str(row["message_id"])
        for json_ in ([], ["--json"]):
            for words in (["explain", number], ["find", "--recipient", row["recipient"]], ["list"]):
                for who in (operator, reader):
                    assert leaks(who.said(*words, *json_)) == []
            assert leaks(operator.said("show", number, "--transcript", *json_)) == []
            shown = operator.said("show", number, "--params", *json_)
            assert "w0rd-" in shown or TEXT in shown
        refused = reader.run("show", number, "--params")
        assert refused.exit_code == 1
        assert leaks(refused.output) == []
        assert refused.stderr.startswith("error: permission denied for table messages")
    template = next(row for row in waiting if row["recipient"] == "late0@b.example")
    header = operator.said("show", str(template["message_id"]))
    for shown in ("From: {{name}} <{{address}}>", "Subject: Code {{field}}", "template code"):
        assert shown in header
    made_of = json.loads(operator.said("show", str(template["message_id"]), "--params", "--json"))
    assert made_of["params"] == WORDS


@pytest.mark.slow
@pytest.mark.parametrize("inline", ["10MB", "1B"])
def test_only_the_next_hop_and_an_operator_who_asks_see_them(
    system: System, tmp_path: Path, inline: str
) -> None:
    operator, reader = (Commands(tmp_path, system.uri, name) for name in ("operator", "reader"))
    hop = system.hop(answer, extensions=("PIPELINING", "8BITMIME"))
    with psycopg.connect(system.uri, autocommit=True) as db:
        put_template(db, "code", SOURCE)
        words = {word: sorted(found) for word, found in compile_template(SOURCE).words.items()}
        assert words.keys() == WORDS.keys()
    smtpd = system.smtpd(log={"level": "debug"})
    with watching(system.uri) as statements:
        assert operator.said("trace", "--domain", "*", "--for", "1h", "--background")
        queued = system.queued(
            hop, log={"level": "debug", "attempts": True}, delivery={"inline": inline},
            retry={"intervals": ["1s", "1h"], "jitter": 0},
            bounces={"gather": "0s", "delay": ["1s"]},
        )  # fmt: skip
        queued.wait_log("traces begin")

        async def submit() -> None:
            for kind in (TemplateMail, Mail):
                await held([mail for mail in mails() if isinstance(mail, kind)])

        async def held(group: Sequence[Mail | TemplateMail]) -> None:
            with psycopg.connect(system.uri, autocommit=True, application_name="pgmta app") as own:
                with psycopg.connect(system.uri) as db:  # until its statement was seen
                    db.execute("LOCK TABLE pgmta.messages IN SHARE MODE")
                    sending = asyncio.create_task(asyncio.to_thread(enqueue_many, own, group))
                    await eventually(lambda: any("submit_mails" in text for text in statements))
                assert all(sent.id for sent in await sending)

        asyncio.run(submit())
        flags = [f for pair in WORDS.items() for f in ("--param", "=".join(pair))]
        sent = ["send", "--template", "code", "--to", "late9@b.example", "--on-failed", "bounce"]
        Commands(tmp_path, system.uri, "submit").said(*sent, *flags)
        post(smtpd.port, "shop@a.example", ["ok9@b.example"], b"Subject: x\r\n\r\nx\r\n")
        system.ask("UPDATE queue SET notify = 'SUCCESS,FAILURE,DELAY' WHERE recipient ~ '^late'")
        kinds = "SELECT kind FROM reports WHERE kind = %s AND report_id IS NOT NULL"
        until(lambda: system.ask(kinds, "failed") and system.ask(kinds, "delayed"))
        system.wait_queue(lambda rows: all(row["attempts"] == 2 for row in rows))
        check_commands(system, operator, reader)
        for name, content in seen_by_reader(system.uri).items():
            assert leaks(content) == [], name
        hop.script = lambda point, line, transaction: None
        system.ask("UPDATE queue SET next_attempt = now()")
        system.ask("NOTIFY pgmta_queue")
        system.wait_empty()
    assert {each["kind"] for each in system.ask("SELECT kind FROM reports")} > {"failed", "delayed"}
    found = seen_by_reader(system.uri)
    assert "> content: " in found["transcripts"]
    for name, content in found.items():
        assert leaks(content) == [], name
    dsns = [t for t in hop.kept if t.recipients == ["shop@a.example"]]
    assert len(dsns) >= 10
    for dsn in dsns:
        assert leaks((dsn.content or b"").decode()) == []
    got = b"".join(t.content or b"" for t in hop.kept if t not in dsns).decode()
    assert len(leaks(got)) >= 3
    assert any("FROM messages" in text for text in statements)
    assert leaks("\n".join(statements)) == []
    for daemon in (smtpd, queued):
        assert leaks(daemon.story()) == []
    assert queued.events("attempt")


BAD: dict[str, list[Any]] = {
    "name": ["w0rd-\nx", "w0rd-" * 100, ["w0rd-"], {"w0rd-": 1}, None],
    "field": ["w0rd-\r\nBcc: x@b.example", "w0rd-\x01", "w0rd-" * 300],
    "address": ["w0rd-", "w0rd- <x@a.example>", "w0rd-ä@a.example"],
    "url": ["javascript:w0rd-", "w0rd-://a.example", "https://a.example/ w0rd-"],
    "mark": ["w0rd- x", "w0rd-ä", ""],
    "plain": ["w0rd-\0", "w0rd-\ud800", ["w0rd-"]],
}


def test_no_refusal_has_a_value(database: str, db: psycopg.Connection[Any], tmp_path: Path) -> None:
    put_template(db, "code", SOURCE)
    program = Commands(tmp_path, database, "submit")
    file = tmp_path / "words.json"
    bad = [{**WORDS, word: value} for word, values in BAD.items() for value in values]
    bad += [{**WORDS, "other": "w0rd-"}, {k: v for k, v in WORDS.items() if k != "part"}]
    for words in bad:
        for key in (None, "k"):
            given = TemplateMail(template="code", recipient="r@b.example", params=words, key=key)
            assert leaks(repr(given)) == []
            with pytest.raises(SubmissionError) as refused:
                enqueue(db, given)
            assert str(refused.value).startswith("params: ")
            error: BaseException | None = refused.value
            while error:
                said = f"{error} {getattr(getattr(error, 'diag', None), 'context', '')}"
                assert leaks(said) == [], words
                error = error.__cause__
        file.write_text(json.dumps(words))
        done = program.run(
            "send", "--template", "code", "--to", "r@b.example", "--params-file", str(file)
        )
        assert (done.exit_code, leaks(done.output)) == (2, []), done.output
        assert len(done.stderr.splitlines()) == 1
    mail_of = partial(Mail, sender="a@b.example", to=["r@b.example"], body=TEXT)
    for mail in (
        mail_of(subject=f"{TEXT}\n"),
        mail_of(subject="x", headers={"X-A": f"{TEXT}\n"}),
        mail_of(subject="x", headers={"X-A": f"{TEXT}\0"}),
        mail_of(subject="x", metadata={"a": f"{TEXT}\0"}),
    ):
        with pytest.raises(SubmissionError) as refused:
            enqueue(db, mail)
        assert leaks(str(refused.value)) == []
    assert db.execute("SELECT count(*) FROM messages").fetchall() == [(0,)]
