"""Mail of programs that fails: its state and the log say so, and none waits on HOLD unasked."""

from __future__ import annotations

import json

from pgmta import Mail, RawMail, SyncClient
from tests.scenarios.test_client import answer
from tests.support.system import System
from tests.support.waiting import until

REPLY = (550, "5.1.1 no")


def test_what_status_and_log_say_of_failed_mail(system: System) -> None:
    """By each way in; HOLD is a wish."""
    content = "Subject: x\r\n\r\nx\r\n"
    system.ask(
        "INSERT INTO templates (tenant, name, version, sender, from_field, subject, body, words)"
        " VALUES ('', 't', 1, 's@a.example', 's@a.example', 'x', 'x', '{}')"
    )
    many = [
        {"sender": "s@a.example", "to": ["bad@b.example"], "subject": "x", "body": "x"},
        {"sender": "s@a.example", "to": ["Bad <bad@b.example>"], "subject": "x", "body": "x",
         "metadata": {"a": {"b": 1}}},
        {"sender": "s@a.example", "recipients": ["bad@b.example"],
         "content": "U3ViamVjdDogeA0KDQp4DQo="},
    ]  # fmt: skip
    calls: list[tuple[str, object]] = [
        ("submit('s@a.example', '{bad@b.example}', %s)", content.encode()),
        ("submit_mail('s@a.example', '{bad@b.example}', %s, 'x')", "x"),
        ("submit_template('t', %s, '{}')", "bad@b.example"),
        ("unnest((submit_mails(%s)).ids)", json.dumps(many)),
        ("unnest((submit_mails(%s)).ids)", json.dumps(many[:1])),
    ]
    found = [system.ask(f"SELECT {call} AS id", value) for call, value in calls]
    ids = [row["id"] for rows in found for row in rows]
    with SyncClient(system.uri) as client:
        ids.append(
            client.send(Mail(sender="s@a.example", to=["bad@b.example"], subject="x", body="x"))
        )
        ids.append(client.send(RawMail("s@a.example", ["bad@b.example"], content.encode())))
        wish = client.send(
            RawMail("s@a.example", ["bad@b.example"], content.encode(), on_failed="hold")
        )
        system.queued(system.hop(answer))
        states = client.wait([*ids, wish])
        assert len(states) == len(ids) + 1 == 10
    for rows in states.values():
        assert [(row.state, row.attempts, row.code, row.reply) for row in rows] == [
            ("failed", 1, *REPLY)
        ]
    until(lambda: len(system.queue()) == 1)
    [held] = system.queue()
    assert (held["message_id"], held["status"]) == (wish, "HOLD")
    assert [row["id"] for row in system.ask("SELECT id FROM messages")] == [wish]
    logged = system.ask(
        "SELECT message_id, code, reply FROM attempt_history"
        " WHERE event = 'failed' AND submitted_by IS NOT NULL ORDER BY message_id"
    )
    assert [tuple(row.values()) for row in logged] == [
        (each, *REPLY) for each in sorted([*ids, wish])
    ]
