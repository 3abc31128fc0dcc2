"""A full queue of NOTIFY stops no mail and no command: workers poll."""

from __future__ import annotations

import psycopg
import pytest

from queued.cli.doctor.server_checks import ServerChecks
from tests.support.database import PrivateServer
from tests.support.operating import diagnosed
from tests.support.rows import fetch
from tests.support.system import System

_FEW_PAGES = 64
CALLS = (
    "submit('a@a.example', '{b@b.example}', E'A: b\\r\\n\\r\\nx\\r\\n', wake => true)",
    "submit_mail('a@a.example', '{c@b.example}', 's', 'b', wake => true)",
    "queue_change('retry', 'true', '{}')",
    "queue_suspend('domain', 'c.example', 'r')",
)


def fill(db: psycopg.Connection) -> None:
    for number in range(_FEW_PAGES * 4):
        db.execute(f"NOTIFY other, '{number:04}{'x' * 7900}'".encode())


@pytest.mark.slow
def test_mail_and_commands_go_on(private_server: PrivateServer, private_system: System) -> None:
    system, uri = private_system, private_server.uri
    with psycopg.connect(uri, autocommit=True) as db:
        if db.info.server_version < 170000:
            pytest.skip("the queue has 8 GB")
        db.execute(f"ALTER SYSTEM SET max_notify_queue_pages = {_FEW_PAGES}".encode())
    private_server.crash()
    private_server.start()
    hop = system.hop()
    smtpd = system.smtpd()
    with (
        psycopg.connect(uri, autocommit=True) as db,
        psycopg.connect(uri, autocommit=True) as reader,
    ):
        reader.execute("LISTEN other")
        reader.execute("BEGIN; SELECT 1")
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            fill(db)
        assert diagnosed(uri, lambda examination: ServerChecks(examination).notifications())
        with smtpd.connect() as client:
            client.begin("app@a.example", ["bob@b.example"])
            assert client.finish(b"Subject: x\r\n\r\nx\r\n").code == 250
        for call in CALLS:
            assert fetch(db, f"SELECT {call}")
        system.queued(hop)
        hop.wait_kept(3)
        system.wait_empty()
