"""Campaigns by SMS: telephone numbers from a list, at a strict rate, with the provider's codes."""

from __future__ import annotations

import csv
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner

import pgmta
from queued.cli.queuectl import main
from tests.features.campaigns.campaigns import books, statuses
from tests.features.providers.scripted_server import CUT, said
from tests.support.daemons import Daemon
from tests.support.dkim import Keys
from tests.support.nexthop import holding_at
from tests.support.provider import OK, Provider
from tests.support.system import System
from tests.support.waiting import until

TEMPLATE = """---
from: Shop <info@shop.example>
subject: SMS
---
Hello {{name}}, your code is {{code}}.
"""
REFUSED = b'{"code": 21211, "status": "invalid", "message": "no such number"}'
RATE = 50


def queuectl(daemon: Daemon, *words: str, code: int = 0, name: int = 2) -> str:
    """Run queuectl with the configuration of the daemon."""
    done = CliRunner().invoke(main, [*words[:name], "-c", str(daemon.path), *words[name:]])
    assert done.exit_code == code, done.output
    return done.stdout + done.stderr


def shaping(folder: Path, provider: Provider) -> str:
    parameters = {
        "url": provider.url,
        "json": {
            "to": "{{recipient}}",
            "text": "{{sms}}",
            "segments": "{{segments}}",
            "signature": "{{header.DKIM-Signature}}",
        },
        "error": "code",
        "error_sub_type": "status",
        "segments": 2,
    }
    file = folder / "shaping.yaml"
    route = {"name": "sms", "domain": "sms", "transport": "http", "parameters": parameters}
    file.write_text(yaml.safe_dump({"routes": [route]}))
    return str(file)


def number(n: int) -> str:
    return f"+49170{n:07}"


@pytest.mark.slow
def test_a_campaign(system: System, db: psycopg.Connection, tmp_path: Path) -> None:
    """Of 200 numbers some are refused, cut, suppressed, bad, or have a text that is too long."""
    times: list[float] = []

    def answering(document: Any) -> list[bytes]:
        times.append(time.monotonic())
        n = int(document["to"][6:])
        return said("400 Bad", REFUSED) if n % 20 == 0 else [CUT] if n % 33 == 0 else OK

    with Provider(answering) as provider:
        daemon = system.queued(shaping=shaping(tmp_path, provider))
        template = tmp_path / "code.txt"
        template.write_text(TEMPLATE)
        queuectl(daemon, "template", "put", str(template))
        queuectl(daemon, "campaign", "create", "codes", "--template", "code",
                 "--credential", "twilio")  # fmt: skip
        queuectl(daemon, "suppression", "add", "+49 (170) 0000007")
        lists = tmp_path / "list.csv"
        with lists.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["recipient", "name", "code"])
            for n in range(1, 201):
                given = number(n) if n % 2 else f"{number(n)[:6]} {number(n)[6:9]}-{number(n)[9:]}"
                writer.writerow([given, "Ann", "x" * 400 if n == 5 else n])
            writer.writerow(["0170 1234567", "Bob", 1])
            writer.writerow([number(3), "Bob", 1])
        output = queuectl(daemon, "campaign", "import", "codes", str(lists), code=1)
        assert "write the country code" in output
        assert "left out: 1 bad, 1 duplicates" in output
        preview = queuectl(daemon, "campaign", "preview", "codes", "4", "--text")
        assert "Hello Ann, your code is 4." in preview
        assert "SMS: 1 segment, 27 septets of GSM-7" in preview
        queuectl(daemon, "campaign", "start", "codes", "--rate", f"{RATE}/s")
        until(lambda: len(provider.documents) > RATE)
        queuectl(daemon, "campaign", "stop", "codes")
        until(lambda: statuses(db, 1) == ["LOGGED"], 60)
        left = books(db, 1)["unsent"]
        assert 0 < left < 200 - RATE
        queuectl(daemon, "campaign", "resume", "codes")
        until(lambda: set(statuses(db, 1)) == {"LOGGED"} and "unsent" not in books(db, 1), 60)
        got = Counter(each["to"] for each in provider.documents)
        assert set(got.values()) == {1}
        assert {each["text"] for each in provider.documents if each["to"] == number(8)} == {
            "Hello Ann, your code is 8."
        }
        assert {each["segments"] for each in provider.documents} == {1}
    refused = {n for n in range(1, 201) if n % 20 == 0}
    cut = {n for n in range(1, 201) if n % 33 == 0} - refused
    assert set(got) == {number(n) for n in range(1, 201)} - {number(5), number(7)}
    sent = 200 - len(refused) - len(cut) - 2
    assert books(db, 1) == {
        "sent": sent, "errored": len(refused) + 1, "unknown": len(cut), "invalid": 1,
    }  # fmt: skip
    rows = db.execute(
        "SELECT recipient, state, error_code, error_sub_type FROM campaign_recipients"
        " WHERE state IN ('failed', 'invalid')"
    ).fetchall()
    found = {row[0]: tuple(row[1:]) for row in rows}
    assert found.pop(number(7)) == ("invalid", "suppressed", None)
    state, _, sub_type = found.pop(number(5))
    assert (state, sub_type.split()[0]) == ("failed", "5.3.4")
    assert found == {number(n): ("failed", "21211", "invalid") for n in refused}
    times.sort()
    for n, at in enumerate(times[:-RATE]):
        assert times[n + RATE] - at > 0.95


