"""A standing rule does not hold a row again that was released from it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from unittest.mock import Mock

import psycopg
import pytest
from click.testing import Result

from pgmta.action import Action
from pgmta.postgres.link import Link
from pgmta.store.admin.upkeep import Upkeep
from pgmta.store.admin.workers import Registry, Rule
from pgmta.store.changes.change import WorkerChanges
from pgmta.store.queue.claim import SESSION, Claims
from queued.config import Worker
from queued.upkeep.requests import answer_requests, apply_rules
from queued.worker.row_worker import row_change
from tests.support.queuectl import Command
from tests.support.rows import column, fetch, message, row

HELD = "SELECT recipient FROM queue WHERE status = 'HOLD' ORDER BY 1"


def rules_act(uri: str, worker: Worker | None = None) -> None:
    """Let queued act once on the rules of operators, on requests and for a worker."""

    async def act() -> None:
        link = Link(uri, "test", {})
        try:
            changes = WorkerChanges(link)
            await apply_rules(changes, Registry(link, "h:1"))
            await answer_requests(Upkeep(link), changes, "h:1")
            if worker:
                await changes.run(row_change(worker, worker.where, "h:1"))
        finally:
            await link.close()

    asyncio.run(act())


def claimed(uri: str) -> list[str]:
    """The recipients that a delivering worker gets; they are given back."""

    async def claim() -> list[str]:
        link = Link(uri, "test", SESSION)
        try:
            claim = await Claims(link, "w", 60).claim(50, [])
            await link.run(
                "UPDATE queue SET status = 'QUEUED', lease_owner = NULL, lease_since = NULL,"
                " lease_token = NULL, lease_until = NULL WHERE status = 'SENDING'"
            )
            return sorted(item.recipient for item in claim.items)
        finally:
            await link.close()

    return asyncio.run(claim())


async def _register(uri: str, rule: Rule) -> None:
    link = Link(uri, "test", {})
    await Registry(link, "h:1").register([], [rule])
    await link.close()


def add(command: Command, name: str, pattern: str, *more: str) -> Result:
    """An operator's rule."""
    added = command("rule", "add", name, "--recipient", pattern, "--reason", "why", *more)
    assert added.exit_code == 0, added.output
    return added


def by_queuectl(command: Command, db: psycopg.Connection) -> str:
    """Release everything; return what the command says."""
    done = command("release", "--all", "--yes")
    assert done.exit_code == 0, done.output
    return done.stderr


def by_sql(command: Command, db: psycopg.Connection) -> str:
    """The same by the function."""
    said: list[str] = []
    db.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
    db.execute("SELECT queue_release('true')")
    return "\n".join(said)


def by_update(command: Command, db: psycopg.Connection) -> None:
    """The same by plain SQL, which names no rule."""
    db.execute("UPDATE queue SET status = 'QUEUED' WHERE status = 'HOLD'")


@pytest.mark.parametrize("release", [by_queuectl, by_sql, by_update])
def test_a_released_row_is_exempt_from_the_rule_that_held_it(
    database: str,
    db: psycopg.Connection,
    command: Command,
    release: Callable[[Command, psycopg.Connection], str | None],
) -> None:
    message(db, 1)
    for name in ("a", "b"):
        row(db, 1, recipient=f"{name}@b.example")
    add(command, "rule", "*@b.example")
    add(command, "other", "b@*", "--quarantine", "q")
    db.execute("UPDATE rules SET expires_at = now() - interval '1 s' WHERE name = 'other'")
    rules_act(database)  # `other` is over
    add(command, "other", "b@*")
    assert column(db, HELD) == ["a@b.example", "b@b.example"]
    assert set(column(db, "SELECT held_under FROM queue")) == {
        f"rule {fetch(db, 'SELECT id FROM rules WHERE name = %s', 'rule')[0]}"
    }
    assert "held by    rule" in command("explain", "1").stdout
    said = release(command, db)
    if said is not None:
        assert "rule other holds 1 of these rows again" in said
        assert "rule rule" not in said
    assert claimed(database) == ["a@b.example"]
    rules_act(database)
    assert column(db, HELD) == ["b@b.example"], "the other rule had not held it yet"
    release(command, db)
    rules_act(database)
    assert claimed(database) == ["a@b.example", "b@b.example"]
    assert "held by" not in command("explain", "1").stdout
    # what comes later is held, and so is everything by a rule that is made later
    row(db, 1, recipient="c@b.example")
    rules_act(database)
    assert column(db, HELD) == ["c@b.example"]
    assert command("rule", "remove", "rule").exit_code == 0
    add(command, "rule", "*@b.example")
    rules_act(database)
    assert len(column(db, HELD)) == 3
    release(command, db)
    db.execute("UPDATE rules SET condition = 'domain ~ ''^b''' WHERE name = 'rule'")
    assert claimed(database) == [], "with another condition it is another rule"


