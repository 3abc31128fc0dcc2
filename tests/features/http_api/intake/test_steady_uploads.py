"""A client that sends steadily gets an answer, however long the database makes it wait."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from pgmta.postgres.resources import Resources
from pgmta_features.http_api.intake.uploads import Uploads
from tests.features.http_api.intake.test_sending import MAIL, multipart, post
from tests.features.http_api.served import make_key, serving_api
from tests.support.rows import column
from tests.support.waiting import until

_WAIT_FOR_LONG = (
    "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    " AND query LIKE '%api_upload(%' AND query_start < clock_timestamp() - interval '3 s'"
)


@pytest.mark.slow
def test_the_time_of_a_client_is_that_of_its_silence(
    database: str, as_api: str, tmp_path: Path, db: psycopg.Connection
) -> None:
    token = make_key(db)
    body, fields = multipart(
        ('name="message"', "application/json", json.dumps(MAIL).encode()),
        ('name="f"; filename="a.bin"', "application/octet-stream", bytes(5_000_000)),
    )
    with (
        serving_api(tmp_path, as_api, limits={"request": "1s"}) as api,
        ThreadPoolExecutor() as pool,
    ):
        with psycopg.connect(database) as other:
            other.execute("LOCK TABLE pgmta.api_uploads IN SHARE MODE")
            answer = pool.submit(post, api, token, body, **fields)
            until(lambda: column(db, _WAIT_FOR_LONG))
        assert answer.result().status == 202
    assert column(db, "SELECT count(*) FROM api_uploads") == [0]


async def test_no_more_is_read_while_several_bodies_wait_for_their_turn(
    as_api: str, db: psycopg.Connection
) -> None:
    resources, going_on = Resources(as_api, "test"), asyncio.Event()
    uploads = Uploads(resources)

    async def have_whole_body() -> None:
        async with uploads.turn():
            await going_on.wait()

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(have_whole_body())
        piece = group.create_task(uploads.put(uuid4(), 0, bytearray(b"x")))
        assert await asyncio.wait([piece], timeout=0.5) == (set(), {piece})
        going_on.set()
    await resources.close()
    assert column(db, "SELECT count(*) FROM api_uploads") == [1]
