"""The commands submit, cancel and status."""

from __future__ import annotations

import json

import psycopg

from tests.support.queuectl import Command
from tests.support.rows import column, fetch

MAIL = b"""From: "The Shop" <shop@a.example>
To: One <one@b.example>, two@b.example
Bcc: three@b.example,
 four@b.example
Date: Tue, 24 Nov 2026 08:00:00 +0000
Message-ID: <1@a.example>
Subject: x

Hello.
"""


def test_a_file_is_submitted_with_the_recipients_of_its_header(
    db: psycopg.Connection, command: Command
) -> None:
    words = ("send", "--raw", "-", "-t", "--metadata", "order=7", "--once")
    done = command(*words, given=MAIL)
    assert done.exit_code == 0, done.stderr
    number = int(done.stdout)
    rows = db.execute("SELECT sender, recipient, metadata, once FROM queue ORDER BY id").fetchall()
    assert [row[1].partition("@")[0] for row in rows] == ["one", "two", "three", "four"]
    assert {row[0] for row in rows} == {"shop@a.example"}
    assert rows[0][2:] == ({"order": "7"}, True)
    (body, header) = fetch(db, "SELECT body, message_id_header FROM messages")
    without = MAIL.replace(b"Bcc: three@b.example,\n four@b.example\n", b"")
    assert (bytes(body), header) == (without.replace(b"\n", b"\r\n"), "<1@a.example>")

    states = json.loads(command("status", str(number), "--json").stdout)
    assert [row["state"] for row in states] == ["queued"] * 4
    assert command("cancel", str(number)).stdout == f"message {number}: stopped 4 recipients\n"
    assert column(db, "SELECT DISTINCT event FROM attempts") == ["cancelled"]
    shown = command("status", str(number))
    assert shown.stdout.count("cancelled") == 4
    assert column(db, "SELECT id FROM messages") == []


def test_a_key_gives_the_first_id_again(db: psycopg.Connection, command: Command) -> None:
    words = ("send", "--raw", "-", "--recipient", "a@b.example", "--key", "k")
    first, second = (command(*words, given=MAIL).stdout for _ in range(2))
    assert first == second
    other = command(*words, given=MAIL + b"more\n")
    assert (other.exit_code, other.stdout) == (2, "")
    assert other.stderr.startswith("error: key: ")
    assert column(db, "SELECT recipient FROM queue") == ["a@b.example"]


def test_a_mistake_is_named_and_nothing_is_stored(db: psycopg.Connection, command: Command) -> None:
    for words, content, reason in (
        ((), MAIL, "--recipient: name at least one"),
        (("--recipient", "a@b.example"), b"Subject: x\n\nx\n", "--sender"),
        (("--recipient", "a b"), MAIL, "error: recipients: "),
        (("--recipient", "a@b.example", "--priority", "10"), MAIL, "error: priority: "),
        (("--recipient", "a@b.example", "--metadata", "x"), MAIL, "expected key=value"),
        (("--recipient", "a@b.example"), b"From: a@b.example\n\n\0", "error: content: "),
        (("--recipient", "a@b.example", "--sender", "x@y.example"), b"", "error: content: "),
    ):
        done = command("send", "--raw", "-", *words, given=content)
        assert (done.exit_code, done.stdout) == (2, "")
        assert reason in done.stderr
    assert column(db, "SELECT id FROM messages") == []


def test_unknown_ids_and_options_are_named(command: Command) -> None:
    shown = command("status", "7")
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert "no message 7" in shown.stderr
    stopped = command("cancel", "7", "--json")
    assert (stopped.exit_code, json.loads(stopped.stdout)) == (1, [])
    assert stopped.stderr == (
        "error: message 7: id: there is no message with this id that this login may cancel. The"
        " id is the number that submit() returned, or that the client got with its 250\n"
    )
    raw = ("send", "--raw", "-")
    assert "mean" not in command(*raw, "--where", "x").stderr
    assert "Did you mean '--recipient'?" in command(*raw, "--recipiant", "x").stderr
