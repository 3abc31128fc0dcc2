"""A stage that is in the list puts rows off, and operators see why."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
import pytest
import yaml
from click.testing import CliRunner
from psycopg.rows import dict_row

from pgmta.postgres.notify import NOTIFY
from pgmta.service import Signals
from queued.cli.queuectl import main
from queued.config import whole_model
from queued.daemon.daemon import Daemon
from queued.outgoing.stages import STAGES
from tests.exercises.postpone.slow_sender import SENDER, SlowSender
from tests.support.nexthop import NextHop
from tests.support.rows import message, row
from tests.support.waiting import until

PUT_OFF = "SELECT * FROM queue WHERE status = 'QUEUED' AND next_attempt > now() ORDER BY recipient"


def follow(uri: str, config: Path) -> None:
    """Send mail of this sender and of another one, and see what operators see."""
    connected = psycopg.connect(uri, autocommit=True, row_factory=dict_row)
    with connected as db, psycopg.connect(uri, autocommit=True) as writer:
        until(lambda: db.execute("SELECT FROM workers").fetchall())
        message(writer, 1)
        for name in ("x", "y"):
            row(writer, 1, sender=SENDER, recipient=f"{name}@b.example", attempts=1)
        row(writer, 1, recipient="z@b.example")
        writer.execute(NOTIFY)
        until(lambda: len(db.execute(PUT_OFF).fetchall()) == 2)
        waiting = db.execute(PUT_OFF).fetchall()
        said = {name: CliRunner().invoke(main, [name, "1", "-c", str(config)]).stdout
                for name in ("explain", "show")}  # fmt: skip
        until(lambda: not db.execute("SELECT FROM queue").fetchall())
        log = db.execute("SELECT * FROM attempts ORDER BY recipient").fetchall()
    time = f"{waiting[0]['next_attempt']:%Y-%m-%d %H:%M:%S}"
    assert f"put off until {time}" in said["explain"]
    assert "x@b.example: QUEUED, 1 attempt\n" in said["explain"]
    assert time in said["show"]
    for text in said.values():
        assert f"mail of {SENDER} waits for 2 s" in text
    ended = [(each["recipient"], each["event"], each["attempt"]) for each in log]
    assert ended == [
        ("x@b.example", "delivered", 2),
        ("y@b.example", "delivered", 2),
        ("z@b.example", "delivered", 1),
    ]
    for each, attempt in zip(waiting, log, strict=False):
        assert (each["attempts"], each["lease_token"]) == (1, None)
        assert abs((each["next_attempt"] - each["ts"]).total_seconds() - 2) < 1
        assert attempt["started_at"] >= each["next_attempt"]


async def test_rows_of_one_sender_are_put_off(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queued.outgoing.stages.STAGES", [*STAGES, SlowSender])
    path = tmp_path / "queued.yaml"
    path.write_text(yaml.safe_dump({"environment": {"database": {"uri": database}}}))
    with NextHop() as hop:
        config = whole_model().model_validate({"routes": {"*": hop.target}})
        signals = Signals()
        running = asyncio.create_task(Daemon(config, database, lambda: config, signals).run())
        await asyncio.to_thread(follow, database, path)
        signals.stop.set()
        await running
