"""The commands submit, cancel and status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner, Result

from queued.cli.queuectl import main
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


@pytest.fixture
def config(database: str, tmp_path: Path) -> Path:
    """A queued.yaml for the test's database."""
    path = tmp_path / "queued.yaml"
    path.write_text(yaml.safe_dump({"environment": {"database": {"uri": database}}}))
    return path


def run(config: Path, command: str, *words: str, content: bytes = MAIL) -> Result:
    return CliRunner().invoke(main, [command, "-c", str(config), *words], input=content)


def test_a_file_is_submitted_with_the_recipients_of_its_header(
    config: Path, db: psycopg.Connection
) -> None:
    done = run(config, "send", "--raw", "-", "-t", "--metadata", "order=7", "--once")
    assert done.exit_code == 0, done.stderr
    number = int(done.stdout)
    rows = db.execute("SELECT sender, recipient, metadata, once FROM queue ORDER BY id").fetchall()
    assert [row[1].partition("@")[0] for row in rows] == ["one", "two", "three", "four"]
    assert {row[0] for row in rows} == {"shop@a.example"}
    assert rows[0][2:] == ({"order": "7"}, True)
    (body, header) = fetch(db, "SELECT body, message_id_header FROM messages")
    without = MAIL.replace(b"Bcc: three@b.example,\n four@b.example\n", b"")
    assert (bytes(body), header) == (without.replace(b"\n", b"\r\n"), "<1@a.example>")

    states = json.loads(run(config, "status", str(number), "--json").stdout)
    assert [row["state"] for row in states] == ["queued"] * 4
    assert run(config, "cancel", str(number)).stdout == f"message {number}: stopped 4 recipients\n"
    assert column(db, "SELECT DISTINCT event FROM attempts") == ["cancelled"]
    shown = run(config, "status", str(number))
    assert shown.stdout.count("cancelled") == 4
    assert column(db, "SELECT id FROM messages") == []


def test_a_key_gives_the_first_id_again(config: Path, db: psycopg.Connection) -> None:
    words = ("send", "--raw", "-", "--recipient", "a@b.example", "--key", "k")
    first, second = (run(config, *words).stdout for _ in range(2))
    assert first == second
    other = run(config, *words, content=MAIL + b"more\n")
    assert (other.exit_code, other.stdout) == (2, "")
    assert other.stderr.startswith("error: key: ")
    assert column(db, "SELECT recipient FROM queue") == ["a@b.example"]


@pytest.mark.parametrize(
    ("words", "content", "reason"),
    [
        ((), MAIL, "--recipient: name at least one"),
        (("--recipient", "a@b.example"), b"Subject: x\n\nx\n", "--sender"),
        (("--recipient", "a b"), MAIL, "error: recipients: "),
        (("--recipient", "a@b.example", "--priority", "10"), MAIL, "error: priority: "),
        (("--recipient", "a@b.example", "--metadata", "x"), MAIL, "expected key=value"),
        (("--recipient", "a@b.example"), b"From: a@b.example\n\n\0", "error: content: "),
        (("--recipient", "a@b.example", "--sender", "x@y.example"), b"", "error: content: "),
    ],
)
def test_a_mistake_is_named_and_nothing_is_stored(
    config: Path, db: psycopg.Connection, words: tuple[str, ...], content: bytes, reason: str
) -> None:
    done = run(config, "send", "--raw", "-", *words, content=content)
    assert (done.exit_code, done.stdout) == (2, "")
    assert reason in done.stderr
    assert column(db, "SELECT id FROM messages") == []


def test_unknown_ids_are_named(config: Path) -> None:
    shown = run(config, "status", "7")
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert "no message 7" in shown.stderr
    stopped: Any = run(config, "cancel", "7", "--json")
    assert (stopped.exit_code, json.loads(stopped.stdout)) == (1, [])
    assert "message 7" in stopped.stderr


def test_an_unknown_id_is_told_to_whoever_cancels(config: Path, db: psycopg.Connection) -> None:
    done = run(config, "cancel", "99999", "--reason", "x")
    assert done.exit_code == 1
    assert done.stderr == (
        "error: message 99999: id: there is no message with this id that this login may cancel. The"
        " id is the number that submit() returned, or that the client got with its 250\n"
    )


def test_only_a_near_option_is_suggested(config: Path) -> None:
    assert "mean" not in run(config, "send", "--raw", "-", "--where", "x").stderr
    assert (
        "Did you mean '--recipient'?"
        in run(config, "send", "--raw", "-", "--recipiant", "x").stderr
    )
