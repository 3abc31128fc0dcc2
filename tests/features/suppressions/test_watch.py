"""queued asks the list of suppressions before an attempt: by a watch alone, and over processes."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from pgmta.errors import StoreUnavailable
from pgmta.model import Item
from pgmta.postgres.link import Link
from pgmta.postgres.notify import listen
from pgmta.postgres.resources import Resources
from pgmta.store.schema import Schema
from pgmta_features.suppressions.sieve import Sieve
from pgmta_features.suppressions.suppression_look import SuppressionLook
from pgmta_features.suppressions.watch import SuppressionWatch
from queued.delivery.smtp.smtp_parameters import SmtpParameters
from queued.delivery.transport.destination import Destination
from queued.process import orders as orders_module
from queued.process.orders import Orders
from tests.support.nexthop import as_usual, at, holding_at
from tests.support.system import System
from tests.support.waiting import SLACK, eventually, let_others_run, take_time

HOP = Destination("smtp", SmtpParameters(), "b.example")
MANY = 30
PER_COMMIT = 2000  # suppressions, as an import has them


def item(number: int, tenant: str = "", **metadata: str) -> Item:
    """A leased row to r<number>@b.example."""
    made = Item(number, number, "s@a.example", f"r{number}@b.example", "b.example", 1,
                datetime.now(UTC), number, tenant=tenant)  # fmt: skip
    made.metadata = json.dumps(metadata) if metadata else None
    return made


class Watched:
    """A watch as a process has it, the rows that are leased, and the statements about them."""

    def __init__(self, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.link = Link(uri, "test")
        schema = cast(Schema, SimpleNamespace(require=lambda: None))
        self.orders = Orders(self.link, schema)
        self.leased: list[Item] = []
        self.looks: list[int] = []  # addresses of each look at rows
        look = SuppressionLook(self.link)
        self.words = words = look.words

        async def counted(asked: Any) -> list[str]:
            self.looks.append(len(asked))
            assert self.watch.looks, "a claim that comes now looks at its rows too"
            return await words(asked)

        monkeypatch.setattr(look, "words", counted)
        self.watch = SuppressionWatch(
            look, Sieve(self.link), schema, lambda: self.leased, self.orders.news
        )
        self.orders.add_reader("suppressions", self.watch.read)

    def ended(self) -> list[int]:
        """The leased rows that the gate ends."""
        found = self.watch.find_rows(self.leased, HOP) if self.watch.active else {}
        assert all(reason.final for reason in found.values())
        return [self.leased[place].id for place in found]


@pytest.fixture
async def watched(database: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    made = Watched(database, monkeypatch)
    yield made
    await made.link.close()


async def test_rows_are_asked_for_with_their_tenant_and_scope(
    watched: Watched, db: psycopg.Connection
) -> None:
    watch = watched.watch
    assert not watch.ready
    await watch.get_ready()
    assert (watch.ready, watch.active, watched.looks) == (True, False, [])
    db.execute(
        "SELECT suppression_scope('news');"
        "SELECT suppress('r1@b.example'), suppress('R2@b.example', 't'),"
        " suppress('r3@b.example', '*', 'news', 'unsubscribed', 'unsubscribe link of message 7'),"
        " suppress('r4@b.example', '', 'transactional'), suppress('r5@b.example')"
    )
    rows = [item(1), item(2, "t"), item(3, _scope="news"), item(4), item(5, _exempt="test")]
    others = [item(1, "t"), item(2), item(3), item(4, _scope="news"), item(9)]
    await watch.get_ready()
    watched.leased += rows + others
    await watch.look_at(watched.leased)
    assert watched.looks == [8], "nobody asks about row 9, which has no bit, and the exempt one"
    assert watched.ended() == [1, 2, 3, 4]
    assert rows[2].suppressed.endswith("UTC: unsubscribed (unsubscribe link of message 7)")
    rewritten = replace(others[-1], recipient="team@c.example", original=rows[0])
    assert list(watch.find_rows([rewritten], HOP)) == [0]
    await watch.look_at(watched.leased)
    assert not watched.orders.news.came.is_set()
    db.execute("SELECT suppress('r9@b.example')")
    await watch.look_at(rows)
    assert watched.orders.news.came.is_set(), "the others are looked at too, without a notice"
    db.execute("DELETE FROM suppressions")
    await watch.read()
    assert watched.ended() == []


async def test_a_burst_is_known_after_few_looks_and_none_is_missed(
    watched: Watched, database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By notifications alone; the list is empty before, and claims come meanwhile."""
    monkeypatch.setattr(orders_module, "HEARD_S", 3600.0)
    db.autocommit = True
    watched.leased += [item(n) for n in range(MANY)]
    began = time.monotonic()
    work = [
        asyncio.create_task(watched.orders.run()),
        asyncio.create_task(
            listen(Resources(database, "queued"), [lambda: 3600.0], watched.orders.news)
        ),
    ]
    await eventually(lambda: watched.watch.ready and watched.orders.news.heard)
    for n in range(MANY):
        db.execute("SELECT suppress(%s)", (f"r{n}@b.example",))
        await let_others_run()
    await eventually(lambda: watched.ended() == list(range(MANY)))
    # each pause of Orders is half a second
    assert len(watched.looks) <= 2 * (time.monotonic() - began) + 1
    for task in work:
        task.cancel()
    await asyncio.wait(work)


