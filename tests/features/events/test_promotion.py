"""A standby is promoted that lacks commits: readers of lost events are told, and others go on."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.features.events.event_log import events, number, page, subscribe
from tests.support.rows import attempt, fetch
from tests.support.standby import Pair, replicated
from tests.support.waiting import until

pytestmark = pytest.mark.slow

CAUGHT_UP = "SELECT bool_and(replay_lsn >= pg_current_wal_lsn()) FROM pg_stat_replication"


@pytest.fixture
def pair(server: str) -> Iterator[Pair]:
    """A primary that does not wait for its standby."""
    with replicated(server, synchronous=False) as made:
        yield made


def put(db: psycopg.Connection, *rows: int) -> str:
    """Write events and number them; return the cursor behind them."""
    for each in rows:
        attempt(db, each, each)
    number(db)
    return events(db)[-1].cursor


def test_a_cursor_of_lost_events_is_refused(pair: Pair) -> None:
    pair.db.execute("SET search_path = pgmta, public")
    subscribe(pair.db)
    known = put(pair.db, 1, 2)
    until(lambda: fetch(pair.db, CAUGHT_UP) == (True,))
    pair.freeze()
    lost_cursor = put(pair.db, 3, 4)
    lost = events(pair.db, known)
    pair.fail_over()
    db = pair.db
    db.execute("SET search_path = pgmta, public")
    db.execute("SELECT note_timeline()")  # as each connection of pgmta does
    put(db, 5, 6, 7)
    assert [event.row_id for event in events(db, known)] == [5, 6, 7]
    with pytest.raises(psycopg.Error, match="does not have") as caught:
        page(db, lost_cursor)
    assert caught.value.sqlstate == "PG409"
    # by time the reader finds what it lacks, and no id is that of a lost event
    (begin,) = fetch(db, "SELECT events_since(%s)", lost[0].at)
    found = events(db, begin)
    assert [event.row_id for event in found] == [5, 6, 7]
    assert {event.id for event in found}.isdisjoint(event.id for event in lost)
