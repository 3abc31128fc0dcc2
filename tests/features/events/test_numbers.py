"""Numbers: no gap fills behind a reader, and an open transaction delays nobody else."""

from __future__ import annotations

import random
import threading
from collections import Counter

import psycopg
import pytest

from tests.features.events.event_log import Event, events, kinds, number, page, subscribe
from tests.support.rows import attempt, column, fetch
from tests.support.waiting import PATIENCE

WRITERS = 10


def test_an_open_transaction_delays_only_its_own_events(
    db: psycopg.Connection, database: str
) -> None:
    subscribe(db)
    with psycopg.connect(database) as open_one:
        attempt(open_one, 1, 1)
        attempt(db, 2, 2)
        assert kinds(db) == ["deferred"]
        (seen,) = events(db)
        attempt(db, 3, 3)
        number(db)
    number(db)
    attempt(db, 4, 4)
    number(db)
    assert [e.row_id for e in events(db, seen.cursor)] == [3, 1, 4]
    assert column(db, "SELECT number FROM event_log ORDER BY number") == [1, 2, 3, 4]


def test_an_event_that_was_written_long_before_is_found(
    db: psycopg.Connection, database: str
) -> None:
    subscribe(db)
    with psycopg.connect(database) as open_one:
        attempt(open_one, 1, 1)
        db.execute("SELECT setval('event_commit_ids', 50000)")
        attempt(db, 2, 2)
    ahead = "SELECT commits FROM events_number(late => %s)"
    assert fetch(db, ahead, False) == (1,)
    assert fetch(db, ahead, True) == (1,)
    assert [e.row_id for e in events(db)] == [2, 1]


def test_one_session_numbers_at_a_time(db: psycopg.Connection, database: str) -> None:
    subscribe(db)
    attempt(db)
    with psycopg.connect(database) as other:
        assert fetch(other, "SELECT commits FROM events_number()") == (1,)
        assert fetch(db, "SELECT commits FROM events_number()") == (None,)
        assert events(db) == []
    assert fetch(db, "SELECT commits FROM events_number()") == (0,)
    assert [e.cursor.partition(".")[2] for e in events(db)] == ["1.1"]


def test_ten_writers_and_three_sequencers(db: psycopg.Connection, database: str) -> None:
    """A reader sees each event once, those of a row in their order, and none that rolled back."""
    subscribe(db)
    over = threading.Event()
    kept: list[tuple[int, int]] = []

    def write(writer: int) -> None:
        chance = random.Random(writer)
        with psycopg.connect(database) as own:
            for turn in range(40):
                wanted = [(writer, turn * 10 + each) for each in range(chance.randint(1, 3))]
                for row, token in wanted:
                    attempt(own, row, row, lease_token=token)
                if chance.random() < 0.3:
                    own.rollback()
                else:
                    own.commit()
                    kept.extend(wanted)

    def sequence() -> None:
        with psycopg.connect(database, autocommit=True) as own:
            while not over.is_set():
                own.execute("SELECT events_number(most => 5)")

    sequencers = [threading.Thread(target=sequence) for _ in range(3)]
    writers = [threading.Thread(target=write, args=[place]) for place in range(WRITERS)]
    found: list[Event] = []
    try:
        for thread in (*sequencers, *writers):
            thread.start()
        while any(thread.is_alive() for thread in writers):
            found += events(db, found[-1].cursor if found else None, 7)
    finally:
        over.set()
        for thread in (*sequencers, *writers):
            thread.join(PATIENCE)
    number(db)
    found += events(db, found[-1].cursor if found else None)
    log = "SELECT message_id, lease_token FROM attempts"
    of_events = "SELECT e.commit || '-' || e.place, e.lease_token FROM mail_events AS e"
    tokens: dict[str | None, int] = dict(db.execute(of_events).fetchall())
    seen = [(event.message_id, tokens[event.id]) for event in found]
    assert Counter(seen) == Counter(db.execute(log).fetchall()) == Counter(kept)
    for writer in range(WRITERS):
        of_row = [token for message, token in seen if message == writer]
        assert of_row == sorted(of_row)
    numbers = column(db, "SELECT number FROM event_log ORDER BY number")
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.slow
def test_a_history_ends_where_commits_were_lost(db: psycopg.Connection) -> None:
    """A cursor that the new server knows goes on, one beyond is refused; a time has its place."""
    subscribe(db)
    for place in range(3):
        attempt(db, place, place)
    number(db)
    known = events(db)[-1].cursor
    history = int(known.partition(".")[0])
    fetch(db, "SELECT setval('timelines', server_timeline() + 1)")  # as after a promotion
    attempt(db, 3, 3)
    number(db)
    assert column(db, "SELECT last FROM event_history ORDER BY history") == [3, 3]
    assert [e.row_id for e in events(db, known)] == [3]
    assert [e.row_id for e in events(db, f"{history}.1.1")] == [1, 2, 3]
    with pytest.raises(psycopg.Error, match="does not have") as caught:
        page(db, f"{history}.4.1")
    assert caught.value.sqlstate == "PG409"
    last = events(db)[-1].cursor
    assert int(last.partition(".")[0]) > history
    since = "SELECT events_since((SELECT numbered_at FROM event_log WHERE number = %s))"
    (begin,) = fetch(db, since, 2)
    assert [e.row_id for e in events(db, begin)] == [1, 2, 3]
    assert events(db, fetch(db, "SELECT events_end()")[0]) == []
