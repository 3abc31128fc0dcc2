"""Mail that is committed by SQL without a NOTIFY, and rows that become due, long before a poll."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support.database import PrivateServer
from tests.support.nexthop import Do, Script, Transaction
from tests.support.system import System
from tests.support.waiting import SLACK, take_time, until

NEVER = {"poll": "1h"}  # no test lasts for so long: only an event can wake the worker
WATCHES = """
SELECT pid, query_start FROM pg_stat_activity
WHERE application_name = 'pgmta queued watch' AND datname = current_database()
"""


@contextmanager
def transaction(uri: str, *people: str, due: str = "0s") -> Iterator[psycopg.Connection]:
    """A program's transaction that has put mail into the queue; committed at the end."""
    with psycopg.connect(uri) as db:
        db.execute("SET search_path = pgmta, public")
        for person in people:
            db.execute(
                "WITH body AS ("
                " INSERT INTO messages (id, size, trace, body)"
                " VALUES (nextval('message_ids'), 7, E'T: t\\r\\n', E'X: y\\r\\n\\r\\n')"
                " RETURNING id)"
                " INSERT INTO queue (message_id, sender, recipient, domain, next_attempt)"
                " SELECT id, 's@a.example', %s, split_part(%s, '@', 2), now() + %s::interval"
                " FROM body",
                (person, person, due),
            )
        yield db


def submit(system: System, *people: str, due: str = "0s") -> None:
    """Commit mail without a NOTIFY."""
    with transaction(system.uri, *people, due=due):
        pass


def wait_watched(system: System, number: int = 1) -> None:
    """Wait until the workers watch."""
    until(lambda: len(system.ask(WATCHES)) == number)


@pytest.mark.slow
def test_rows_without_a_notification_wake_the_worker(system: System) -> None:
    hop = system.hop()
    queued = system.queued(hop, process=NEVER)
    wait_watched(system)
    for n in range(3):  # the first id of a sequence does not change its last_value
        submit(system, f"x{n}@hop.example")
        system.wait_empty()
    for n, seconds in enumerate((0.1, 3.0)):
        with transaction(system.uri, f"open{n}@hop.example"):
            with transaction(system.uri, f"undone{n}@hop.example") as db:
                db.rollback()
            submit(system, f"beside{n}@hop.example")
            hop.wait_kept(4 + 2 * n)
            take_time(seconds)  # the transaction is that long
        hop.wait_kept(5 + 2 * n)
    system.wait_empty()
    with transaction(system.uri, *(f"many{n}@hop.example" for n in range(300))):
        with transaction(system.uri, "small@hop.example"):
            pass
        hop.wait_kept(8)
    system.wait_empty()
    assert set(hop.deliveries().values()) == {1}
    queued.stop(SLACK)
    until(lambda: not system.ask(WATCHES))


def test_a_transaction_from_before_the_first_look_wakes_the_worker(system: System) -> None:
    hop = system.hop()
    with transaction(system.uri, "before@hop.example"):
        system.queued(hop, process=NEVER)
        wait_watched(system)
        looks = {str(system.ask(WATCHES))}
        while len(looks) < 10:
            looks.add(str(until(lambda: system.ask(WATCHES))))
    system.wait_empty()
    assert hop.deliveries() == {"before@hop.example": 1}


def refusing_first() -> Script:
    """A script that defers the first delivery."""
    ends = itertools.count()

    def script(point: str, line: str, transaction: Transaction | None) -> Do | None:
        first = point == "end of data" and next(ends) == 0
        return Do(line="451 4.0.0 later") if first else None

    return script


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_rows_wake_the_worker_when_they_become_due(system: System, workers: int) -> None:
    hop = system.hop(refusing_first())
    for _ in range(workers):
        system.queued(hop, process=NEVER, retry={"intervals": ["2s"], "jitter": 0.0})
    wait_watched(system, workers)
    submit(system, "retried@hop.example")
    until(lambda: system.rows().get("retried@hop.example", {}).get("status") == "DEFERRED")
    system.wait_empty()
    deferred, delivered = system.attempts("retried@hop.example")
    wait = (delivered["started_at"] - deferred["ended_at"]).total_seconds()
    assert 2.0 <= wait < 2.0 + SLACK
    for n in range(3):
        submit(system, f"later{n}@hop.example", due="1s")
    system.wait_empty()


