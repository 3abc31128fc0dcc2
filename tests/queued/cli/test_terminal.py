"""Output of commands and logs cannot control a terminal, after any text from peers."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import psycopg
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import queued
from pgmta.command import print_json, print_table, reporting
from pgmta.errors import PgmtaError
from pgmta.mail.text import json_escaped, printable, printable_lines
from queued.cli.queuectl import main
from tests.support.queuectl import Command
from tests.support.rows import attempt, message, row

UNSAFE = "\x00\x07\x1b\x7f\x85\x9b\xad\u061c\u200b\u200e\u202e\u2028\u2029\u2066\ufeff\U000e0041"
HOSTILE = f"x{UNSAFE[1:]}\r\ny"
KINDS = ("Cc", "Cf", "Cs", "Zl", "Zp")


def safe(text: str, but: str = "\n") -> bool:
    return not any(unicodedata.category(char) in KINDS and char not in but for char in text)


def test_every_unsafe_character_is_replaced_and_no_other() -> None:
    every = [chr(number) for number in range(sys.maxunicode + 1)]
    expected = ["\ufffd" if unicodedata.category(char) in KINDS else char for char in every]
    assert printable("".join(every)) == "".join(expected)
    assert printable_lines("a\nb\r\n") == "a\nb\ufffd\n"


values = st.recursive(
    st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v), max_leaves=9
)


@given(values)
def test_json_keeps_its_meaning(value: Any) -> None:
    for indent in (None, 2):
        document = json_escaped(json.dumps(value, ensure_ascii=False, indent=indent))
        assert json.loads(document) == value
        assert safe(document)


def test_all_output_goes_through_one_place() -> None:
    root = Path(queued.__file__).parent
    found = [
        path.name
        for path in itertools.chain(
            *((root.parent / name).rglob("*.py") for name in ("pgmta", "queued", "smtpd"))
        )
        # a command of the standard library only, and a child of the sink that answers its parent
        if "sendmail" not in path.parts
        and path.name != "dissection.py"
        and re.search(r"click\.(echo|secho)\(|(?<![\w.])print\(|stdout\.write", path.read_text())
    ]
    assert sorted(found) == ["command.py", "error_lines.py", "owner.py"]  # the others import little


def run(command: click.Command, *arguments: str) -> str:
    result = CliRunner().invoke(command, arguments)
    return result.output


def failing(error: Exception) -> click.Command:
    def command() -> None:
        raise error

    return click.command()(reporting(command))


@pytest.mark.parametrize("kind", [PgmtaError, OSError, psycopg.DataError, RuntimeError, KeyError])
def test_errors_are_printable(kind: Callable[[str], Exception]) -> None:
    output = run(failing(kind(HOSTILE)))
    assert "\ufffd" in output or "\\x1b" in output
    assert safe(output), output


def test_an_error_of_postgresql_keeps_its_hint_and_not_its_statement(
    db: psycopg.Connection,
) -> None:
    words = "USING DETAIL = 'one', HINT = 'two'"
    with pytest.raises(psycopg.Error) as caught:
        db.execute(f"DO $$ BEGIN RAISE EXCEPTION 'no' {words}; END $$")
    assert "CONTEXT" in str(caught.value)
    assert run(failing(caught.value)) == "error: no\nDETAIL:  one\nHINT:  two\n"


def test_usage_errors_are_printable() -> None:
    for arguments in (
        [HOSTILE], [f"--{HOSTILE}"], ["list", f"--{HOSTILE}"], ["list", "--status", HOSTILE],
        ["database", "partition", HOSTILE],
        ["database", "partition", "add", "x", "--partid", f'"{HOSTILE}'],
    ):  # fmt: skip
        output = run(main, *arguments)
        assert "rror" in output
        assert safe(output), output


def test_tables_and_json_are_printable() -> None:
    @click.command()
    def command() -> None:
        print_table([f"A{HOSTILE}"], [[HOSTILE], [{"a": HOSTILE}], [None]])
        print_json({HOSTILE: HOSTILE})

    output = run(command)
    assert safe(output), output
    assert json.loads(output[output.index("\n{\n") :]) == {HOSTILE: HOSTILE}


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_every_command_on_rows_of_a_hostile_peer(
    db: psycopg.Connection, command: Command, as_json: list[str]
) -> None:
    number = message(db, 1)
    db.execute(
        "UPDATE messages SET body = %s, trace = %s",
        (f"From: {HOSTILE}\r\nSubject: {HOSTILE}\r\n\r\n".encode(), f"Received: {HOSTILE}\r\n"),
    )
    for status in ("HOLD", "QUEUED"):
        row(
            db, number, status=status, last_reply=HOSTILE, metadata={"a": HOSTILE, HOSTILE: "b"},
            hold_reason=HOSTILE, held_by=HOSTILE,
            **dict.fromkeys(("sender", "recipient", "domain") if status == "HOLD" else (), HOSTILE),
        )  # fmt: skip
    texts = ("sender", "recipient", "domain", "worker", "host", "command", "enhanced", "reply")
    attempt(db, code=550, event="failed", **dict.fromkeys(texts, HOSTILE))
    db.execute(
        "INSERT INTO workers (owner, name, action, condition, reach) VALUES (%(t)s, %(t)s,"
        " 'deliver', 'sender <> ''\x1b\x1b'' AND true', 'true')",
        {"t": HOSTILE},
    )
    db.execute(
        "INSERT INTO rules (name, action, condition, reason, origin, created_by)"
        " VALUES (%(t)s, 'hold', 'true', %(t)s, 'worker', %(t)s)",
        {"t": HOSTILE},
    )
    name = '"queue_\x1b[2J"'
    db.execute(f"CREATE TABLE {name} PARTITION OF queue_def FOR VALUES IN ('\x1b')".encode())
    db.execute(f'CREATE TABLE {name[:-1]}x" (LIKE queue)'.encode())
    seen = ""
    for words in (
        ["show", "1"], ["explain", "1"], ["list"], ["list", "--count", "--by", "sender"],
        ["list", "--count", "--by", f"metadata.{HOSTILE}"],
        ["list", "--count", "--by", "metadata.a"], ["workers"],
        ["rule", "list"], ["database", "partition", "list"], ["database", "partition", "check"],
        ["hold", "--all", "--dry-run", "--reason", HOSTILE], ["list", "--where", "\x1b[2J"],
        ["list", "--age", HOSTILE], ["list", "--count", "--by", HOSTILE],
    ):  # fmt: skip
        result = command(*words, *as_json)
        assert result.output, words
        assert safe(result.output), (words, result.output)
        if as_json and not result.exit_code:
            json.loads(result.stdout)
            seen += result.stdout
    assert not as_json or json.dumps(HOSTILE)[1:-1] in json_escaped(seen)
    removed = command("rule", "remove", f"no{HOSTILE}")
    assert "no rule" in removed.output
    assert safe(removed.output)


LOGGING = """
import logging, sys
from pgmta.config.environment import Log
from pgmta.logs import configure, get
hostile = sys.argv[2].encode().decode("unicode-escape")
configure(Log(format=sys.argv[1]), daemon="test")
log = get("part")
log.warning("said", reply=hostile, many=[hostile], none=None, number=1.5, true=True)
log.warning(hostile)
try:
    raise RuntimeError(hostile)
except RuntimeError:
    log.exception("failed", extra=RuntimeError(hostile))
    logging.getLogger("asyncio").exception(hostile)
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_logs_are_printable(form: str) -> None:
    hostile = HOSTILE.encode("unicode-escape").decode()
    done = subprocess.run(
        [sys.executable, "-c", LOGGING, form, hostile], capture_output=True, check=True
    )
    text = done.stderr.decode()
    assert safe(text), text
    if form == "text":
        assert "none=None" in text
        assert "number=1.5" in text
        assert text.count("Traceback") == 2
        assert "\n  File" in text
    else:
        first = json.loads(text.splitlines()[0])
        assert first["reply"] == HOSTILE


def test_a_long_value_is_whole_and_widens_no_other_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(["A", "B"], [["x" * 5000, "y" * 1000], ["short", "z"]])
    header, long, short = capsys.readouterr().out.splitlines()
    assert long == f"{'x' * 5000}  {'y' * 1000}"
    assert max(len(header), len(short)) < 200


def test_a_reader_that_ends_gets_no_error() -> None:
    code = """
import click
from pgmta.command import print_line, reporting
@click.command()
@reporting
def main():
    while True:
        print_line("row")
main()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == b"row\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141  # as after SIGPIPE
