"""SIGTERM and SIGHUP for queued."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.daemons import Queued
from tests.support.nexthop import hanging_at, holding_at
from tests.support.system import Row, System
from tests.support.waiting import free_port, until


def unleased(row: Row) -> bool:
    return all(row[f"lease_{part}"] is None for part in ("owner", "since", "until", "token"))


def test_stop_ends_what_has_begun_and_hands_back_the_rest(system: System) -> None:
    hop = system.hop(holding_at("end of data"))
    queued = system.queued(hop, delivery={"connections": 2})
    for n in range(12):
        system.enqueue(f"x{n}@hop.example")
    hop.wait_kept(2)
    system.wait_queue(lambda rows: all(row["status"] == "SENDING" for row in rows))
    queued.signal(signal.SIGTERM)
    rows = system.wait_queue(lambda rows: sum(row["status"] != "SENDING" for row in rows) == 10)
    under_way = {transaction.recipients[0] for transaction in hop.kept}
    for row in rows:
        if row["recipient"] not in under_way:
            assert row["status"] in ("QUEUED", "DEFERRED")
            assert row["attempts"] == 0
            assert unleased(row)
    hop.release()
    queued.wait()
    assert set(hop.deliveries()) == under_way
    assert {row["recipient"] for row in system.queue()} & under_way == set()
    assert {a["recipient"]: a["event"] for a in system.attempts()} == dict.fromkeys(
        under_way, "delivered"
    )
    system.queued(hop)
    system.wait_empty()
    assert hop.deliveries() == {f"x{n}@hop.example": 1 for n in range(12)}


@pytest.mark.slow
def test_another_worker_takes_what_is_handed_back_at_once(system: System) -> None:
    hop, other = system.hop(holding_at("end of data")), system.hop()
    patient = {"poll": "1h"}
    first = system.queued(hop, delivery={"connections": 2}, process=patient)
    for n in range(12):
        system.enqueue(f"x{n}@hop.example")
    hop.wait_kept(2)
    system.wait_queue(lambda rows: all(row["status"] == "SENDING" for row in rows))
    system.queued(other, process=patient)
    quiet = (  # no look after the start is still to come
        "SELECT true AS quiet FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE 'pgmta queued %% claim'"
        " HAVING count(*) = 2 AND max(state_change) < now() - interval '3s'"
    )
    until(lambda: system.ask(quiet))
    first.signal(signal.SIGTERM)
    other.wait_kept(10)  # while the first one still waits for its own two
    hop.release()
    first.wait()
    system.wait_empty()
    assert {**hop.deliveries(), **other.deliveries()} == {f"x{n}@hop.example": 1 for n in range(12)}


def test_stop_does_not_wait_for_hanging_next_hops(system: System) -> None:
    points = {"greet": "connect", "mail": "MAIL", "rcpt": "RCPT", "dot": "end of data"}
    hops = {name: system.hop(hanging_at(point)) for name, point in points.items()}
    queued = system.queued(
        routes={f"{name}.example": hop.target for name, hop in hops.items()},
        process={"drain": "1s"},
    )
    for name in points:
        system.enqueue(f"{name}@{name}.example")
    for name, hop in hops.items():
        hop.wait(lambda name=name, hop=hop: hop.kept if name == "dot" else hop.open)  # type: ignore[misc]
    queued.stop(timeout=20)  # not the default of 30 s
    rows = system.rows()
    for name in points:
        row = rows[f"{name}@{name}.example"]
        assert unleased(row)
        begun = name == "dot"
        assert (row["status"], row["attempts"]) == ("DEFERRED" if begun else "QUEUED", int(begun))
    assert [a["event"] for a in system.attempts()] == ["unknown"]
    assert system.events("dot@dot.example") == ["unknown"]


def test_reload_takes_new_routes_and_survives_a_broken_file(system: System) -> None:
    system.expected = {"configuration kept as it was"}
    old, new = system.hop(), system.hop()
    queued = system.queued(old)
    system.enqueue("one@hop.example")
    old.wait_kept(1)
    queued.reload("routes: [no, mapping]\n")
    system.enqueue("two@hop.example")
    old.wait_kept(2)
    queued.reload({**queued.config, "routes": {"*": new.target}, "retention": {"attempts": "9d"}})
    kept = queued.wait_log("configuration kept in part")
    assert kept["problems"] == ["retention: needs a restart"]
    system.enqueue("three@hop.example")
    new.wait_kept(1)
    system.wait_empty()
    assert old.deliveries() == {"one@hop.example": 1, "two@hop.example": 1}
    assert new.deliveries() == {"three@hop.example": 1}


def test_reload_moves_what_waits_for_a_dead_next_hop(system: System) -> None:
    dead, new = system.hop(), system.hop()
    dead.stop()
    queued = system.queued(dead)
    system.enqueue("x@hop.example")
    system.wait_status(x="DEFERRED")
    queued.reload({**queued.config, "routes": {"*": new.target}})
    new.wait_kept(1)
    system.wait_empty()


def test_a_worker_registers_again_and_still_stops(system: System) -> None:
    queued = system.queued(system.hop())
    before = system.ask("SELECT owner, name FROM workers")
    assert len(before) == 1
    system.ask("DELETE FROM workers")
    until(lambda: system.ask("SELECT owner, name FROM workers") == before)
    queued.stop()
    assert system.ask("SELECT 1 FROM workers") == []


def test_stop_while_the_database_is_missing(system: System, tmp_path: Path) -> None:
    """Conditions are checked first, which needs the database."""
    missing = {"uri": f"postgresql://postgres@127.0.0.1:{free_port()}/none", "where": "true"}
    config = {"environment": {"database": missing}, "log": {"format": "json"}}
    queued = Queued(tmp_path, "waiting", missing["uri"], config)
    try:
        queued.wait_log("waiting for the database")
        queued.stop()
    finally:
        queued.clean()
