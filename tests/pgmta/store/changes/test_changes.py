"""queuectl, workers and SQL functions do the same to the same rows (docs/decisions/changes.md)."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, NamedTuple

import psycopg
import pytest

from pgmta.action import ROW_ACTIONS, Action
from pgmta.postgres.binary import Bigints
from pgmta.postgres.link import Link
from pgmta.store.changes.change import WorkerChanges
from pgmta.store.changes.row_change import RowChange
from pgmta.store.queries import queries
from tests.support.queuectl import Command
from tests.support.rows import column, fetch, message, row

STATUSES = ("QUEUED", "DEFERRED", "SENDING", "HOLD", "DELETE", "REPORT")
LEASES = (None, 60, -9)  # seconds to its end
DUE = (-60, 60)  # seconds to the next attempt
WHERE = "domain = 'b.example' AND hold_reason IS DISTINCT FROM 'never'"
AUDIT = """SELECT action, btrim(condition, E'(\\n)'), details ->> 'reason', rows,
    (details ->> 'release_after')::interval, details ->> 'quarantine' FROM audit"""
HOUR = 3600.0
HOLDS = (Action.HOLD, Action.QUARANTINE)


class Case(NamedTuple):
    """A row before the change."""

    status: str
    lease: int | None
    due: int

    @property
    def in_flight(self) -> bool:
        return self.lease is not None and self.lease > 0


class State(NamedTuple):
    """The columns that a change may set; `gone` rows have a last entry in the log."""

    status: str
    reason: str | None = None
    until: float | None = None
    quarantine: str | None = None
    due: bool = False
    leased: bool = False
    priority: int = 5
    metadata: str | None = None


CASES = [
    case
    for case in itertools.starmap(Case, itertools.product(STATUSES, LEASES, DUE))
    if case.status != "SENDING" or case.lease is not None  # refused by a CHECK
]
GONE = State("gone")


def before(case: Case) -> State:
    """The row as it is made."""
    held = {"reason": "first", "until": 60.0, "quarantine": "old"} if case.status == "HOLD" else {}
    if case.status == "REPORT":
        held = {"reason": "first"}
    return State(case.status, due=case.due < 0, leased=case.lease is not None, **held)  # type: ignore[arg-type]


def after(action: Action, case: Case, *, worker: bool) -> State:
    """The rules of docs/decisions/changes.md."""
    was = before(case)
    active = case.status in ("QUEUED", "DEFERRED", "SENDING")
    if worker and case.in_flight:
        return was
    match action:
        case Action.HOLD | Action.QUARANTINE:
            fresh = active if worker else case.status != "HOLD" or action is Action.QUARANTINE
            quarantine = "new" if action is Action.QUARANTINE else None
            held = was._replace(status="HOLD", reason="why", until=HOUR, quarantine=quarantine)
            return held if fresh else was
        case Action.BOUNCE:
            fresh = active if worker else case.status not in ("DELETE", "REPORT")
            return was._replace(status="REPORT", reason="why", until=None) if fresh else was
        case Action.RELEASE:
            back = was._replace(status="QUEUED", reason=None, until=None, due=True)
            return back if case.status == "HOLD" else was
        case Action.RETRY:
            return was._replace(due=True) if case.status in ("QUEUED", "DEFERRED") else was
        case Action.DELETE if worker:
            return was if case.status == "REPORT" else GONE
        case Action.DELETE:
            # a row that leaves HOLD is no longer held
            gone = was._replace(status="DELETE", reason=None, until=None)
            gone = gone._replace(due=was.due or case.status in ("HOLD", "REPORT"))
            return gone if case.status != "DELETE" else was
        case Action.SET:
            return was._replace(priority=1, metadata="v")
        case _:
            raise AssertionError("it changes no row")


def insert(db: psycopg.Connection) -> dict[int, Case]:
    """A row for each case, and as many that the condition does not match."""
    db.execute("TRUNCATE queue, messages, message_chunks, attempts, audit")
    message(db, 1)
    rows = {}
    for case in CASES:
        values: dict[str, Any] = {"status": case.status, "due": case.due}
        if case.lease is not None:
            values |= {"lease": case.lease, "lease_owner": "x", "lease_token": 7}
            values["lease_since"] = "2020-01-01"
        if case.status == "HOLD":
            values |= {"hold_reason": "first", "held_by": "x", "metadata": {"_quarantineid": "old"}}
        if case.status == "REPORT":
            values |= {"hold_reason": "first", "held_by": "x", "held_at": "2020-01-01"}
        rows[row(db, 1, domain="b.example", **values)] = case
        row(db, 1, domain="other.example", **values)
    db.execute("UPDATE queue SET hold_until = now() + interval '1 minute' WHERE status = 'HOLD'")
    return rows


def states(db: psycopg.Connection, domain: str = "b.example") -> dict[int, State]:
    found = db.execute(
        "SELECT id, status, hold_reason, round(extract(epoch FROM hold_until - now()) / 10) * 10,"
        " metadata ->> '_quarantineid', next_attempt <= now(), lease_token IS NOT NULL, priority,"
        " metadata ->> 'k' FROM queue WHERE domain = %s",
        (domain,),
    ).fetchall()
    return {
        id: State(status, reason, None if until is None else float(until), *rest)
        for id, status, reason, until, *rest in found
    }


def by_queuectl(action: Action, command: Command) -> None:
    words = {
        Action.HOLD: ["--reason", "why", "--release-after", "1h"],
        Action.QUARANTINE: ["--reason", "why", "--release-after", "1h", "--quarantine", "new"],
        Action.BOUNCE: ["--reason", "why"],
        Action.DELETE: ["--reason", "why"],
        Action.SET: ["--priority", "1", "--set", "k=v"],
    }.get(action, [])
    name = "hold" if action is Action.QUARANTINE else action
    done = command(name, "--where", WHERE, "--yes", *words)
    assert done.exit_code == 0, done.output


def by_sql(action: Action, db: psycopg.Connection) -> None:
    calls = {
        Action.HOLD: "queue_hold(%s, 'why', '1 hour')",
        Action.QUARANTINE: "queue_quarantine(%s, 'new', 'why', '1 hour')",
        Action.RELEASE: "queue_release(%s)",
        Action.RETRY: "queue_retry(%s)",
        Action.BOUNCE: "queue_bounce(%s, 'why')",
        Action.DELETE: "queue_delete(%s, 'why')",
        Action.SET: """queue_change('set', %s, '{"priority": 1, "metadata": {"k": "v"}}')""",
    }
    db.execute(f"SELECT {calls[action]}".encode(), (WHERE,))


def by_worker(uri: str, change: RowChange) -> int:
    async def work() -> int:
        link = Link(uri, "test")
        try:
            return await WorkerChanges(link).run(change, 7)
        finally:
            await link.close()

    return asyncio.run(work())


@pytest.mark.parametrize("action", list(ROW_ACTIONS))
def test_three_ways_do_the_same_to_the_same_rows(
    database: str, db: psycopg.Connection, command: Command, action: Action
) -> None:
    change = RowChange(action, WHERE, "w", "why", HOUR, "new" if action in HOLDS else None)
    audited = set()
    for way in ("queuectl", "sql", "worker"):
        if way == "worker" and action is Action.SET:
            continue  # an operator's alone
        rows = insert(db)
        others = states(db, "other.example")
        if way == "queuectl":
            by_queuectl(action, command)
        elif way == "sql":
            by_sql(action, db)
        changed = by_worker(database, change) if way == "worker" else None
        wanted = {id: after(action, case, worker=way == "worker") for id, case in rows.items()}
        found = states(db)
        assert {id: found.get(id, GONE) for id in rows} == wanted, way
        assert states(db, "other.example") == others
        if way == "worker":
            assert changed == sum(wanted[id] != before(case) for id, case in rows.items())
            assert by_worker(database, change) == 0  # nothing is done twice
        else:
            audited.add(fetch(db, AUDIT))
        if action is Action.DELETE:
            # queued removes requests to delete, but not those in flight
            by_worker(database, RowChange(Action.DELETE, "status = 'DELETE'", "w", "why"))
            left = [case for id, case in rows.items() if id in states(db)]
            reported = way == "worker"  # it has left these rows
            assert left == [
                case for case in CASES if case.in_flight or (reported and case.status == "REPORT")
            ]
            gone = "SELECT count(*) FROM attempts WHERE event = 'deleted' AND reply = 'why'"
            assert fetch(db, gone)[0] >= len(CASES) - len(left)
    assert len(audited) == 1, "queuectl and the functions leave the same audit row"


def test_the_database_and_the_store_name_the_same_rows(db: psycopg.Connection) -> None:
    for action in ROW_ACTIONS:
        assert column(db, "SELECT queue_takes(%s)", action) == [ROW_ACTIONS[action].takes]
    for call in ("queue_change('expire', 'true')", "queue_change(NULL, 'true')"):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="there is no action"):
            db.execute(f"SELECT {call}".encode())


def test_a_row_that_is_due_keeps_its_place(database: str, db: psycopg.Connection) -> None:
    """A retry of everything must not put what has waited behind what came later."""
    message(db, 1)
    first = row(db, 1, status="DEFERRED", due=-60)
    later = row(db, 1, status="DEFERRED", due=60)
    assert fetch(db, "SELECT queue_retry('true')") == (2,)
    assert column(db, "SELECT id FROM queue ORDER BY next_attempt") == [first, later]
    assert fetch(db, "SELECT max(next_attempt) - min(next_attempt) > '59 s' FROM queue") == (True,)


def test_a_batch_reads_its_own_rows_only(db: psycopg.Connection) -> None:
    db.execute("INSERT INTO messages (id, size, trace, body) VALUES (1, 4, '', 'body')")
    db.execute(
        "INSERT INTO queue (message_id, sender, recipient, domain, metadata)"
        " SELECT 1, '', 'r', 'b.example', '{\"campaign\": \"7\"}' FROM generate_series(1, 2000)"
    )
    db.execute("ANALYZE queue")
    where = "(metadata ->> 'campaign') = '7' AND domain = 'b.example'"
    batch = queries("change")["command"].fill(takes=ROW_ACTIONS[Action.SET].takes).fill(where=where)
    params = {"action": "set", "who": "me", "details": '{"priority": 3}', "audit": 1,
              "ids": Bigints(range(500, 520))}  # fmt: skip
    explained = db.execute(b"EXPLAIN (ANALYZE, FORMAT JSON) " + batch, params)
    (plan,) = explained.fetchone() or ("",)
    found = [0]

    def visit(node: dict[str, Any]) -> None:
        if node.get("Relation Name", "").startswith("queue"):
            read = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            found[0] += read * node["Actual Loops"]
        for child in node.get("Plans", []):
            visit(child)

    visit(plan[0]["Plan"])
    assert found[0] <= 40, plan
    assert db.execute("SELECT count(*) FROM queue WHERE priority = 3").fetchone() == (20,)
