"""The check of `queuectl doctor`: keys that expire, and an API without keys."""

from __future__ import annotations

import asyncio

import psycopg

from pgmta.postgres.operator import connected
from pgmta.store.admin.examination import Examination
from pgmta_features.http_api.doctor_check import checks
from queued.cli.doctor.diagnosis import Diagnosis
from tests.features.http_api.served import make_key


def test_doctor_names_keys_that_expire_and_an_api_that_nobody_can_use(
    db: psycopg.Connection, database: str
) -> None:
    async def look() -> list[Diagnosis]:
        async with connected(database) as operator:
            found = await checks(Examination(operator))
            return [each for check in found.values() async for each in check()]

    assert asyncio.run(look()) == []
    db.execute(
        "INSERT INTO daemons (process, program, host, pid, version, schema)"
        " VALUES ('h:1:x', 'api', 'h', 1, '0', 's')"
    )
    make_key(db, "old", expires="2001-01-01")
    (unused,) = asyncio.run(look())
    assert "no key that holds" in unused.finding
    make_key(db, "soon")
    make_key(db, "later")
    db.execute("UPDATE api_keys SET expires_at = now() + interval '13 days' WHERE name = 'soon'")
    db.execute("UPDATE api_keys SET expires_at = now() + interval '15 days' WHERE name = 'later'")
    (expiring,) = asyncio.run(look())
    assert expiring.severity == "warning"
    assert "the key soon of the HTTP API expires" in expiring.finding
    assert "queuectl apikey set soon --expires" in expiring.remedy
