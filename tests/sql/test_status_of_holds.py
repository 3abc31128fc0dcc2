"""States of rows on hold: they follow the log and what queued wrote, and no words of operators."""

from __future__ import annotations

import psycopg
import pytest

from pgmta.model import Reply
from pgmta.postgres.link import Link
from pgmta.states import Event
from pgmta.store.queue.expired_leases import FinalLeases, take_lost
from pgmta.store.queue.settle import Settlements
from tests.sql.test_status import claim, states, submit
from tests.sql.test_surface import outcome
from tests.support.rows import fetch

WORDS = [
    "undeliverable",
    "outcome unknown: a release may send a second copy",
    "delivered (250 ok), but the database refuses this outcome: x",
    "failed (550 no), but the database refuses this outcome: x",
]
REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN RAISE EXCEPTION ''no entry'' USING ERRCODE = ''23514''; END';
CREATE TRIGGER refuse BEFORE INSERT ON attempts FOR EACH ROW EXECUTE FUNCTION refuse();
"""


async def test_words_of_an_operator_change_no_state(db: psycopg.Connection, link: Link) -> None:
    number = submit(db, "fresh", "failed", "later", options=", on_failed => 'hold'")
    final = submit(db, "final", options=", once => true, on_failed => 'hold'")
    db.execute("UPDATE queue SET next_attempt = now() + '1 h' WHERE recipient LIKE 'fresh%'")
    items = await claim(link)
    events = {"failed": Event.FAIL, "later": Event.DEFER, "final": Event.UNKNOWN}
    await Settlements(link, "w").settle([outcome(items[name], e) for name, e in events.items()])
    db.execute("SELECT queue_hold('true', 'ticket 1')")
    wanted = {"fresh": "held", "failed": "failed", "later": "held", "final": "unknown"}
    assert states(db, number, final) == wanted
    for words in WORDS:
        db.execute("SET SESSION AUTHORIZATION pgmta_operator")
        db.execute("UPDATE queue SET hold_reason = %s, held_by = 'deliver@h:1'", (words,))
        db.execute("RESET SESSION AUTHORIZATION")
        assert states(db, number, final) == wanted
    db.execute("SELECT queue_release('true')")
    assert set(states(db, number, final).values()) == {"queued"}


async def test_a_state_outlives_the_log(db: psycopg.Connection, link: Link) -> None:
    wish = ", once => true, on_failed => 'hold'"
    number = submit(db, "failed", "final", "later", options=wish)
    items = await claim(link)
    events = {"failed": Event.FAIL, "final": Event.UNKNOWN, "later": Event.DEFER}
    await Settlements(link, "w").settle([outcome(items[name], e) for name, e in events.items()])
    db.execute("SELECT queue_hold('true', 'ticket 1')")
    db.execute("DELETE FROM attempts")
    assert states(db, number) == {"failed": "failed", "final": "unknown", "later": "held"}


SET_ASIDE = [
    (Event.DELIVERED, "unknown"),
    (Event.UNKNOWN, "unknown"),
    (Event.FAIL, "failed"),
    (Event.DEFER, "held"),
]


@pytest.mark.parametrize(("event", "state"), SET_ASIDE)
async def test_a_refused_outcome_is_not_just_held(
    db: psycopg.Connection, link: Link, event: Event, state: str
) -> None:
    number = submit(db, "bob")
    settled = outcome((await claim(link))["bob"], event)
    settled.reply = Reply(250, "2.0.0 stored as 7")
    await Settlements(link, "w").set_aside(settled, "no entry")
    assert states(db, number) == {"bob": state}
    assert fetch(db, "SELECT code, reply FROM status(ARRAY[%s])", number) == (
        250,
        "2.0.0 stored as 7",
    )


@pytest.mark.parametrize("once", ["false", "true"])
async def test_a_lost_attempt_that_the_log_refuses_is_unknown(
    db: psycopg.Connection, link: Link, once: str
) -> None:
    number = submit(db, "bob", options=f", once => {once}")
    await claim(link)
    db.execute("UPDATE queue SET begun = lease_token, lease_until = now() - interval '1 s'")
    db.execute(REFUSE)
    if once == "true":
        (row,) = fetch(db, "SELECT id FROM queue")
        assert await FinalLeases(link, "w").settle([row]) == (1, 0)
    else:
        assert await take_lost(link, "w")
    assert states(db, number) == {"bob": "unknown"}


async def test_the_last_attempt_counts_and_not_the_last_entry(
    db: psycopg.Connection, link: Link
) -> None:
    """The outcome of a worker that lost its lease may come after the next worker's."""
    number = submit(db, "gone", "stays", options=", on_failed => 'remove'")
    late = await claim(link)
    db.execute("UPDATE queue SET lease_until = now() - interval '1 s'")
    items = await claim(link)
    first = [outcome(items["gone"], Event.FAIL), outcome(items["stays"], Event.DEFER)]
    await Settlements(link, "w").settle(first)
    await Settlements(link, "w").settle([outcome(item, Event.DEFER) for item in late.values()])
    assert states(db, number) == {"gone": "failed", "stays": "deferred"}
