"""Composed mail has the same octets at each attempt, in each process, beside newer templates."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner

from pgmta import Attachment, Mail, TemplateMail
from pgmta.client.own_connection import enqueue
from pgmta.compose.composed_message import parts_for, read_composition
from pgmta.compose.mime import MessageIdentity, compose_head
from pgmta.compose.template import TemplateSource, compile_template
from queued.cli.queuectl import main as queuectl
from tests.scenarios.test_composed import SOURCE, put_template
from tests.support.daemons import Queued
from tests.support.dkim import Keys
from tests.support.nexthop import Do, NextHop, Transaction
from tests.support.system import System
from tests.support.waiting import until

NEWER = TemplateSource(
    sender="new@a.example", from_="{{shop}} <new@a.example>", subject="New for {{name}}",
    body="{{name}}, the text is another one: {{code}}\n",
)  # fmt: skip
LETTER = TemplateSource(
    sender="shop@a.example", from_="Shöp <shop@a.example>", subject="Grüße an {{name}}",
    html='<p>Für <b title="{{name}}">{{name}}</b>: <a href="https://a.example/?c={{code}}">x</a>',
)  # fmt: skip
LOGO = Attachment("logo.png", b"\x89PNG" * 700, "image/png", "logo")
LARGE = Attachment("Größe.pdf", bytes(range(256)) * 100, "application/pdf")  # over 8 KB: in chunks
SMALL = Attachment("a.bin", b"\0\r\n.\r\n")
INNER = Attachment("m.eml", b"Subject: Gr\xc3\xbc\xc3\x9fe\r\n\r\n.\r\nText\r\n", "message/rfc822")
SHOP = '"Shöp, A" <shop@a.example>'
HTML = '<p>Grüße <img src="cid:logo"></p>\n'
PARTS: list[dict[str, Any]] = [
    {"body": "Plain.\r\n.\nFrom here\n"},
    {"body": "Ä" * 3000 + " \n", "subject": "Ünï " * 100},
    {"html": HTML, "attachments": [LOGO]},
    {"body": "Text", "html": HTML, "attachments": [LOGO, LARGE, SMALL]},
    {"body": "漢字" * 200, "attachments": [LARGE, INNER]},
    {"body": "x", "html": "<p>x</p>", "headers": {"X-A": "für", "List-Id": "<a.b>"}},
]
FATES = {"killed": Do(hang=True), "unknown": Do(drop=True), "delivered": None}
_FIELD = re.compile(rb"DKIM-Signature:.*?\r\n(?![ \t])", re.DOTALL)


def mails() -> Iterator[Mail | TemplateMail]:
    """100 mails: parts of each kind, and two templates with and without attachments."""
    for n in range(100):
        if n % 10 < len(PARTS):
            given = {"subject": f"Mail {n}", **PARTS[n % 10]}
            yield Mail(
                sender="shop@a.example", from_=SHOP, to=[f"R <r{n}@b.example>"],
                cc=[f"c{n}@b.example"] if n % 3 else [], bcc=[f"d{n}@b.example"] if n % 4 else [],
                **given,
            )  # fmt: skip
            continue
        words: dict[str, str | float] = {"name": f"Ann Ä & <{n}>", "code": n * 1.5}
        name = "letter" if n % 2 else "code"
        yield TemplateMail(
            template=name, recipient=f"R <r{n}@b.example>", attachments=[LARGE] if n % 3 else [],
            params=words if name == "letter" else {"shop": "Shöp", **words},
        )  # fmt: skip


def submit(db: psycopg.Connection[Any], mail: Mail | TemplateMail) -> None:
    enqueue(db, mail, wake=True)


class Phases:
    """Ends each message of a phase in the same way, and has its octets by recipient."""

    def __init__(self) -> None:
        self.phase = "killed"
        self.seen: dict[str, dict[str, bytes]] = {name: {} for name in FATES}
        self.count: Counter[tuple[str, str]] = Counter()

    def __call__(self, point: str, line: str, transaction: Transaction | None) -> Do | None:
        if point != "end of data" or not transaction:
            return None
        for recipient in transaction.recipients:
            self.seen[self.phase][recipient] = transaction.content or b""
            self.count[self.phase, recipient] += 1
        return FATES[self.phase]


def without_signature(content: bytes) -> bytes:
    """The same octets without the time and the value of their signature."""

    def masked(field: re.Match[bytes]) -> bytes:
        return re.sub(rb"\bb=[^;]*", b"b=", re.sub(rb"\bt=\d+", b"t=", field[0]))

    return _FIELD.sub(masked, content, count=1)


@pytest.mark.slow
@pytest.mark.parametrize("inline", ["10MB", "1B"])
def test_same_octets_whatever_happens(system: System, tmp_path: Path, inline: str) -> None:
    keys, phases = Keys(tmp_path), Phases()
    hop = system.hop(phases)
    entry = keys.entry("k")

    def start(host: str) -> Queued:
        return system.queued(
            hop, environment={"hostname": host}, signing={"keys": [entry]},
            delivery={"inline": inline, "connections": 200, "start": 150},
            retry={"intervals": ["1h"]}, process={"lease": "4s"},
        )  # fmt: skip

    first = start("one.example")
    with psycopg.connect(system.uri, autocommit=True) as db:
        put_template(db, "code", replace(SOURCE, from_="{{shop}} <shop@a.example>"))
        put_template(db, "letter", LETTER)
        for mail in mails():
            submit(db, mail)
    recipients = {row["recipient"] for row in system.queue()}
    assert len(recipients) > 150

    def all_seen() -> bool:
        return phases.seen[phases.phase].keys() == recipients

    until(all_seen)
    first.kill()
    phases.phase = "unknown"
    second = start("two.example")
    until(all_seen)
    system.wait_queue(lambda rows: all(row["status"] == "DEFERRED" for row in rows))
    second.stop()
    with psycopg.connect(system.uri, autocommit=True) as db:
        for name in ("code", "letter"):
            put_template(db, name, NEWER)
    phases.phase = "delivered"
    start("three.example")
    system.ask("UPDATE queue SET next_attempt = now()")
    system.ask("NOTIFY pgmta_queue")
    system.wait_empty()
    assert phases.count.total() == len(FATES) * len(recipients)
    for recipient in recipients:
        found = [phases.seen[phase][recipient] for phase in FATES]
        assert [keys.signers(each) for each in found] == [["a.example/k"]] * len(FATES)
        assert len({without_signature(each) for each in found}) == 1, recipient
    assert not any(b"new@a.example" in each for each in phases.seen["delivered"].values())


def expected(db: psycopg.Connection[Any]) -> dict[str, bytes]:
    """The octets by recipient, composed from what waits and from the templates of now."""
    found = {}
    for shown, header, trace, body, chunks, ts, recipient, source in db.execute(
        "SELECT jsonb_build_array(m.template_id, m.params)::text, message_id_header, trace, m.body,"
        " (SELECT coalesce(string_agg(data, '' ORDER BY position), '') FROM message_chunks"
        "  WHERE message_id = m.id), ts, recipient, to_jsonb(t)"
        " FROM queue AS q JOIN messages AS m ON m.id = q.message_id"
        " LEFT JOIN templates AS t ON t.id = m.template_id"
    ).fetchall():
        names = "sender", "reply_to", "subject", "body", "html", "headers"
        template = source and compile_template(
            TemplateSource(from_=source["from_field"], **{name: source[name] for name in names})
        )
        parts = parts_for(read_composition(shown).params, template)
        head = compose_head(parts, MessageIdentity(header, ts))
        found[recipient] = trace.encode() + head + body + chunks
    return found


@pytest.mark.slow
def test_new_version_changes_no_mail_that_waits(system: System, tmp_path: Path) -> None:
    config = tmp_path / "queuectl.yaml"
    config.write_text(yaml.safe_dump({"environment": {"database": {"uri": system.uri}}}))
    later = "451 4.3.0 later"
    hop: NextHop = system.hop(
        lambda point, line, _: Do(line=later) if point == "RCPT" and "wait" in line else None
    )
    with psycopg.connect(system.uri, autocommit=True) as db:
        put_template(db, "code", replace(SOURCE, sender="shop@a.example"))
        put_template(db, "letter", LETTER)
        db.execute(
            "SELECT submit_template(CASE WHEN n % 2 = 0 THEN 'code' ELSE 'letter' END,"
            " (CASE WHEN n % 5 = 0 THEN 'wait' ELSE 'r' END) || n || '@b.example',"
            " jsonb_strip_nulls(jsonb_build_object('name', 'Ann ' || n, 'code', md5(n::text),"
            "     'shop', CASE WHEN n % 2 = 0 THEN 'Shöp' END)),"
            " send_at => CASE WHEN n % 3 = 0 THEN now() + interval '1 minute' END)"
            " FROM generate_series(1, 300) AS n"
        )
        before = expected(db)
        held = CliRunner().invoke(
            queuectl, ["hold", "-c", str(config), "--recipient", "r1*", "--reason", "look", "--yes"]
        )
        assert held.exit_code == 0, held.output
        system.queued(hop, retry={"intervals": ["1h"]})
        waiting = {"SCHEDULED", "HOLD", "DEFERRED"}
        system.wait_queue(lambda rows: {row["status"] for row in rows} == waiting)
        for name in ("code", "letter"):
            put_template(db, name, NEWER)
        assert expected(db) == {
            row["recipient"]: before[row["recipient"]] for row in system.queue()
        }
        hop.script = lambda point, line, transaction: None
        db.execute("UPDATE queue SET status = 'QUEUED', send_at = NULL, next_attempt = now()")
        db.execute("NOTIFY pgmta_queue")
    system.wait_empty()
    sent = {t.recipients[0]: t.content for t in hop.kept}
    assert sent == before
