"""PostgreSQL does not take outcomes: it is read-only, or one row or a statement is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.scenarios.test_database_outage import MAIL, prolonged
from tests.support.daemons import Queued
from tests.support.database import PrivateServer
from tests.support.nexthop import Do, NextHop
from tests.support.submit import Client
from tests.support.system import System
from tests.support.waiting import until

PEOPLE = [f"x{number}@hop.example" for number in range(10)]


@contextmanager
def answered_together(
    system: System, answer: str = "250 2.0.0 Ok", **config: Any
) -> Iterator[tuple[NextHop, Queued]]:
    """All of PEOPLE are in delivery, and get the answer when the block ends."""
    hold = Do(hold=True, line=answer)
    hop = system.hop(lambda point, _, __: hold if point == "end of data" else None)
    queued = system.queued(hop, **config)
    for person in PEOPLE:
        system.enqueue(person)
    hop.wait(lambda: sum(t.content is not None for t in hop.transactions) == len(PEOPLE))
    yield hop, queued
    hop.release()


@pytest.mark.slow
@pytest.mark.parametrize("lease", ["60s", "3s"], ids=["within the lease", "longer than the lease"])
def test_a_read_only_database_is_an_outage(
    private_server: PrivateServer, private_system: System, lease: str
) -> None:
    system = private_system
    smtpd = system.smtpd()
    with answered_together(system, process={"lease": lease, "poll": "100ms"}) as (hop, queued):
        private_server.read_only(True)
    queued.wait_log("can't settle")
    queued.wait_log("can't claim")
    if lease == "3s":
        queued.wait_log("can't renew leases")
        until(lambda: prolonged(system) == 0)
    with Client(smtpd.port) as client:
        reply = client.send("a@example.org", ["no@hop.example"], MAIL)
        assert reply == "451 4.3.0 Queue is unavailable, try again later"
        private_server.read_only(False)
        reply = client.send("a@example.org", ["last@hop.example"], MAIL)
        assert reply.code == 250
    system.wait_empty()
    assert hop.deliveries() == dict.fromkeys([*PEOPLE, "last@hop.example"], 1)
    for person in PEOPLE:
        # the worker may have claimed again what it had not yet been able to settle
        events = sorted(system.events(person))
        assert events == ["delivered"] or (lease == "3s" and events == ["delivered", "unknown"])
    assert queued.alive
    assert len(queued.events("can't claim")) == 1  # of all loops of the worker


@pytest.mark.slow
def test_outcomes_that_stay_unknown_are_named(
    private_server: PrivateServer, private_system: System
) -> None:
    system = private_system
    with answered_together(system, process={"drain": "1s"}) as (_, queued):
        private_server.read_only(True)
    queued.wait_log("can't settle")
    system.expected.add("outcomes not written: the database is away")
    queued.stop()
    named = queued.events("outcome not written")
    assert {entry["recipient"] for entry in named} == set(PEOPLE)
    assert {(e["outcome"], e["reply"][:3]) for e in named} == {("delivered", "250")}
    private_server.read_only(False)
    assert {row["status"] for row in system.queue()} == {"SENDING"}  # and never anybody's before


def refuse(system: System, by: str) -> None:
    """An operator's trigger refuses the log entry of one of PEOPLE."""
    with psycopg.connect(system.uri) as db:
        db.execute(
            f"""
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN {by}; RETURN NEW; END $$;
            CREATE TRIGGER refuse BEFORE INSERT ON attempts FOR EACH ROW
            WHEN (NEW.recipient = 'x7@hop.example') EXECUTE FUNCTION refuse()""".encode()
        )


@pytest.mark.parametrize(
    ("answer", "code"),
    [("250 2.0.0 Ok", "P0001"), ("450 4.2.0 Later", "MX001"), ("550 5.1.1 Unknown", "09000")],
)
def test_what_is_refused_for_one_row_holds_that_row(system: System, answer: str, code: str) -> None:
    told = "outcome refused by the database: the row is on hold"
    system.expected.add(told)
    with answered_together(system, answer, retry={"intervals": ["1h"]}) as (hop, queued):
        refuse(system, f"RAISE EXCEPTION 'no entry for %', NEW.recipient USING ERRCODE = '{code}'")
    entry = queued.wait_log(told)
    system.wait_queue(lambda rows: all(row["lease_token"] is None for row in rows))
    rows = system.rows()
    held = rows.pop("x7@hop.example")
    assert (entry["row"], entry["message"]) == (held["id"], held["message_id"])
    assert (held["status"], system.events("x7@hop.example")) == ("HOLD", [])
    assert answer in held["hold_reason"]
    assert "no entry for x7@hop.example" in held["hold_reason"]
    after = {"2": set(), "4": {"DEFERRED"}, "5": {"HOLD"}}[answer[0]]
    assert {row["status"] for row in rows.values()} == after
    assert len(rows) == (len(PEOPLE) - 1 if after else 0)
    assert len(hop.transactions) == len(PEOPLE)
    assert queued.alive


@pytest.mark.slow
def test_what_refuses_every_outcome_passes(system: System) -> None:
    """The schema is not what the statement was written for, and one row's trigger neither."""
    kept = "outcome is kept until the database takes it"
    system.expected.add(kept)
    with answered_together(system) as (hop, queued):
        system.ask("ALTER TABLE attempts RENAME TO moved")
    queued.wait_log("can't settle a batch")
    queued.wait_log(kept)
    system.ask("ALTER TABLE moved RENAME TO attempts")
    system.wait_empty()
    refuse(system, by="PERFORM gone()")
    told = len(queued.events(kept))
    system.enqueue("x7@hop.example")
    queued.wait_log(kept, told + 1)
    system.enqueue("y@hop.example")  # goes on beside it
    system.wait_queue(lambda rows: [row["recipient"] for row in rows] == ["x7@hop.example"])
    system.ask("CREATE FUNCTION gone() RETURNS void LANGUAGE sql AS ''")  # locks no table
    system.wait_empty()
    assert hop.deliveries() == {**dict.fromkeys(PEOPLE, 1), "x7@hop.example": 2, "y@hop.example": 1}
    assert {attempt["event"] for attempt in system.attempts()} == {"delivered"}