def test_single_numbers(system: System, tmp_path: Path) -> None:
    """By command, Python and SQL, unsigned; without a route nothing asks DNS for `sms`."""
    hop = system.hop(holding_at("MAIL"))
    with Provider() as provider:
        daemon = system.queued(
            shaping=shaping(tmp_path, provider), signing={"keys": [Keys(tmp_path).entry("e")]}
        )
        queuectl(daemon, "send", "--from", "shop@a.example", "--to", "+49 170 1234567",
                 "--text", "Grüße {} €", name=1)  # fmt: skip
        with pgmta.SyncClient(system.uri) as client:
            client.send(pgmta.Mail(sender="shop@a.example", to=["+49 (170) 123-4566"], subject="",
                                   body="Hello"))  # fmt: skip
        (told,) = system.ask("SELECT submit_mail('shop@a.example', '{+491701234568}', '', 'Hi')"
                             " AS id")  # fmt: skip
        system.ask("NOTIFY pgmta_queue")
        until(lambda: len(provider.documents) == 3)
        assert {each["to"]: each["text"] for each in provider.documents} == {
            "+491701234567": "Grüße {} €", "+491701234566": "Hello", "+491701234568": "Hi",
        }  # fmt: skip
        assert not any("signature" in each for each in provider.documents)
        system.wait_empty()
        (delivered,) = system.attempts("+491701234568")
        assert delivered["message_id"] == told["id"]
    daemon.stop()
    system.queued(hop)
    system.ask("SELECT submit_mail('a@a.example', '{+491701234569}', '', 'Hi', wake => true)")
    until(lambda: system.events("+491701234569") == ["failed"])
    (row,) = system.attempts("+491701234569")
    assert "no route takes telephone numbers" in row["reply"]
    assert hop.connections == 0


