"""Mail with mixed outcomes under kills: the events are the outcomes, for each way to read them.

Options --event-kills and --event-mails (CONTRIBUTING.md).
"""

from __future__ import annotations

import json
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgmta.config.token_keys import read_key
from pgmta_features.events.kinds import KINDS
from pgmta_features.webhooks.signing import Secrets
from tests.features.events.event_log import Event, events
from tests.features.providers.scripted_server import CUT, Got, said
from tests.features.webhooks.receiver import OK, Receiver
from tests.support.database import PrivateServer
from tests.support.killer import Killer
from tests.support.nexthop import Do, Script, Transaction
from tests.support.rows import column
from tests.support.system import System
from tests.support.waiting import PATIENCE, take_time, until

WORKERS = 2
PAUSE_S = 0.4  # the longest between two kills
LOCKED_S = 0.3  # for which the application locks its table
SETTINGS: dict[str, Any] = {
    "process": {"lease": "3s"},
    "retry": {"intervals": ["1s"]},
    "bounces": {"gather": "1s", "limits": {"sender": 1_000_000, "all": 1_000_000}},
}
FATES = ("good", "good", "good", "good", "bad", "slow", "lost", "late", "cancelled", "held")

APPLICATION = """
CREATE ROLE shop LOGIN IN ROLE pgmta_submit;
CREATE SCHEMA shop AUTHORIZATION shop;
SET ROLE shop;
CREATE TABLE shop.mail_events (
    id text PRIMARY KEY, type text, at timestamptz, message_id bigint, recipient text,
    document jsonb
);
CREATE TABLE shop.got (number bigserial, id text);
CREATE FUNCTION shop.on_mail(events jsonb) RETURNS void LANGUAGE sql
    AS $$ INSERT INTO shop.got (id) SELECT e ->> 'id' FROM jsonb_array_elements(events) AS e $$;
GRANT ALL ON SCHEMA shop TO public;
GRANT ALL ON TABLE shop.mail_events TO public;
RESET ROLE;
CREATE TABLE public.fed (number bigint PRIMARY KEY);
SELECT pgmta.events_subscribe('cursor', 'reader');
SELECT pgmta.events_into('shop.mail_events');
SELECT pgmta.events_call('shop.on_mail');
"""
SUBMIT = """
SELECT pgmta.submit('s@a.example', ARRAY[%s], convert_to(E'Subject: x\\r\\n\\r\\nx\\r\\n', 'UTF8'),
    deadline => now() + %s * interval '1 second', send_at => now() + %s * interval '1 hour')
"""
CHANGE = """
SELECT pgmta.queue_change_rows(
    %s, ARRAY(SELECT id FROM pgmta.queue WHERE message_id = %s), 'me', %s)
"""
# of the log, as kinds of events; an outcome that came too late is in it as well
OUTCOMES = """
SELECT CASE WHEN event = 'failed' AND class = 'expired' THEN 'expired'
    WHEN event = 'failed' THEN 'bounced' WHEN event = 'deleted' THEN 'cancelled' ELSE event END,
    message_id, row_id, lease_token, ended_at FROM pgmta.attempts
"""
OF_LOG = """
SELECT kind, message_id, row_id, lease_token, ended_at FROM pgmta.mail_events
WHERE ended_at IS NOT NULL AND detail IS NULL
"""


def hop_script(seed: int) -> Script:
    """A next hop that gives each recipient what its name says."""
    chance = random.Random(seed)
    lock = threading.Lock()
    asked: Counter[str] = Counter()

    def say(point: str, line: str, transaction: Transaction | None) -> Do | None:
        if point == "RCPT":
            address = line[line.index("<") + 1 : line.index(">")]
            with lock:
                asked[address] += 1
                first = asked[address] == 1
            if address.startswith("bad"):
                return Do(line="550 5.1.1 No such user")
            if address.startswith("slow") and first:
                return Do(line="451 4.3.0 Not now")
        if point == "end of data" and transaction:
            transaction.content = b""
            with lock:
                lost = chance.random() < 0.5
            if lost and any(each.startswith("lost") for each in transaction.recipients):
                return Do(drop=True)
        return None

    return say


class Shop:
    """Submits mail in transactions of its own, of which some roll back, and changes some later."""

    def __init__(self, uri: str, chance: random.Random) -> None:
        self._uri = uri
        self._chance = chance

    def feed(self, numbers: range) -> None:
        """Submit mails in one transaction; again if the database dies meanwhile."""
        until(lambda: self._fed(numbers), PATIENCE)

    def _fed(self, numbers: range) -> bool:
        try:
            with psycopg.connect(self._uri, connect_timeout=5) as db:
                self._submit(db, range(10**6, 10**6 + 5))
                db.rollback()
                known = "SELECT FROM public.fed WHERE number = %s"
                if not db.execute(known, (numbers[0],)).fetchall():
                    self._submit(db, numbers)
        except psycopg.OperationalError:
            return False
        return True

    def _submit(self, db: psycopg.Connection, numbers: range) -> None:
        for number in numbers:
            fate = FATES[number % len(FATES)]
            later = 1 if fate in ("cancelled", "held") else None
            deadline = 1 if fate == "late" else None
            recipient = f"{fate}{number}@b.example"
            for (message,) in db.execute(SUBMIT, (recipient, deadline, later)).fetchall():
                if deadline:
                    db.execute(CHANGE, ("hold", message, '{"reason": "a look"}'))
            db.execute("INSERT INTO public.fed VALUES (%s)", (number,))

    def end(self, message: int, recipient: str) -> None:
        """Let late mail go, and cancel mail that is scheduled; again if the database dies."""
        until(lambda: self._ended(message, recipient), PATIENCE)

    def _ended(self, message: int, recipient: str) -> bool:
        try:
            with psycopg.connect(self._uri, autocommit=True, connect_timeout=5) as db:
                if recipient.startswith("held"):
                    db.execute(CHANGE, ("hold", message, '{"reason": "a look"}'))
                if not recipient.startswith("cancelled"):
                    db.execute(CHANGE, ("release", message, "{}"))
                if recipient.startswith("late"):
                    return True
                with suppress(ZeroDivisionError), db.transaction():
                    db.execute("SELECT pgmta.cancel(%s)", (message,))
                    if self._chance.random() < 0.3:
                        raise ZeroDivisionError
                db.execute("SELECT pgmta.cancel(%s)", (message,))
        except psycopg.OperationalError:
            return False
        return True

    def lock_table(self) -> None:
        """Hold up the inserts into its table for a while, as a migration does."""
        with suppress(psycopg.OperationalError), psycopg.connect(self._uri) as db:
            db.execute("LOCK TABLE shop.mail_events IN ACCESS EXCLUSIVE MODE")
            take_time(LOCKED_S)