async def test_nothing_goes_on_while_the_list_can_not_be_read(
    watched: Watched, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watched.watch
    db.execute("SELECT suppress('r1@b.example')")
    await watch.get_ready()

    async def away(*_: object) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(Link, "run", away)
        with pytest.raises(StoreUnavailable):
            await watch.look_at([item(1)])
        with pytest.raises(StoreUnavailable):
            await watch.read()
        assert not watch.ready
        with pytest.raises(StoreUnavailable):  # so nothing is claimed
            await watch.get_ready()
    watched.leased.append(item(1))
    await watch.get_ready()
    assert watched.ended() == [1]
    for look in (watch.read, lambda: watch.look_at([item(1)]), lambda: watched.words([])):
        await watched.link.run("SELECT")
        watched.link.timeline = None  # as that of a standby
        with pytest.raises(StoreUnavailable, match="takes no writes"):
            await look()


def test_mail_that_waits_for_its_retry_ends_with_a_dsn_that_goes(system: System) -> None:
    """Over two processes; its sender is suppressed too, and the DSN goes nevertheless."""
    hop = system.hop(at("RCPT", "450 4.2.1 not now"))
    # so that each claim looks from the beginning on
    system.ask("SELECT suppress('s@a.example', source => 'test')")
    for _ in range(2):
        system.queued(hop, retry={"intervals": ["1h"]}, bounces={"gather": "1s"})
    ends = {"bounce": "ann", "remove": "bob", "hold": "joe"}
    ids = {
        policy: system.enqueue(f"{name}@b.example", sender="s@a.example", on_failed=policy)
        for policy, name in ends.items()
    }
    system.wait_queue(lambda rows: {row["status"] for row in rows} == {"DEFERRED"})
    for name in (*ends.values(), "late"):
        system.ask("SELECT suppress(%s, source => 'test')", f"{name}@b.example")
    hop.script = as_usual
    system.ask("UPDATE queue SET next_attempt = clock_timestamp()")
    ids["late"] = system.enqueue("late@b.example", sender="s@a.example", on_failed="remove")
    system.wait_empty()
    assert [each.recipients for each in hop.transactions if each.content] == [["s@a.example"]]
    report = hop.transactions[-1].content or b""
    for words in (b"Status: 5.7.1", b"X-pgmta; suppressed since 2", b"operator (test)"):
        assert words in report
    assert b"Last-Attempt-Date" not in report
    for number in ids.values():
        (status,) = system.ask("SELECT state, reply FROM status(ARRAY[%s]::bigint[])", number)
        assert status["state"] == "suppressed"
        assert status["reply"].endswith("UTC: operator (test)")
    assert system.events("late@b.example") == ["suppressed"]
    assert system.ask("SELECT attempt FROM attempts WHERE recipient = 'late@b.example'") == [
        {"attempt": 0}
    ]
    (report_row,) = system.attempts("s@a.example")
    assert report_row["metadata"]["_exempt"] == "report"


@pytest.mark.slow
def test_a_burst_counts_within_a_second_for_rows_of_two_processes(
    system: System, request: pytest.FixtureRequest
) -> None:
    """Half of the mail waits in the workers, behind a slow next hop, when the burst comes."""
    size = int(request.config.getoption("--burst-suppressions"))
    hop, slow, other = system.hop(), system.hop(holding_at("MAIL")), system.hop()
    routes = {"slow.example": slow.target, "other.example": other.target, "*": hop.target}
    for _ in range(2):
        system.queued(routes=routes, delivery={"connections": 1})
    people = [f"{n}@{domain}" for domain in ("b.example", "slow.example") for n in range(MANY)]
    for address in people[MANY:]:
        system.enqueue(address, on_failed="remove")
    slow.wait(lambda: slow.transactions)  # the others wait behind the first
    burst = [*people, *(f"x{n}@b.example" for n in range(size - len(people)))]
    random.Random(size).shuffle(burst)
    for start in range(0, len(burst), PER_COMMIT):
        put = "SELECT suppressions_put(%s, NULL, NULL)"
        system.ask(put, burst[start : start + PER_COMMIT])
    take_time(1.0 + SLACK)  # from then on no attempt begins
    under_way = len(slow.transactions)
    slow.script = as_usual
    slow.release()
    for n in range(MANY):
        system.enqueue(f"{n}@b.example", on_failed="remove")
        system.enqueue(f"{n}@other.example", on_failed="remove")
    system.wait_empty()
    assert len(other.kept) == MANY
    assert hop.transactions == []
    assert len(slow.kept) == under_way
    ended = system.ask("SELECT event, count(*) AS rows FROM attempts GROUP BY 1 ORDER BY 1")
    assert [(each["event"], each["rows"]) for each in ended] == [
        ("delivered", MANY + under_way), ("suppressed", 2 * MANY - under_way)
    ]  # fmt: skip
