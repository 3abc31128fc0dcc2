"""Statements of a link that are cancelled, or whose connection is ended, at random moments."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import psycopg
import pytest
import uvloop

from pgmta.errors import AnswerLost, StoreUnavailable
from pgmta.postgres.link import Link

WRITE = (
    "INSERT INTO answered VALUES (%(number)s)"
    " RETURNING number, repeat('x', %(size)s::int), pg_sleep(%(seconds)s::float8)::text"
)
CANCELS = 500
ENDS = 100


@pytest.mark.slow
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_no_answer_goes_to_another_statement(
    database: str, db: psycopg.Connection, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """A statement with an answer is done once, one without at most once."""
    seed = random.SystemRandom().randrange(10**6)
    chance = random.Random(seed)
    db.execute("CREATE TABLE answered (number int)")
    answered: set[int] = set()
    counts: Counter[str] = Counter()

    async def ask(link: Link, number: int) -> None:
        size, seconds = chance.choice([0, 10, 40_000, 400_000]), chance.choice([0, 0, 0.002])
        params = {"number": number, "size": size, "seconds": seconds}
        if chance.random() < 0.2:
            ((row,), ((last,),)) = await link.run_together(
                [(WRITE.encode(), params), (b"SELECT %(number)s::int", {"number": number})]
            )
            assert last == number
        else:
            (row,) = await link.run(WRITE, params)
        assert (row[0], len(row[1])) == (number, size)
        answered.add(number)

    async def end(backend: int) -> None:
        ending = "SELECT pg_sleep(%s), pg_terminate_backend(%s)"
        await asyncio.to_thread(db.execute, ending, [chance.random() * 0.006, backend])

    async def work() -> None:
        link, number = Link(database, "test"), 0
        while counts["cancelled"] < CANCELS or counts["ended"] < ENDS:
            number += 1
            if counts["cancelled"] < CANCELS:
                with suppress(TimeoutError):
                    async with asyncio.timeout(chance.random() * 0.006):
                        await ask(link, number)
                counts["cancelled"] += number not in answered
            else:
                ((backend,),) = await link.run("SELECT pg_backend_pid()")
                ending = asyncio.create_task(end(backend))
                with suppress(AnswerLost, StoreUnavailable):
                    await ask(link, number)
                await ending
                # the end may be seen by this statement, and else by the next one
                with suppress(AnswerLost, StoreUnavailable):
                    await link.run("SELECT 1")
                counts["ended"] += 1
            if number % 10 == 0:
                await ask(link, number := number + 1)
        await link.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(work(), 120))
    written = [number for (number,) in db.execute("SELECT number FROM answered")]
    assert len(written) == len(set(written)), f"seed {seed}: a statement was done twice"
    assert answered <= set(written), f"seed {seed}: an answer without its row"
    assert answered, f"seed {seed}: all were interrupted"