def test_workers_that_hold_do_not_undo_a_release(
    database: str, db: psycopg.Connection, command: Command
) -> None:
    message(db, 1)
    row(db, 1, recipient="old@b.example", ts="2026-01-01")
    row(db, 1, recipient="new@b.example", metadata={"n": "alpha"})
    old = Worker(name="old", action=Action.HOLD, where="domain = 'b.example'", older=3600)
    rules_act(database, old)
    assert column(db, HELD) == ["old@b.example"]
    by_queuectl(command, db)
    rules_act(database, old)
    assert column(db, HELD) == []
    # a rule of a worker that fails on a row, whose holds end by themselves
    failing = Worker(name="n", action=Action.QUARANTINE, where="(metadata->>'n')::int > 3",
                     quarantine="q", release_after=1)  # fmt: skip
    rule = Rule("n", "quarantine", failing.where or "", "why", "q", 1)
    asyncio.run(_register(database, rule))
    rules_act(database, failing)
    assert column(db, HELD) == ["new@b.example"]
    db.execute("UPDATE queue SET hold_until = now() WHERE status = 'HOLD'")
    rules_act(database, failing)
    assert column(db, HELD) == []
    assert claimed(database) == ["new@b.example", "old@b.example"]


def test_a_rule_that_ends_says_what_stays_on_hold(
    database: str, db: psycopg.Connection, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    message(db, 1)
    for number in range(3):
        row(db, 1, recipient=f"r{number}@b.example")
    row(db, 1, recipient="mine@b.example")
    assert command("hold", "--recipient", "mine@*", "--reason", "x", "--yes").exit_code == 0
    said = add(command, "r", "*", "--expire", "2h", "--release-after", "1d").stdout
    assert "it ends in 2h; rows that it holds then stay on hold" in said
    assert "each row is released 1d after its hold, and not held by it again" in said
    rules_act(database)
    listed = command("rule", "list", "--json")
    assert [rule["held"] for rule in json.loads(listed.stdout)] == [3]
    number = json.loads(listed.stdout)[0]["id"]
    assert "there is no rule 'rr'; did you mean 'r'?" in command("rule", "remove", "rr").stderr
    removed = command("rule", "remove", "r")
    free = f"queuectl release --where \"held_under = 'rule {number}'\""
    assert f"3 rows that it held stay on hold: {free}" in removed.stdout
    assert command("release", "--where", f"held_under = 'rule {number}'", "--yes").exit_code == 0
    assert column(db, HELD) == ["mine@b.example"]
    # --release does it at once, and leaves the holds of operators
    add(command, "r", "*")
    rules_act(database)
    removed = command("rule", "remove", "r", "--release")
    assert "3 of 3 rows that it held are released" in removed.stdout
    assert column(db, HELD) == ["mine@b.example"]
    # by its own end, and by SQL
    add(command, "r", "*", "--expire", "1h")
    rules_act(database)
    db.execute("UPDATE rules SET expires_at = now()")
    log = Mock()
    monkeypatch.setattr("queued.upkeep.requests.log", log)
    rules_act(database)
    assert len(column(db, HELD)) == 4
    (number,) = set(column(db, "SELECT held_under FROM queue WHERE held_under IS NOT NULL"))
    log.info.assert_any_call(
        "standing rule is over", rule="r", held=3,
        hint=f"queuectl release --where \"held_under = '{number}'\"",
    )  # fmt: skip
    by_queuectl(command, db)
    add(command, "r", "*")
    rules_act(database)
    said_by_sql: list[str] = []
    db.add_notice_handler(
        lambda notice: said_by_sql.append(f"{notice.message_primary} {notice.message_hint}")
    )
    db.execute("DELETE FROM rules")
    (hint,) = said_by_sql
    assert "rule r ends; 4 rows that it holds stay on hold" in hint
    db.execute(hint[hint.index("SELECT") : hint.index(";", hint.index("SELECT"))])
    assert column(db, HELD) == []


def test_a_list_of_another_shape_stops_no_release(command: Command, db: psycopg.Connection) -> None:
    """An operator may write the column; of a row that can't leave HOLD no command gets rid."""
    message(db, 1)
    odd, _ = row(db, 1), row(db, 1)
    db.execute("UPDATE queue SET status = 'HOLD', held_under = 'rule 7'")
    for text in ("{NULL}", "{}", "[0:1]={a,b}", "{{a,b},{c,d}}"):
        db.execute("UPDATE queue SET exempt_from = %s WHERE id = %s", (text, odd))
        words = ("hold", "--quarantine", "q", "--reason", "odd", "--yes", "--where", "true")
        assert command(*words).exit_code == 0
        assert command("release", "--yes", "--where", "true").exit_code == 0
        assert column(db, HELD) == []
        db.execute("UPDATE queue SET status = 'HOLD', held_under = 'rule 7'")
    assert column(db, "SELECT 'rule 7' = ANY (exempt_from) FROM queue") == [True, True]
