"""Rows and templates that were broken by hand: each goes on hold with its reason, others leave."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner

from queued.cli.queuectl import main as queuectl
from tests.scenarios.test_composed import ATTACHED, SOURCE, put_template
from tests.support.system import System

SECRET = "s3cr3t-4711"
GONE = "5.3.0 its content is not in the database"

# name: the columns of messages that are set, and the reason without its code
PARTS: dict[str, tuple[str, str]] = {
    "number": ("params = '7'", "params is no object"),
    "list": ("params = '[\"%(secret)s\"]'", "params is no object"),
    "deep": (
        "params = ('{\"to\": ' || repeat('[', 5000) || repeat(']', 5000) || '}')::jsonb",
        "",
    ),
    "from": ("params = params - 'from'", "from: it is missing"),
    "from_list": ('params = params || \'{"from": ["%(secret)s"]}\'', "from: there is no pair"),
    "to": ('params = params || \'{"to": "%(secret)s"}\'', "to: it is no list of pairs"),
    "address": (
        'params = params || \'{"to": [["%(secret)s", "%(secret)s"]]}\'',
        "to: an address is malformed",
    ),
    "subject": ("params = params || '{\"subject\": true}'", "subject: it is no text"),
    "line_end": (
        'params = params || \'{"subject": "%(secret)s\\r\\nBcc: x@b.example"}\'',
        "subject: it has a line end",
    ),
    "body": ('params = params || \'{"body": {"%(secret)s": 1}}\'', "body: it is no text"),
    "html": ('params = params || \'{"html": ["%(secret)s"]}\'', "html: it is no text"),
    "headers": ('params = params || \'{"headers": "%(secret)s"}\'', "headers: it is no object"),
    "field": (
        'params = params || \'{"headers": {"X-A": {"a": "%(secret)s"}}}\'',
        "headers: X-A is no text",
    ),
    "reserved": (
        'params = params || \'{"headers": {"Bcc": "%(secret)s"}}\'',
        "headers: Bcc is reserved",
    ),
    "key": ("params = params || '{\"%(secret)s\": 1}'", "params: 1 keys are unknown"),
    "tail": ('params = params || \'{"tail": "%(secret)s"}\'', "tail: it is n"),
    "no_tail": ("params = params - 'tail'", "the stored octets are not its attachments"),
    "other_tail": (
        'params = params || \'{"tail": "related"}\'',
        "the stored octets are not its attachments",
    ),
    "no_html": ("params = params - 'html'", "tail: it has pictures, and there is no html"),
    "body_gone": ("body = '', chunks = 0", "its attachments are not in the database"),
    "no_id": ("message_id_header = NULL", "the Message-ID is not one that pgmta draws"),
    "other_id": ("message_id_header = '<1.2@a.example>'", "the stored octets are not"),
    "no_template": ("template_id = 4711", "template 4711: there is no such template"),
    "template": ("template_id = 1", "words is no object"),
}
WORDS: dict[str, tuple[str, str]] = {
    "words": ('params = params || \'{"words": "%(secret)s"}\'', "words is no object"),
    "no_words": ("params = params - 'words'", "words is no object"),
    "missing": ("params = params #- '{words,code}'", "the word code is missing"),
    "unknown": (
        "params = jsonb_set(params, '{words,codes}', '\"%(secret)s\"')",
        "the word codes is not in the template; did you mean code?",
    ),
    "object": (
        "params = jsonb_set(params, '{words,code}', '{\"%(secret)s\": 1}')",
        "the word code is an object",
    ),
    "null": ("params = jsonb_set(params, '{words,code}', 'null')", "the word code is null"),
    "injected": (
        "params = jsonb_set(params, '{words,name}', '\"%(secret)s\\r\\nBcc: x@b.example\"')",
        "the word name has a line end",
    ),
    "recipient": ('params = params || \'{"to": {"%(secret)s": 1}}\'', "to: it is no list"),
    "template_gone": ("template_id = 99", "template 99: there is no such template"),
    "not_compiled": (
        "template_id = (SELECT id FROM templates WHERE name = 'bad')",
        "template 2: body, line 2: {{ begins a word",
    ),
    "template_none": ("template_id = NULL", "params: 1 keys are unknown"),
}


def submit_all(db: psycopg.Connection[Any]) -> None:
    """One mail of each case, with each on_failed in turn, among 200 good ones."""
    ends = itertools.cycle(("remove", "bounce", "hold"))
    words = f'{{"shop": "{SECRET}", "name": "{SECRET}", "code": "{SECRET}"}}'
    for name, (change, _) in {**PARTS, **WORDS, "chunks_gone": ("chunks = chunks", "")}.items():
        if name in WORDS:
            call = "submit_template('code', %s, %s, on_failed => %s)"
            given = (f"{name}@b.example", words, next(ends))
        else:
            call = (
                "submit_mail('shop@a.example', ARRAY[%s], 'x', %s, '<p>x</p>', on_failed => %s,"
                f" attachments => {ATTACHED.replace('%', '%%')})"
            )
            given = (f"{name}@b.example", SECRET, next(ends))
        (number,) = db.execute(f"SELECT {call}".encode(), given).fetchone() or (0,)
        statement = change.replace("%(secret)s", SECRET)
        db.execute(f"UPDATE messages SET {statement} WHERE id = {number}".encode())
        if name in ("chunks_gone", "body_gone"):
            db.execute("DELETE FROM message_chunks WHERE message_id = %s", (number,))
    db.execute(
        "SELECT CASE n %% 3 WHEN 0 THEN submit_template('code', 'g' || n || '@b.example', %s)"
        " WHEN 1 THEN submit_mail('shop@a.example', ARRAY['g' || n || '@b.example'], 'x', 'x')"
        " ELSE submit('shop@a.example', ARRAY['g' || n || '@b.example'],"
        "     convert_to(E'Subject: x\\r\\n\\r\\nx\\r\\n', 'UTF8')) END"
        " FROM generate_series(1, 200) AS n", (words,),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("inline", ["10MB", "1B"])
def test_each_is_held_with_its_reason(system: System, tmp_path: Path, inline: str) -> None:
    config = tmp_path / "queuectl.yaml"
    config.write_text(yaml.safe_dump({"environment": {"database": {"uri": system.uri}}}))
    hop = system.hop()
    with psycopg.connect(system.uri, autocommit=True) as db:
        put_template(db, "code")
        db.execute(
            "INSERT INTO templates (name, version, sender, from_field, subject, body)"
            " VALUES ('bad', 1, 'shop@a.example', 'shop@a.example', 'x', E'x\\n{{x')"
        )
        with db.transaction():  # one claim
            submit_all(db)
    daemon = system.queued(hop, delivery={"inline": inline}, bounces={"gather": "0s"})
    rows = system.wait_status(**dict.fromkeys((*PARTS, *WORDS, "chunks_gone"), "HOLD"))
    assert hop.deliveries() == {f"g{n}@b.example": 1 for n in range(1, 201)}
    for name, (_, reason) in {**PARTS, **WORDS}.items():
        said = rows[name]["last_reply"]
        assert said.startswith(f"5.6.0 it can't be composed: {reason}"), (name, said)
        assert rows[name]["attempts"] == 1
    assert rows["chunks_gone"]["last_reply"] == GONE
    held = {row["recipient"]: str(row) for row in rows.values()}
    assert not [name for name, row in held.items() if SECRET in row]
    assert not [each for each in system.attempts() if SECRET in str(each)]
    assert SECRET not in daemon.story()

    def run(*words: str) -> str:
        done = CliRunner().invoke(queuectl, [*words, "-c", str(config)])
        assert done.exit_code == 0, (words, done.output)
        return done.output

    for name, row in rows.items():
        shown = run("show", str(row["message_id"]))
        assert SECRET not in shown, name
        assert SECRET not in run("explain", str(row["message_id"])), name
        run("show", str(row["message_id"]), "--params")
    # an operator may end them: each sender gets a DSN, whatever is broken
    run("bounce", "--status", "hold", "--recipient", "*", "--reason", "not to be mended", "--yes")
    system.wait_empty()
    dsns = [t.content or b"" for t in hop.kept if t.recipients == [SOURCE.sender]]
    named = b"".join(dsns)
    assert [name for name in held if name.encode() not in named] == []
    assert SECRET.encode() not in named
