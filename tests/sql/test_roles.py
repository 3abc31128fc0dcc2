"""The rights of each role, shown by pgmta's statements, and the statements that it may not run."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
from dataclasses import replace

import psycopg
import pytest
from psycopg import errors as pg_errors
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgmta.action import Action
from pgmta.postgres.link import Link
from pgmta.postgres.operator import connect_operator, connected
from pgmta.states import Event
from pgmta.store.accounts.logins import LoginStore
from pgmta.store.admin.daemons import Heartbeat
from pgmta.store.admin.upkeep import Upkeep
from pgmta.store.admin.user_accounts import UserAccounts
from pgmta.store.admin.workers import Registry, Rule, WorkerEntry
from pgmta.store.changes.change import WorkerChanges
from pgmta.store.changes.listing import Listing
from pgmta.store.changes.overview import Overview
from pgmta.store.changes.row_change import RowChange
from pgmta.store.queries import queries
from pgmta.store.queue.claim import SESSION, Claims
from pgmta.store.queue.conditions import check_conditions
from pgmta.store.queue.contents import Contents
from pgmta.store.queue.enqueue import Enqueue, Messages
from pgmta.store.queue.expired_leases import FinalLeases
from pgmta.store.queue.settle import Settlements
from pgmta.store.records.days import keep_days
from pgmta.store.schema import Schema
from tests.sql.test_surface import enqueue, linked, message, one, outcome
from tests.support.rows import operate
from tests.support.users import add_user, secret

ROLES = (
    "pgmta_smtpd", "pgmta_queued", "pgmta_operator", "pgmta_reader", "pgmta_submit", "pgmta_web",
    "pgmta_api",
)  # fmt: skip


def acting(uri: str, role: str) -> str:
    """The same database for a session that has set the role."""
    return make_conninfo(uri, options=f"-c role={role}")


async def alive(link: Link, program: str) -> None:
    """The heartbeat of a daemon, from its start to its end."""
    schema = Schema()
    heartbeat = Heartbeat(link, schema, "h:1:x", program, "h")
    for _ in range(2):
        await heartbeat.beat()
        assert await link.run("SELECT program FROM daemons") == [(program,)]
    assert not schema.problem
    await heartbeat.leave()
    assert await link.run("SELECT program FROM daemons") == []


async def test_smtpd_takes_mail_in(database: str, db: psycopg.Connection) -> None:
    async with linked(database, role="pgmta_smtpd") as link:
        await alive(link, "smtpd")
        store = Enqueue(link)
        first = (await store.reserve(4))[0]
        group = [message(first, "b@example.com", "c@example.com", _partid="1")]
        await store.commit(group)
        assert not await store.commit(group)  # it is there
        with pytest.raises(psycopg.errors.UniqueViolation):
            await store.commit([replace(group[0], sender="x@example.com")])
        held = message(first + 2, "d@example.com", "e@example.com")
        held.holds = ["why", None]
        await store.commit([held, message(first + 3, "f@example.com")])
        await store.chunks([(first + 1, 0, b"x")])
        await store.drop_chunks([first + 1])
        known = queries("enqueue")["known"]
        assert await link.run(known, {"messages": Messages(group)}) == [(True,)]
    assert one(db, "SELECT count(*) FROM queue WHERE status = 'QUEUED'") == 4
    assert one(db, "SELECT array_agg(recipient) FROM queue_hold") == ["d@example.com"]
    assert one(db, "SELECT count(*) FROM message_chunks") == 0


async def test_smtpd_knows_one_user_at_a_time(database: str, db: psycopg.Connection) -> None:
    operator_uri = acting(database, "pgmta_operator")
    await asyncio.to_thread(add_user, operator_uri, "ann", "right one", tenant="t")
    home = ipaddress.ip_network("192.0.2.0/24")
    async with linked(database, role="pgmta_smtpd") as link:
        store = LoginStore(link)
        await store.add_networks([("ann", home), ("of a hook", home), ("ann", home)])
        ann, levels = await store.find_user("ann", ["user x"])
        assert (ann.tenant, set(ann.own_networks), levels) == ("t", {home}, {})
        assert ann.version
        assert "argon2" not in repr(ann)
        nobody, _ = await store.find_user("nobody", [])
        assert (nobody.version, nobody.own_networks) == (None, frozenset())
        hooked, _ = await store.find_user("of a hook", [])
        assert (hooked.version, set(hooked.own_networks)) == (None, {home})
        assert (await store.changes())[0] == ann.changes == nobody.changes
        failures = [("user x", 2, 60.0), ("address y", 1, 900.0)]
        assert (await store.add_failures(failures, 300.0))["user x"] == pytest.approx(60, abs=2)
        levels = await store.add_failures(failures[:1], 300.0)
        assert levels == {"user x": pytest.approx(120, abs=2)}
        _, levels = await store.find_user("ann", ["user x", "address y", "user z"])
        assert levels == {
            "user x": pytest.approx(120, abs=2),
            "address y": pytest.approx(300, abs=2),
        }
        await store.add_networks(
            [("ann", ipaddress.ip_network(f"10.0.{n}.0/24")) for n in range(40)]
        )
        assert len((await store.find_user("ann", []))[0].own_networks) == 32
        db.execute("UPDATE user_networks SET last_login = now() - interval '91 d' "
                   "WHERE name <> 'ann'")  # fmt: skip
        assert await store.forget_failures() == 0
        assert one(db, "SELECT array_agg(DISTINCT name) FROM user_networks") == ["ann"]
    async with connected(acting(database, "pgmta_operator")) as connection:
        operator = UserAccounts(connection, "test")
        assert [user["name"] for user in await operator.users()] == ["ann"]
        assert len(await operator.networks("ann")) == 32
        assert await operator.passwd("ann", secret("another one"))
        assert await operator.unlock("ann") == 0
        assert await operator.delete("ann")
        assert await operator.networks("ann") == []


async def test_queued_delivers_and_keeps_house(database: str, db: psycopg.Connection) -> None:
    await enqueue(database, *(message(n, "b@example.com") for n in range(1, 9)))
    db.execute("CREATE TABLE queue_def_1 PARTITION OF queue_def FOR VALUES IN ('1')")
    await enqueue(database, message(9, "b@example.com", _partid="1"))
    db.execute("INSERT INTO messages VALUES (99, now() - interval '1 day', 1, false, 1, '', '')")
    db.execute("INSERT INTO message_chunks VALUES (99, 0, now() - interval '1 day', 'x')")
    db.execute("SELECT days_make('attempts', 7)")  # the template may be of yesterday
    db.execute("DROP TABLE attempts_" + one(db, "SELECT to_char(now() + '1 d', 'YYYYMMDD')"))
    db.execute("CREATE TABLE attempts_20200101 PARTITION OF attempts "
               "FOR VALUES FROM ('2020-01-01') TO ('2020-01-02')")  # fmt: skip
    await check_conditions(acting(database, "pgmta_queued"), {"where": "domain = 'x'"})
    async with linked(database, role="pgmta_queued", **SESSION) as link:
        await alive(link, "queued")
        registry, upkeep, changes = Registry(link, "h:1"), Upkeep(link), WorkerChanges(link)
        rule = Rule("r", "hold", "message_id = 8", "wait", None, None)
        await registry.register([WorkerEntry("w", "deliver", None, "true")], [rule])
        assert await registry.beat({"w": (1, None)})
        assert await registry.operator_rules() == []
        assert await keep_days(link, "attempts", 86400) == (1, 1)

        claims = Claims(link, "w", 0.01)
        lost = (await claims.claim(2, [])).items
        claim = await Claims(link, "w", 60).claim(10, [], 100, 1000)
        again = claim.items
        assert len({i.id for i in [*lost, *again]}) == 8  # not the one that the rule holds
        assert {m.body for m in claim.messages.values()} == {b"hello"}
        assert await Contents(link).body(1) == b"hello"
        assert await Contents(link).chunks(99, 0, 1) == b"x"
        assert await claims.leases.mark_begun(again) == {item.id for item in again}
        assert await claims.leases.renew(again)
        last = [Event.DELIVERED, Event.DELIVERED, Event.UNKNOWN, Event.FAIL, Event.HAND_BACK]
        events = [*last, *[Event.DEFER] * len(again)]
        for item, event in zip(again, events, strict=False):
            assert event is Event.HAND_BACK or await Settlements(link, "w").settle(
                [outcome(item, event)]
            )
        for action, where in (
            (Action.HOLD, "message_id = 8"),
            (Action.RELEASE, "message_id = 8"),
            (Action.RETRY, "true"),
            (Action.QUARANTINE, "message_id = 8"),
            (Action.DELETE, "message_id = 8"),
        ):
            change = RowChange(action, where, "w", reason="test", quarantine="q")
            assert await changes.run(change) == 1 or action is Action.RETRY
        db.execute("UPDATE queue SET once = true, begun = lease_token,"
                   " lease_until = now() - interval '1 s',"
                   " on_failed = CASE message_id WHEN 9 THEN 'remove' ELSE 'hold' END"
                   " WHERE lease_token IS NOT NULL")  # fmt: skip
        leases = FinalLeases(link, "upkeep")
        left = (await leases.next(0, 10))[2]
        assert await leases.settle(left) == (len(left), 0)
        assert await upkeep.orphans(60, 10) == 2
        assert (await upkeep.expire_keys(60, 10), await upkeep.expire_calls(60, 10)) == (0, 0)
        db.execute("UPDATE rules SET expires_at = now()")
        assert await upkeep.expire_rules() == [("r", 1, 0)]
        await registry.leave()
    assert one(db, "SELECT count(*) FROM queue") == 6
    assert one(db, "SELECT count(*) FROM messages") == 6  # bodies go with their rows


async def test_operator_has_the_commands_and_the_functions(
    database: str, db: psycopg.Connection
) -> None:
    await enqueue(database, *(message(n, "b@example.com") for n in range(1, 4)))
    uri = acting(database, "pgmta_operator")
    connection = await connect_operator(uri)
    overview, listing = Overview(connection), Listing(connection)
    for name in ("hold", "quarantine", "release", "retry", "set", "delete", "hold"):
        change = RowChange(
            Action(name), "true", "alice@host", "why", None, "q", 3, {"k": "v"}, ["x"]
        )
        assert await operate(uri, change) == 3, name
    rule = {"name": "r", "action": "hold", "condition": "true", "reason": "why",
            "quarantine": None, "release_after": None, "expire": 60.0}  # fmt: skip
    await check_conditions(uri, {"rule": "true"})
    await overview.add_rule(rule, "alice@host")
    assert len(await overview.rules()) == 1
    assert await overview.remove_rule("r", "alice@host")
    assert await overview.workers() == []
    assert (await overview.matches([None], [0], []))["n0"] == 0
    assert (await listing.count_rows("true", "status"))[0]["value"] == "HOLD"
    assert len(await listing.rows("true", 9)) == 3
    assert (await listing.message(1) or {})["head"] == b"hello"
    await connection.close()
    db.execute("SET ROLE pgmta_operator")
    for call in ("release('true')", "hold('true', 'a')", "quarantine('true', 'q', 'b')",
                 "release('true')", "retry('true')", "bounce('true', 'c')",
                 "delete('true', 'd')"):  # fmt: skip
        assert one(db, f"SELECT queue_{call}") == 3
    db.execute("UPDATE queue SET status = 'QUEUED', priority = 1 WHERE status = 'DELETE'")
    assert one(db, "SELECT count(*) FROM audit WHERE finished_at IS NOT NULL") == 16


async def test_reader_sees_all_but_the_bodies(database: str, db: psycopg.Connection) -> None:
    await enqueue(database, message(1, "b@example.com"))
    views = db.execute("SELECT viewname FROM pg_views WHERE schemaname = 'pgmta'").fetchall()
    db.execute("SET ROLE pgmta_reader")
    assert len(views) >= 7
    tables = ("queue", "attempts", "reports", "delays", "rules", "workers", "audit")
    for name in [*(view for (view,) in views), *tables]:
        db.execute(sql.SQL("TABLE {}").format(sql.Identifier(name)))
    assert one(db, "SELECT id, size FROM messages") == (1, 5)


FORBIDDEN = [
    "CREATE TABLE mine (x integer)",
    "CREATE TABLE pgmta.mine (x integer)",
    "DROP TABLE attempts_default",
    "ALTER TABLE queue ADD x integer",
    "ALTER TABLE queue DISABLE TRIGGER messages_refcount",
    "SELECT queue_delete('nextval(''queue_ids'') > 0', 'x')",
]
"""What the tables of docs/operate/rights.md do not say; test_rights.py compares all of these."""


async def test_forbidden_statements(database: str, db: psycopg.Connection) -> None:
    await enqueue(database, message(1, "b@example.com"))
    for role, statement in itertools.product(ROLES, FORBIDDEN):
        db.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        try:
            db.execute(statement.encode())
        except pg_errors.InsufficientPrivilege:
            continue
        pytest.fail(f"{role} may: {statement}")
