"""Content that a registered editor makes is signed, repeated, shown, and returned in a DSN."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import yaml
from click.testing import CliRunner
from psycopg.rows import dict_row

from pgmta.postgres.notify import NOTIFY
from pgmta.service import Signals
from queued.cli.queuectl import main
from queued.config import QueuedConfig
from queued.daemon.daemon import Daemon
from queued.rewriting.edited import EDITORS
from tests.exercises.stage.words import fill
from tests.support.dkim import Keys
from tests.support.nexthop import Do, NextHop, Transaction
from tests.support.rows import row
from tests.support.waiting import until

STORED = b"From: news@a.example\r\nSubject: For {name}\r\n\r\nHello {name}, {sum} are due.\r\n"
SIGNATURE = re.compile(rb"DKIM-Signature:[^\r\n]*\r\n(?:[ \t][^\r\n]*\r\n)*")


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    EDITORS.append(fill)
    yield
    EDITORS.remove(fill)


def put(db: psycopg.Connection, number: int, recipient: str, **words: object) -> None:
    """A row with words, and the message of its number."""
    db.execute(
        "INSERT INTO messages (id, size, trace, body, origin)"
        " VALUES (%s, %s, 'T: t\r\n', %s, 'sql') ON CONFLICT DO NOTHING",
        (number, len(STORED), STORED),
    )
    row(db, number, sender="news@a.example", recipient=recipient, metadata={"words": words},
        on_failed="bounce")  # fmt: skip


class Script:
    """Defers the first content for ann, refuses bob, and takes everything else."""

    def __init__(self) -> None:
        self.deferred = False

    def __call__(self, point: str, line: str, transaction: Transaction | None) -> Do | None:
        if point == "RCPT" and "bob@" in line:
            return Do(line="550 5.1.1 no")
        if point == "end of data" and transaction and "ann@b.example" in transaction.recipients:
            first, self.deferred = not self.deferred, True
            return Do(line="451 4.3.0 later") if first else None
        return None


def follow(uri: str, hop: NextHop, keys: Keys, path: Path) -> None:
    """Send the message to ann twice, to bob in vain, and to carl, who lacks a word."""
    with psycopg.connect(uri, autocommit=True, row_factory=dict_row) as db:
        until(lambda: db.execute("SELECT FROM workers").fetchall())
        with psycopg.connect(uri, autocommit=True) as writer:
            for name in ("ann", "bob"):
                put(writer, 901, f"{name}@b.example", name=name.title(), sum=7)
            put(writer, 902, "carl@b.example", name="Carl")
        shown = CliRunner().invoke(main, ["show", "901", "-c", str(path)]).stdout
        db.execute(NOTIFY)
        until(lambda: not db.execute("SELECT FROM queue").fetchall())
        log = db.execute("SELECT * FROM attempts WHERE recipient LIKE 'carl%'").fetchall()
    assert "Subject: For Ann" in shown
    assert "  Hello Ann, 7 are due.\n" in shown
    assert "  Hello Bob, 7 are due.\n" in shown
    sent = [t.content for t in hop.transactions if t.content and t.recipients == ["ann@b.example"]]
    assert len(sent) == 2
    for content in sent:
        assert b"Subject: For Ann\r\n\r\nHello Ann, 7 are due.\r\n" in content
        assert keys.signers(content) == ["a.example/e"]
    first, second = (SIGNATURE.sub(b"", content) for content in sent)
    assert first == second, "but for the time of the signature"
    assert [(each["event"], each["reply"]) for each in log] == [
        ("failed", "5.6.0 content can't be edited: there is no word sum")
    ]
    dsns = [t.content or b"" for t in hop.kept if t.recipients == ["news@a.example"]]
    assert len(dsns) == 2
    (bob,) = [dsn for dsn in dsns if b"bob@b.example" in dsn]
    assert b"Subject: For Bob\r\n\r\nHello Bob, 7 are due.\r\n" in bob
    (carl,) = [dsn for dsn in dsns if b"carl@b.example" in dsn]
    assert b"Subject: For {name}\r\n" in carl, "as it is stored"


@pytest.mark.parametrize("inline", ["1MB", "1B"])
async def test_an_edited_body(database: str, tmp_path: Path, inline: str) -> None:
    keys = Keys(tmp_path)
    path = tmp_path / "queued.yaml"
    path.write_text(yaml.safe_dump({"environment": {"database": {"uri": database}}}))
    with NextHop(Script()) as hop:
        config = QueuedConfig.model_validate(
            {
                "routes": {"*": hop.target},
                "delivery": {"inline": inline},
                "signing": {"keys": [keys.entry("e")]},
                "retry": {"intervals": ["0.2s"]},
                "bounces": {"gather": "0s"},
            }
        )
        signals = Signals()
        running = asyncio.create_task(Daemon(config, database, lambda: config, signals).run())
        await asyncio.to_thread(follow, database, hop, keys, path)
        signals.stop.set()
        await running