def test_what_can_not_be_sent(system: System, db: psycopg.Connection, tmp_path: Path) -> None:
    """A message without plain text asks no provider, and its DSN names the number."""
    hop = system.hop()
    with Provider() as provider:
        daemon = system.queued(hop, shaping=shaping(tmp_path, provider), bounces={"gather": 0})
        content = "From: a@a.example\r\nContent-Type: text/html\r\n\r\n<p>x</p>\r\n"
        db.execute("SELECT submit('a@a.example', '{+49 170 1234567}', %s, on_failed => 'bounce',"
                   " wake => true)", [content.encode()])  # fmt: skip
        (report,) = hop.wait_kept(1)
        assert b"\r\nFinal-Recipient: X-E164; +491701234567\r\n" in (report.content or b"")
        assert b"; 5.6.0 there is no plain text\r\n" in (report.content or b"")
        template = tmp_path / "page.html"
        template.write_text("---\nfrom: a@a.example\nsubject: x\n---\n<p>x</p>\n")
        queuectl(daemon, "template", "put", str(template))
        queuectl(daemon, "campaign", "create", "pages", "--template", "page",
                 "--credential", "twilio")  # fmt: skip
        (tmp_path / "list.csv").write_text("recipient\n+491701234567\ntel:+491701234567\n")
        output = queuectl(daemon, "campaign", "import", "pages", str(tmp_path / "list.csv"), code=1)
        assert "list.csv:2: +491701234567: the template has no plain text" in output
        assert "list.csv:3: 'tel:+491701234567' is no telephone number; write it" in output
        assert not provider.documents


@pytest.mark.parametrize(
    ("call", "argument", "reason"),
    [
        ("submit_mail('s@a.example', '{+491701234567,b@b.example}', 'x', 'y')",
         "recipients", "telephone numbers and mailboxes"),
        ("submit_mail('s@a.example', '{01701234567}', 'x', 'y')", "to", "not in E.164"),
        ("submit_mail('s@a.example', '{a@SMS}', 'x', 'y')", "to", "that of telephone numbers"),
        ("submit_mail('s@a.example', '{+491701234567}', 'x', NULL, '<p>')",
         "body", "there is no plain text"),
        ("submit_mail('s@a.example', '{+491701234567}', '', 'x', attachments => ARRAY[("
         "'a', 'text/plain', ''::bytea, NULL)]::submit_attachment[])",
         "attachments", "a telephone number gets none"),
        ("submit_mail('s@a.example', '{+491701234567}', 'Hi', 'x')",
         "subject", "a telephone number gets none"),
        ("submit_mail('s@a.example', '{+491701234567}', '', 'x', '<p>x</p>')",
         "html", "a telephone number gets none"),
        ("submit_mail('s@a.example', '{+491701234567}', '', 'x', reply_to => 'c@a.example')",
         "reply_to", "a telephone number gets none"),
        ("submit_mail('s@a.example', '{+491701234567}', '', 'x', headers => '{\"X-A\": \"b\"}')",
         "headers", "a telephone number gets none"),
        ("submit_mail('s@a.example', '{+491701234567}', '', ' ')", "body",
         "there is no plain text"),
        ("submit_mail('s@a.example', '{+49170x}', '', 'x')", "to", "not in E.164"),
        ("submit_mail('s@a.example', '{tel:+491701234567}', '', 'x')", "to", "not in E.164"),
        ("submit_mail('s@a.example', '{0049 170 1234567}', '', 'x')", "to", "not in E.164"),
        ("submit_mail('s@a.example', '{+٤٩١٧٠١٢٣٤٥٦٧}', '', 'x')", "to", "not in E.164"),
        ("submit_mail('+491701234567', '{b@b.example}', 'x', 'y')", "sender", ""),
        ("submit_mail('s@a.example', '{b@b.example}', 'x', 'y', \"from\" => '+491701234567')",
         "from", ""),
        ("submit_mail('s@a.example', '{b@b.example}', 'x', 'y', cc => '{+491701234567}')",
         "cc", ""),
        ("submit('+491701234567', '{b@b.example}', E'A: b\\r\\n\\r\\nx')", "sender", ""),
    ],
)  # fmt: skip
def test_bad_calls(template_db: psycopg.Connection, call: str, argument: str, reason: str) -> None:
    with pytest.raises(psycopg.Error) as caught:
        template_db.execute(f"SELECT {call}".encode())
    message = caught.value.diag.message_primary or ""
    assert message.startswith(f"{argument}: ")
    assert reason in message