@pytest.mark.slow
def test_rows_of_another_worker_do_not_keep_a_worker_awake(system: System) -> None:
    hop = system.hop()
    system.queued(hop, process=NEVER, workers=[{"where": "domain = 'mine.example'"}])
    wait_watched(system)
    submit(system, *(f"x{n}@other.example" for n in range(50)))
    submit(system, *(f"y{n}@other.example" for n in range(50)), due="0.5s")
    submit(system, "z@mine.example", due="1s")
    hop.wait_kept(1)
    claims = (
        "SELECT state_change FROM pg_stat_activity"
        " WHERE application_name LIKE '%% claim' AND datname = current_database()"
    )
    until(lambda: len({str(system.ask(claims)) for _ in range(50)}) == 1)
    assert hop.deliveries() == {"z@mine.example": 1}


@pytest.mark.slow
def test_the_worker_watches_whose_turn_it_is(system: System) -> None:
    hop = system.hop()
    daemons = [system.queued(hop, process=NEVER) for _ in range(2)]
    for daemon in daemons:
        daemon.wait_log("workers share rows")
    number = 0

    def both() -> bool:
        nonlocal number
        submit(system, f"x{number}@hop.example")
        number += 1
        hop.wait_kept(number)
        return len({attempt["worker"] for attempt in system.attempts()}) == 2

    until(both)
    system.wait_empty()
    assert hop.deliveries() == {f"x{n}@hop.example": 1 for n in range(number)}


@pytest.mark.slow
def test_urgent_rows_wake_the_worker_while_other_mail_has_all_slots(system: System) -> None:
    def hanging(point: str, line: str, transaction: Transaction | None) -> Do | None:
        bulk = transaction and transaction.recipients[:1] == ["bulk@hop.example"]
        return Do(hold=True) if point == "end of data" and bulk else None

    hop = system.hop(hanging)
    system.queued(hop, process=NEVER, workers=[{"concurrency": 1}], delivery={"connections": 10})
    submit(system, "bulk@hop.example")
    hop.wait(lambda: hop.open)
    system.wait_queue(lambda rows: [row["status"] for row in rows] == ["SENDING"])
    for due in ("0s", "1s"):
        with transaction(system.uri, f"urgent{due}@hop.example", due=due) as db:
            db.execute("UPDATE queue SET priority = 0 WHERE recipient LIKE 'urgent%'")
        system.wait_queue(lambda rows: len(rows) == 1)
    hop.release()
    system.wait_empty()


def test_a_worker_without_the_right_to_watch_polls(system: System) -> None:
    system.ask("REVOKE SELECT ON SEQUENCE queue_ids FROM pgmta_queued")
    uri = make_conninfo(system.uri, options="-c role=pgmta_queued")
    hop = system.hop()
    queued = system.queued(hop, environment={"database": {"uri": uri}})
    told = queued.wait_log("new rows are not watched, workers poll")
    assert "permission denied for sequence queue_ids" in told["reason"]
    for n in range(2):
        submit(system, f"x{n}@hop.example")
        system.wait_empty()
    assert len(queued.events(told["event"])) == 1


@pytest.mark.slow
def test_the_watch_goes_on_after_an_outage(
    private_server: PrivateServer, private_system: System
) -> None:
    hop = private_system.hop()
    private_system.queued(hop, process=NEVER)
    for n in range(2):
        wait_watched(private_system)
        for m in range(2):
            submit(private_system, f"x{n}{m}@hop.example")
            hop.wait_kept(2 * n + m + 1)
        private_system.wait_empty()
        if not n:
            private_server.crash()
            private_server.start()
