"""A third daemon works with a separate role, and queuectl knows that it runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgmta.config.environment import Environment
from pgmta.errors import ConfigError
from pgmta.postgres.link import Link
from pgmta.store.admin.daemons import others
from tests.exercises.daemon import collector
from tests.support.daemons import ROOT
from tests.support.rows import fetch
from tests.support.waiting import eventually

SQL = (Path(__file__).parent / "role.sql").read_text(encoding="utf-8")


@pytest.fixture
def uri(database: str, db: psycopg.Connection) -> Iterator[str]:
    """The database as the daemon's role sees it."""
    db.autocommit = True
    db.execute(SQL.encode())
    yield make_conninfo(database, options="-c role=pgmta_collector")
    db.execute("DROP OWNED BY pgmta_collector; DROP ROLE pgmta_collector")


async def test_a_daemon_with_its_own_role_puts_mail_in(
    uri: str, db: psycopg.Connection, tmp_path: Path
) -> None:
    command = (sys.executable, "-m", "tests.exercises.daemon", uri, "c.example", str(tmp_path))
    daemon = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
    (tmp_path / "1.eml").write_bytes(b"Subject: x\r\n\r\nx\r\n")
    mail = "SELECT count(*) FROM queue WHERE sender = 'c@a.example'"
    await eventually(lambda: fetch(db, mail) == (1,))
    (line,) = others(db, "0")  # as `queuectl database migrate` names it
    assert line.startswith("collector on c.example, pid ")
    daemon.terminate()
    assert await daemon.wait() == 0
    assert fetch(db, "SELECT count(*) FROM daemons") == (0,)


async def test_its_check_knows_the_role(
    database: str, uri: str, db: psycopg.Connection, tmp_path: Path
) -> None:
    async def check(link: Link, _: str) -> None:
        assert await link.run("SELECT current_user::text") == [("pgmta_collector",)]

    def environment(uri: str) -> Environment:
        return Environment.model_validate({"database": {"uri": uri}})

    file = tmp_path / "collector.yaml"
    assert await collector.ROLE.unchecked(file, environment(uri), check) == ""
    stranger = make_conninfo(database, options="-c role=pgmta_reader")
    with pytest.raises(ConfigError, match="is not in the role pgmta_collector"):
        await collector.ROLE.unchecked(file, environment(stranger), check)
