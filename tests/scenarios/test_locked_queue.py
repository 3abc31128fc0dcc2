"""Behind a session that locks the queue, the daemons say that PostgreSQL runs, and who blocks."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support.system import System

MOST = 400  # characters of a line for people


@pytest.mark.slow
def test_the_daemons_name_the_session(system: System) -> None:
    hop = system.hop()
    smtpd = system.smtpd(ingest={"wait": "1s", "patience": "1s"})
    queued = system.queued(hop)
    system.enqueue("alice@hop.example")
    system.wait_empty()
    with (
        psycopg.connect(make_conninfo(system.uri, application_name="psql")) as other,
        smtpd.connect() as client,
    ):
        other.execute("LOCK TABLE pgmta.queue")
        client.begin("app@a.example", ["bob@hop.example"])
        assert client.finish(b"Subject: x\r\n\r\nx\r\n").code == 451

        words = f"PostgreSQL runs, but pid {other.info.backend_pid} (psql, "
        for daemon, event in ((smtpd, "database is away"), (queued, "can't claim")):
            reason = daemon.wait_log(event)["reason"]
            assert words in reason
            assert len(reason) < MOST
    with smtpd.connect() as client:
        client.begin("app@a.example", ["bob@hop.example"])
        assert client.finish(b"Subject: x\r\n\r\nx\r\n").code == 250
    system.wait_empty()