class Reader:
    """Reads all events by cursor while they come, over connections that may die."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.found: list[Event] = []
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            with suppress(psycopg.Error), psycopg.connect(self._uri, autocommit=True) as db:
                db.execute("SET search_path = pgmta")
                while not self._over.wait(0.05):
                    self.found += events(db, self.found[-1].cursor if self.found else None, 100)

    def end(self) -> None:
        self._over.set()
        self._thread.join(PATIENCE)


@pytest.fixture
def system(tmp_path: Path, private_server: PrivateServer) -> Iterator[System]:
    """A relay on a server that the test may crash."""
    system = System(tmp_path, private_server.uri)
    yield system
    system.clean()


def ask(system: System, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in system.ask(query)]


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_events_are_the_outcomes(
    system: System, private_server: PrivateServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kills = int(request.config.getoption("--event-kills"))
    mails = int(request.config.getoption("--event-mails"))
    seed = random.SystemRandom().randrange(10**6)
    chance = random.Random(seed)
    key = tmp_path / "webhook.key"
    key.write_text(secrets.token_hex(32))
    key.chmod(0o600)
    known = Secrets([read_key(str(key))], {})
    posted: set[str] = set()

    def answer(got: Got) -> list[bytes]:
        if chance.random() < 0.1:
            return chance.choice(([CUT], said("500 x", b"", "Retry-After: 1")))
        posted.update(event["id"] for event in json.loads(got.body)["data"])
        return OK

    system.ask(APPLICATION)
    with Receiver() as receiver:
        system.ask(
            "SELECT pgmta.webhook_add('shop', %s, NULL, '{}', %s, NULL, 100)",
            receiver.url(), known.new_reference(),
        )  # fmt: skip
        receiver.answering["/"] = answer
        reader = Reader(private_server.uri)
        webhooks: dict[str, Any] = {"webhooks": {"keys": [str(key)], "networks": ["127.0.0.0/8"]}}
        hop = system.hop(hop_script(seed))
        workers = [system.queued(hop, **SETTINGS, **webhooks) for _ in range(WORKERS)]
        killer, shop = Killer(chance, private_server, workers), Shop(private_server.uri, chance)
        began, fed = time.monotonic(), 0
        try:
            for number in range(1, kills + 1):
                share = mails * number // kills
                shop.feed(range(fed, share))
                fed = share
                shop.lock_table()
                take_time(chance.uniform(0.0, PAUSE_S))
                killer.kill()
                hop.transactions.clear()
            killer.revive()
            waiting = (
                "SELECT message_id, recipient FROM queue WHERE status IN ('SCHEDULED', 'HOLD')"
            )
            for message, recipient in ask(system, waiting):
                shop.end(message, recipient)
            system.wait_empty(2 * PATIENCE + mails / 20)
            until(lambda: ask(system, "SELECT count(*) FROM event_commits") == [(0,)], PATIENCE)
            log = events_of(system)
            for way in (lambda: posted, lambda: reader.found,
                        lambda: of_application(system, "mail_events"),
                        lambda: of_application(system, "got")):  # fmt: skip
                with suppress(AssertionError):
                    until(lambda way=way: len(way()) >= len(log), 2 * PATIENCE)  # type: ignore[misc]
        finally:
            reader.end()
        late = ask(system, "SELECT later FROM event_tables")[0][0]
        print(
            f"seed {seed}: {dict(killer.done)}, {mails} mails, {len(log)} events, {late} late"
            f" in the table, {len(receiver.got())} requests, in {time.monotonic() - began:.0f} s"
        )
    assert Counter(ask(system, OUTCOMES)) == Counter(ask(system, OF_LOG))
    kinds = Counter(event.kind for event in log)
    assert kinds["accepted"] == ask(system, "SELECT count(*) FROM public.fed")[0][0] == mails
    assert {*kinds} == {*KINDS} - {"complained", "unsubscribed", "suppressed"}
    assert {"expired", "unknown_user"} <= {(event.document or {}).get("class") for event in log}
    ids = [event.id for event in log]
    assert len({*ids}) == len(ids)
    assert [event.id for event in reader.found] == ids
    assert of_application(system, "got") == ids
    assert sorted(of_application(system, "mail_events")) == sorted(map(str, ids))
    assert posted == {*ids}
    assert all(event.document for event in log)


def events_of(system: System) -> list[Event]:
    with psycopg.connect(system.uri, autocommit=True) as db:
        db.execute("SET search_path = pgmta")
        return events(db)


def of_application(system: System, table: str) -> list[str]:
    with psycopg.connect(system.uri) as db:
        order = "number" if table == "got" else "id"
        return column(db, f"SELECT id FROM shop.{table} ORDER BY {order}")
