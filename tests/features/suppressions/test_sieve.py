"""The copy of the sieve that queued has: no address that the database would name is missing."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from itertools import count, islice

import psycopg
import pytest

from pgmta.postgres.link import Link
from pgmta_features.suppressions.sieve import Sieve
from tests.support.waiting import eventually

FORMS: list[Callable[[str], str]] = [
    lambda local: f"{local}@b.example",
    lambda local: f"{local.upper()}@B.EXAMPLE",
    lambda local: f'"{local}"@b.example',
    lambda local: f'"{local[:1]}\\{local[1:]}"@b.example',
    lambda local: f'"{local} x"@b.example',
    lambda local: f"{local}é@b.example",
    lambda local: f"{local}@[192.0.2.1]",
]
"""Ways to write a mailbox; the first four name the same."""


@pytest.fixture
async def link(database: str) -> AsyncIterator[Link]:
    made = Link(database, "test")
    yield made
    await made.close()


async def has(sieve: Sieve, *locals_: str) -> list[bool]:
    """Return which of these at b.example it may have, now."""
    await sieve.catch_up()
    found = sieve.places_of([f"{local}@b.example" for local in locals_])
    return [place in found for place in range(len(locals_))]


async def test_it_learns_what_commits_late_and_in_another_order(
    link: Link, database: str, db: psycopg.Connection
) -> None:
    sieve = Sieve(link)
    assert await has(sieve, "early", "late", "never") == [False, False, False]
    with psycopg.connect(database) as slow, psycopg.connect(database) as undone:
        slow.execute("SELECT suppress('late@b.example')")
        undone.execute("SELECT suppress('never@b.example')")
        db.execute("SELECT suppress('early@b.example')")
        assert await has(sieve, "early", "late", "never") == [True, False, False]
        for number in range(5):  # other answers come in between
            db.execute("SELECT suppress(%s)", (f"{number}@b.example",))
            assert await has(sieve, str(number), "late") == [True, False]
        slow.commit()
        undone.rollback()
        assert await has(sieve, "early", "late", "never") == [True, True, False]


async def test_it_learns_a_part_again_and_keeps_what_another_row_of_it_has(
    link: Link, database: str, db: psycopg.Connection
) -> None:
    of_one_part = (str(n) for n in count() if sha256(b"%d@b.example" % n).digest()[:2] == b"pg")
    names = list(islice(of_one_part, 3))
    sieve = Sieve(link)
    with psycopg.connect(database) as slow:
        for session, name in zip((slow, db, db), names, strict=True):
            session.execute("SELECT suppress(%s)", (f"{name}@b.example",))
            expected = [session is db and other <= names.index(name) for other in range(3)]
            assert await has(sieve, *names) == [False, *expected[1:]]
        slow.commit()
    assert await has(sieve, *names) == [True, True, True]


async def test_a_new_session_tells_all_because_numbers_of_transactions_may_have_come_again(
    link: Link, db: psycopg.Connection
) -> None:
    db.execute("SELECT suppress('joe@b.example')")
    sieve = Sieve(link)
    assert await has(sieve, "joe") == [True]
    # such a number has a server that lost its last commits, for what this process has not seen
    db.execute("SELECT suppress('ann@b.example')")
    db.execute("UPDATE suppression_sieve SET changed = '3'")
    assert await has(sieve, "ann") == [False]
    await link.close()
    await link.run("SELECT")  # another user of the link was first
    assert await has(sieve, "ann", "joe") == [True, True]
    db.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'pgmta test' AND datname = current_database()"
    )
    await eventually(lambda: not link.connected)  # so the statement itself connects
    assert await has(sieve, "ann", "joe") == [True, True]


async def test_an_open_transaction_has_nothing_told_twice(
    link: Link, database: str, db: psycopg.Connection
) -> None:
    """Rows of a dump, which have numbers of another server, are told once, too."""
    news = "SELECT known::text, parts FROM sieve_news(%(seen)s::text::pg_snapshot)"
    with psycopg.connect(database) as slow:
        slow.execute("SELECT suppress('late@b.example')")
        db.execute("SELECT suppress('joe@b.example')")
        db.execute("UPDATE suppression_sieve SET changed = '9000000000'")
        db.execute("SELECT suppress('ann@b.example')")
        ((known, parts),) = await link.run(news, {"seen": None})
        assert len(parts) == 2
        ((known, parts),) = await link.run(news, {"seen": known})
        assert parts is None
        slow.commit()
    ((known, parts),) = await link.run(news, {"seen": known})
    assert len(parts) == 1
    ((_, parts),) = await link.run(news, {"seen": known})
    assert parts is None


async def test_no_form_of_an_address_that_is_suppressed_or_forgotten_is_missed(
    link: Link, db: psycopg.Connection
) -> None:
    chance = random.Random(49)
    people = [f"{chance.randrange(36**6):x}z" for _ in range(90)]
    written = [chance.choice(FORMS)(local) for local in people]
    db.execute("SELECT suppressions_put(%s, '{}', '{}')", (written[:60],))
    for each in written[60:70]:
        db.execute("SELECT forget(%s, 'suppressions', false)", (each,))
    every = [form(local) for local in people for form in FORMS]
    for each in every:
        db.execute("SELECT submit('s@a.example', ARRAY[%s], 'Subject: x')", (each,))
    empty = [""] * len(every)
    row = db.execute("SELECT suppressed_because(%s, %s, %s)", (empty, empty, every)).fetchone()
    assert row
    sieve = Sieve(link)
    await sieve.catch_up()
    assert sieve.places_of([""]) == [0], "of a row whose recipient was forgotten"
    named = [address for address, words in zip(every, row[0], strict=True) if words]
    assert set(written[:70]) <= set(named)
    assert len(sieve.places_of(named)) == len(named)
    ended = "SELECT recipient FROM attempts WHERE event = 'suppressed'"
    assert {recipient for (recipient,) in db.execute(ended)} == set(named)
    plain = [FORMS[0](local) for local in people[70:]]
    assert len(sieve.places_of(plain)) <= 1, "it spares the database nearly all questions"
