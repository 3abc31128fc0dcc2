"""Search for mail that waits and mail that is gone, by the command of operators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import Result

from pgmta.mail.received_field import trace_field
from queued.cli.options.queue_command import database_of
from tests.support.queuectl import queuectl
from tests.support.rows import message, row


def run(config: Path, *words: str) -> Result:
    return queuectl(config, "find", *words)


def found(config: Path, *words: str) -> list[tuple[Any, ...]]:
    rows = json.loads(run(config, *words, "--json").stdout)
    return [(row["message_id"], row["state"], row["recipient"]) for row in rows]


@pytest.fixture
def mail(db: psycopg.Connection) -> None:
    """Three messages: one waits, one is on hold, one has gone after a deferral; plus an old one."""
    db.execute("""
        INSERT INTO messages (id, size, trace, body, message_id_header)
        VALUES (1, 1, '', 'x', '<one@a.example>'), (2, 1, '', 'x', NULL);
        INSERT INTO queue (message_id, sender, recipient, domain, metadata, status, hold_reason)
        VALUES (1, 's@a.example', 'Bob@b.example', 'b.example', '{"order": "7"}', 'QUEUED', NULL),
            (2, '', 'eve@c.example', 'c.example', '{}', 'HOLD', 'ticket 9');
        INSERT INTO attempts (started_at, ended_at, row_id, message_id, lease_token, attempt, code,
            event, sender, recipient, domain, worker, host, command, enhanced, reply,
            message_id_header, metadata)
        SELECT now(), now() - age, row_id, message_id, 1, number, code, event, 's@a.example',
            recipient, split_part(recipient, '@', 2), '', '', '', '', 'words', header,
            metadata::jsonb
        FROM (VALUES
            (interval '2 min', 1, 1, 1, 450, 'deferred', 'Bob@b.example', '<one@a.example>', NULL),
            ('3 min', 90, 3, 1, 450, 'deferred', 'Bob@b.example', '<two@a.example>',
                '{"order": "8"}'),
            ('1 min', 90, 3, 2, 250, 'delivered', 'Bob@b.example', '<two@a.example>',
                '{"order": "8"}'),
            ('40 days', 91, 4, 1, 250, 'delivered', 'Bob@b.example', '<old@a.example>', NULL)
        ) AS entry (age, row_id, message_id, number, code, event, recipient, header, metadata)
    """)  # fmt: skip


@pytest.mark.usefixtures("mail")
def test_mail_is_found_where_it_is_now(config: Path) -> None:
    waits, gone = (1, "QUEUED", "Bob@b.example"), (3, "delivered", "Bob@b.example")
    assert found(config, "--recipient", "Bob@B.example") == [waits, gone]
    assert found(config, "--recipient", "bob@*") == [waits, gone]
    assert found(config, "--recipient", "BOB@b.example", "--message-id", "two@a.example") == [gone]
    assert found(config, "--recipient", "B_B@b.example") == []
    assert found(config, "--recipient", "Bob@b.example", "--since", "90d")[2][0] == 4
    assert found(config, "--recipient", "Bob@b.example", "--since", "2001-01-01")[2][0] == 4
    assert found(config, "--sender", "s@a.example", "--metadata", "order=8") == [gone]
    assert found(config, "--message-id", "one@a.example") == [waits]
    assert found(config, "--message-id", "<two@a.example>", "--message-id", "<one*") == [
        waits,
        gone,
    ]
    assert found(config, "--metadata", "order=7") == [waits]
    assert found(config, "--recipient", "eve@c.example") == [(2, "HOLD", "eve@c.example")]
    assert "ticket 9" in run(config, "--recipient", "eve@*").stdout
    assert len(found(config, "--recipient", "*", "--limit", "1", "--since", "90d")) == 2


@pytest.mark.usefixtures("mail")
def test_mail_is_found_by_its_tenant(config: Path, db: psycopg.Connection) -> None:
    db.execute("UPDATE queue SET tenant = 'shop' WHERE message_id = 2")
    db.execute("UPDATE attempts SET tenant = 'shop' WHERE row_id = 90")
    waits, gone = (2, "HOLD", "eve@c.example"), (3, "delivered", "Bob@b.example")
    assert found(config, "--tenant", "shop") == [waits, gone]
    assert found(config, "--tenant", "S*p", "--sender", "") == [waits]


@pytest.mark.usefixtures("mail")
def test_mail_is_found_by_the_domain_of_its_recipient(config: Path) -> None:
    in_c = found(config, "--domain", "C.example")
    assert in_c
    assert {recipient.rpartition("@")[2] for *_, recipient in in_c} == {"c.example"}
    assert set(in_c) < set(found(config, "--domain", "*.example"))
    assert {state for _, state, _ in found(config, "--domain", "b.example")} > {"delivered"}
    assert found(config, "--domain", "c.example", "--sender", "x") == []


@pytest.mark.usefixtures("mail")
def test_mail_is_found_and_held_by_who_submitted_it(config: Path, db: psycopg.Connection) -> None:
    db.execute("UPDATE messages SET submitted_by = 'key:shop' WHERE id = 1")
    db.execute("UPDATE attempts SET submitted_by = 'key:shop' WHERE row_id = 90")
    waits, gone = (1, "QUEUED", "Bob@b.example"), (3, "delivered", "Bob@b.example")
    assert found(config, "--submitted-by", "key:shop") == [waits, gone]
    assert found(config, "--submitted-by", "key:*", "--sender", "x") == []
    chosen = ("--submitted-by", "key:shop")
    listed = queuectl(config, "list", "--json", *chosen)
    assert [each["message_id"] for each in json.loads(listed.stdout)] == [1]
    held = queuectl(config, "hold", "--reason", "leaked", "--yes", *chosen)
    assert (held.exit_code, held.stdout) == (0, "hold: 1 rows\n"), held.output
    assert found(config, "--submitted-by", "key:shop")[0][1] == "HOLD"


@pytest.mark.usefixtures("mail")
def test_mail_is_found_by_its_client(config: Path, db: psycopg.Connection) -> None:
    trace = trace_field("me.example", "192.0.2.7", "mx.example", "ESMTP") + "1;"
    db.execute("UPDATE messages SET trace = %s WHERE id = 1", (trace,))
    db.execute("UPDATE attempts SET client = '2001:db8::7' WHERE row_id = 90")
    waits, gone = (1, "QUEUED", "Bob@b.example"), (3, "delivered", "Bob@b.example")
    assert found(config, "--client", "192.0.2.7") == [waits]
    assert found(config, "--client", "192.0.2.0/24", "--client", "2001:DB8::/32") == [waits, gone]
    assert found(config, "--client", "192.0.2.8") == []
    assert found(config, "--client", "192.0.2.7", "--sender", "x") == []
    assert "  192.0.2.7  " in run(config, "--client", "192.0.2.7").stdout
    refused = run(config, "--client", "192.0.2.7' OR true")
    assert (refused.exit_code, "no IP address" in refused.stderr) == (2, True)


def test_a_number_is_found_with_separators(config: Path, db: psycopg.Connection) -> None:
    row(db, message(db, 5), recipient="+491701234567", domain="sms")
    assert found(config, "--recipient", "+49 170 1234567") == [(5, "QUEUED", "+491701234567")]


def test_nothing_found_and_mistakes(config: Path) -> None:
    nothing = run(config, "--recipient", "x' OR true --@b.example")
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (1, "", "error: nothing found\n")
    assert json.loads(run(config, "--sender", "x", "--json").stdout) == []
    for words, reason in (
        ((), "find needs --recipient"),
        (("--metadata", "x"), "expected key=value"),
        (("--sender", "a", "--since", "soon"), "--since 'soon': it is no time"),
    ):
        result = run(config, *words)
        assert result.exit_code == 2, result.output
        assert reason in result.stderr


@pytest.mark.usefixtures("mail")
def test_mail_is_found_by_the_sender_that_hosts_saw(config: Path) -> None:
    route = {"to": "mx", "rewrite": {"sender": "bounce+{id}-{hash}@bounces.example"}}
    shaping = {"verp": {"keys": ["a key that operators can't read"]}, "routes": [route]}
    (config.parent / "shaping.yaml").write_text(yaml.safe_dump(shaping))
    config.write_text(f"{config.read_text()}\nshaping: shaping.yaml\n")
    left = "BOUNCE+3-2q-03lbjfmfq7iob3hp@Bounces.example"
    assert found(config, "--verp", left) == [(3, "delivered", "Bob@b.example")]
    waits = (1, "QUEUED", "Bob@b.example")
    with psycopg.connect(database_of(config)) as db:
        number = db.execute("SELECT id FROM queue WHERE message_id = 1").fetchone()
    assert number
    digit = "0123456789abcdefghijklmnopqrstuv"[number[0]]
    address = f"<bounce+1-{digit}-03lbjfmfq7iob3hp@bounces.example>"
    assert found(config, "--verp", address, "--verp", left)[0] == waits
    assert found(config, "--verp", address, "--recipient", "eve@c.example") == []
    assert found(config, "--verp", left.replace("3-2q", "v" * 30 + "-1")) == []
    result = run(config, "--verp", "news@bounces.example")
    assert result.exit_code == 2
    assert "makes addresses such as 'news@bounces.example'" in result.stderr
