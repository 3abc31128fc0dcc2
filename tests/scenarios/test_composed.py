"""Composed mail from its submission to the next hop: parts, templates, retries, DSNs."""

from __future__ import annotations

import asyncio
import email.policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from pgmta.compose.template import TemplateSource, compile_template
from pgmta.postgres.notify import NOTIFY
from pgmta.service import Signals
from queued.cli.queuectl import main
from queued.config import whole_model
from queued.daemon.daemon import Daemon
from tests.support.nexthop import Do, NextHop, Transaction
from tests.support.waiting import until

ATTACHED = """ARRAY[('logo.png', 'image/png', '\\x89504e470d0a'::bytea, 'logo'),
    ('Rechnung für Ann.pdf', 'application/pdf', convert_to(repeat('%PDF', 9000), 'UTF8'), NULL)
    ]::submit_attachment[]"""
SOURCE = TemplateSource(
    sender="shop@a.example", from_="{{shop}} <shop@a.example>", subject="Code for {{name}}",
    body="Hello {{name}}, your code is {{code}}.\n", html="<p>Hello {{name}}: <b>{{code}}</b></p>",
)  # fmt: skip
SECRET = "s3cr3t-4711"


def put_template(db: psycopg.Connection[Any], name: str, source: TemplateSource = SOURCE) -> None:
    words = compile_template(source).words
    places = {word: sorted(found) for word, found in words.items()}
    db.execute(
        "INSERT INTO templates"
        " (name, version, sender, from_field, reply_to, subject, body, html, headers, words)"
        " SELECT %s, count(*) + 1, %s, %s, %s, %s, %s, %s, %s, %s FROM templates WHERE name = %s",
        (name, source.sender, source.from_, source.reply_to, source.subject, source.body,
         source.html, Jsonb(source.headers), Jsonb(places), name),
    )  # fmt: skip


def read(content: bytes | None) -> EmailMessage:
    message = email.message_from_bytes(content or b"", policy=email.policy.default)
    assert isinstance(message, EmailMessage)
    return message


def body(message: EmailMessage, kind: str) -> str:
    found = message.get_body((kind,))
    assert found
    return str(found.get_content()).replace("\r\n", "\n")


class Script:
    """Defers the first content for ann, and refuses bob."""

    def __init__(self) -> None:
        self.deferred = False

    def __call__(self, point: str, line: str, transaction: Transaction | None) -> Do | None:
        if point == "RCPT" and "bob@" in line:
            return Do(line="550 5.1.1 no")
        if point == "end of data" and transaction and "ann@b.example" in transaction.recipients:
            first, self.deferred = not self.deferred, True
            return Do(line="451 4.3.0 later") if first else None
        return None


def follow(uri: str, hop: NextHop, path: Path) -> None:
    with psycopg.connect(uri, autocommit=True, row_factory=dict_row) as db:
        put_template(db, "code")
        words = f'{{"shop": "Shöp", "name": "Ann <x>", "code": "{SECRET}"}}'
        db.execute(
            "SELECT submit_mail('shop@a.example', ARRAY['Ann Ä <ann@c.example>'], 'Grüße', 'Text',"
            " '<p>Grüße</p>', cc => '{carl@c.example,ann@C.example}', bcc => '{dora@d.example}',"
            f" attachments => {ATTACHED})"
        )
        for name in ("ann", "bob"):
            db.execute("SELECT submit_template('code', %s, %s, on_failed => 'bounce')",
                       (f"{name}@b.example", words))  # fmt: skip
        with db.transaction():
            db.execute(
                "SELECT submit_template('code', 'eve@b.example', %s, on_failed => 'remove')",
                (words,),
            )
            db.execute(
                "UPDATE messages SET params = '{\"words\": 7}'"
                " WHERE id = (SELECT max(id) FROM messages)"
            )
        shown = CliRunner().invoke(main, ["show", "2", "-c", str(path)]).stdout
        secret = CliRunner().invoke(main, ["show", "2", "--params", "-c", str(path)]).stdout
        put_template(
            db,
            "code",
            TemplateSource(sender="x@a.example", from_="x@a.example", subject="x", body="x"),
        )
        db.execute(NOTIFY)
        until(
            lambda: (
                [row["status"] for row in db.execute("SELECT status FROM queue").fetchall()]
                == ["HOLD"]
            )
        )
        log = db.execute("SELECT * FROM attempts WHERE recipient LIKE 'eve%'").fetchall()
    assert "composed from template code version 1" in shown
    assert "Subject: Code for {{name}}" in shown
    assert SECRET not in shown
    assert SECRET in secret
    assert [(each["event"], each["reply"]) for each in log] == [
        ("failed", "5.6.0 it can't be composed: words is no object")
    ]
    sent = [t.content for t in hop.transactions if t.content and t.recipients == ["ann@b.example"]]
    assert len(sent) == 2
    assert sent[0] == sent[1]
    template = read(sent[0])
    assert template["From"] == "Shöp <shop@a.example>"
    assert template["Subject"] == "Code for Ann <x>"
    assert body(template, "plain") == f"Hello Ann <x>, your code is {SECRET}.\n"
    assert body(template, "html") == f"<p>Hello Ann &lt;x&gt;: <b>{SECRET}</b></p>\n"
    parts = [
        t for t in hop.kept if "ann@c.example" in t.recipients or "dora@d.example" in t.recipients
    ]
    assert sorted(r for t in parts for r in t.recipients) == [
        "ann@c.example",
        "carl@c.example",
        "dora@d.example",
    ]
    for each in parts:
        assert b"dora" not in (each.content or b"")
        message = read(each.content)
        assert message["Subject"] == "Grüße"
        assert message["To"] == "Ann Ä <ann@c.example>"
        assert message["Cc"] == "carl@c.example, ann@C.example"
        kinds = " ".join(part.get_content_type() for part in message.walk())
        assert kinds == (
            "multipart/mixed multipart/alternative text/plain multipart/related text/html"
            " image/png application/pdf"
        )
        (pdf,) = message.iter_attachments()
        assert pdf.get_filename() == "Rechnung für Ann.pdf"
        assert pdf.get_content() == b"%PDF" * 9000
        assert (each.content or b"").isascii()
    dsns = [t.content or b"" for t in hop.kept if t.recipients == ["shop@a.example"]]
    assert len(dsns) == 1
    assert b"Subject: Code for {{name}}" in dsns[0]
    assert SECRET.encode() not in dsns[0]


@pytest.mark.parametrize("inline", ["1MB", "1B"])
async def test_from_submission_to_the_next_hop(database: str, tmp_path: Path, inline: str) -> None:
    path = tmp_path / "queued.yaml"
    path.write_text(yaml.safe_dump({"environment": {"database": {"uri": database}}}))
    with NextHop(Script()) as hop:
        config = whole_model().model_validate(
            {
                "routes": {"*": hop.target}, "delivery": {"inline": inline},
                "retry": {"intervals": ["0.2s"]}, "bounces": {"gather": "0s"},
            }
        )  # fmt: skip
        signals = Signals()
        running = asyncio.create_task(Daemon(config, database, lambda: config, signals).run())
        await asyncio.to_thread(follow, database, hop, path)
        signals.stop.set()
        await running
