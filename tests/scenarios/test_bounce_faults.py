"""Workers and PostgreSQL are killed while messages fail: each failure is notified exactly once.

Options --bounce-kills and --bounce-messages (CONTRIBUTING.md).
"""

from __future__ import annotations

import email
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.database import PrivateServer
from tests.support.killer import Killer
from tests.support.nexthop import Do, Script, Transaction
from tests.support.system import System
from tests.support.waiting import PATIENCE, take_time, until

SENDER, POSTMASTER = "sender{}@senders.example", "postmaster@senders.example"
BAD, GOOD = "bad{}.{}@hop.example", "good{}.{}@hop.example"
DEAF = "deaf{}@senders.example"
"""A sender whose own mail is refused: the postmaster is notified that the DSN failed."""


class Notified:
    """A next hop's script: `bad` recipients are refused, DSNs are taken and noted.

    Some replies are temporary, and some connections break after the final dot.
    """

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self.copies: Counter[tuple[str, str]] = Counter()
        """How often each DSN came: by recipient and Message-ID."""
        self.named: dict[tuple[str, str], list[str]] = {}
        """The failed recipients that a DSN names."""
        self.problems: list[str] = []
        self._of: dict[str, set[str]] = defaultdict(set)

    @property
    def script(self) -> Script:
        """The script."""
        return self._say

    def of(self, address: str) -> dict[str, list[str]]:
        """Return the failed recipients by Message-ID of the DSNs to an address."""
        return {number: self.named[address, number] for number in self._of[address]}

    def _say(self, point: str, line: str, transaction: Transaction | None) -> Do | None:
        if point == "RCPT":
            local = line[line.index("<") + 1 :]
            with self._lock:
                later = self._chance.random() < 0.02
            if later:
                return Do(line="451 4.3.0 Not now")
            if local.startswith(("bad", "deaf")):
                return Do(line="550 5.1.1 No such user")
        if point == "end of data" and transaction:
            with self._lock:
                fate = self._chance.random()
                if fate < 0.02:
                    return Do(line="451 4.3.0 Not now")
                self._note(transaction)
                transaction.content = b""  # there may be many
                return Do(drop=True) if fate < 0.04 else None
        return None

    def _note(self, transaction: Transaction) -> None:
        if transaction.sender:
            return
        dsn = email.message_from_bytes(transaction.content or b"")
        names = [
            str(block["Final-Recipient"]).partition(";")[2].strip()
            for part in dsn.walk()
            if part.get_content_type() == "message/delivery-status"
            for block in part.get_payload()
            if isinstance(block, email.message.Message) and block["Final-Recipient"]
        ]
        if not names or dsn["Auto-Submitted"] is None:
            self.problems.append(f"no DSN, to {transaction.recipients}: {dsn.as_string()[:500]}")
        for recipient in transaction.recipients:
            key = recipient, str(dsn["Message-ID"])
            self.copies[key] += 1
            self._of[recipient].add(key[1])
            if self.named.setdefault(key, names) != names:
                self.problems.append(f"{key} names {self.named[key]}, and then {names}")


def doubled(named: dict[tuple[str, str], list[str]]) -> dict[str, list[str]]:
    """Return the failed recipients that more than one DSN names, with the Message-IDs."""
    found: dict[str, list[str]] = defaultdict(list)
    for (_, message_id), names in named.items():
        for name in names:
            found[name].append(message_id)
    return {name: ids for name, ids in found.items() if len(ids) > 1}


LEASE = "3s"
WORKERS = 3
PAUSE = 0.4  # seconds: the longest between two kills
BOUNCES = {
    "gather": "1s",
    "postmaster": POSTMASTER,
    "limits": {"sender": 1_000_000, "all": 1_000_000},
}


class Flow:
    """Messages that fail: mostly one recipient, sometimes three of which one is good.

    A table of their numbers is written in the same transaction: an answer that was lost is found.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.senders: dict[int, str] = {}
        self.failing: dict[int, list[str]] = {}
        with psycopg.connect(uri, autocommit=True) as db:
            db.execute("CREATE TABLE public.fed (number bigint PRIMARY KEY)")

    def feed(self, first: int, count: int) -> None:
        """Insert messages, in one transaction; again if the database dies meanwhile."""
        rows = []
        for number in range(first, first + count):
            sender = (DEAF if number % 20 == 7 else SENDER).format(number)
            several = [BAD.format(number, 1), GOOD.format(number, 2)] if number % 10 == 3 else []
            recipients = [BAD.format(number, 0), *several]
            self.senders[number] = sender
            self.failing[number] = [each for each in recipients if each.startswith("bad")]
            rows.append((number, sender, recipients))
        until(lambda: self._inserted(first, rows), PATIENCE)

    def _inserted(self, first: int, rows: list[tuple[int, str, list[str]]]) -> bool:
        try:
            with psycopg.connect(self.uri, connect_timeout=5) as db:
                there = db.execute("SELECT FROM public.fed WHERE number = %s", [first]).fetchone()
                if there is None:
                    self._insert(db, rows)
        except psycopg.OperationalError:
            return False
        return True

    def _insert(self, db: psycopg.Connection, rows: list[tuple[int, str, list[str]]]) -> None:
        with db.cursor() as cursor:
            cursor.executemany(
                "WITH fed AS (INSERT INTO public.fed VALUES (%(number)s)), message AS ("
                " INSERT INTO messages (id, size, trace, body, message_id_header)"
                " SELECT nextval('message_ids'), length(body), E'Received: by test\\r\\n', body,"
                "  %(header)s FROM convert_to(%(content)s, 'UTF8') AS body RETURNING id)"
                " INSERT INTO queue (message_id, sender, recipient, domain, on_failed)"
                " SELECT id, %(sender)s, recipient, 'hop.example', 'bounce'"
                " FROM message, unnest(%(recipients)s::text[]) AS recipient",
                [
                    {
                        "number": number,
                        "header": f"<{number}@senders.example>",
                        "content": f"Message-ID: <{number}@senders.example>\r\n\r\nx\r\n",
                        "sender": sender,
                        "recipients": recipients,
                    }
                    for number, sender, recipients in rows
                ],
            )


@pytest.fixture
def system(tmp_path: Path, private_server: PrivateServer) -> Iterator[System]:
    """A relay on a server that the test may crash."""
    system = System(tmp_path, private_server.uri)
    yield system
    system.clean()


def rows(system: System, query: str) -> list[Any]:
    return [tuple(row.values()) for row in system.ask(query)]


def empty(system: System) -> bool:
    """Whether the queue is empty, as far as the database says."""
    with suppress(psycopg.Error):
        return rows(system, "SELECT count(*) FROM queue") == [(0,)]
    return False


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_each_failure_is_notified_once(
    system: System, private_server: PrivateServer, request: pytest.FixtureRequest
) -> None:
    kills = int(request.config.getoption("--bounce-kills"))
    messages = int(request.config.getoption("--bounce-messages"))
    seed = random.SystemRandom().randrange(10**6)
    chance, notified, flow = random.Random(seed), Notified(seed), Flow(private_server.uri)
    hop = system.hop(notified.script)
    settings: dict[str, Any] = {
        "process": {"lease": LEASE},
        "retry": {"intervals": ["1s"]},
        "bounces": BOUNCES,
    }
    workers = [system.queued(hop, **settings) for _ in range(WORKERS)]
    killer = Killer(chance, private_server, workers)
    began, fed = time.monotonic(), 0
    for number in range(1, kills + 1):
        share = messages * number // kills
        flow.feed(fed, share - fed)
        fed = share
        take_time(chance.uniform(0.0, PAUSE))
        killer.kill()
        hop.transactions.clear()
        if number % 20 == 0:
            print(f"seed {seed}: {number} kills, {time.monotonic() - began:.0f} s", flush=True)
    killer.revive()
    until(lambda: empty(system), 2 * PATIENCE + messages / 50)

    found = judge(system, notified, flow)
    copies = sum(times > 1 for times in notified.copies.values())
    summary = (
        f"seed {seed}: {dict(killer.done)}, {messages} messages, {len(notified.copies)} DSNs,"
        f" of which {copies} came more than once, in {time.monotonic() - began:.0f} s"
    )
    print(summary)
    assert found == [], "\n".join([summary, *found[:50]])


def judge(system: System, notified: Notified, flow: Flow) -> list[str]:
    """Compare the failed recipients with the log, the table reports and the DSNs that came."""
    found = list(notified.problems)
    refused = Counter(dict(rows(system, "SELECT recipient, count(*) FROM attempts"
                                        " WHERE event = 'failed' GROUP BY 1")))  # fmt: skip
    logged = Counter(dict(rows(system, "SELECT recipient, count(*) FROM reports"
                                       " WHERE kind = 'failed' AND report_id IS NOT NULL"
                                       " GROUP BY 1")))  # fmt: skip
    for number, failing in flow.failing.items():
        sender = flow.senders[number]
        deaf = sender.startswith("deaf")
        dsns = notified.of(sender)
        named = sorted(name for names in dsns.values() for name in names)
        if named != ([] if deaf else sorted(failing)):
            found.append(f"{sender} was notified of {named}, and {failing} failed")
        if len(failing) == 1 and len(dsns) != (not deaf):
            found.append(f"{sender} has {len(dsns)} DSNs")
        # an outcome under an old lease is in the log as well, and changes nothing
        found += [f"{each} did not fail in the log" for each in failing if not refused[each]]
        found += [f"{each} is in {logged[each]} reports" for each in failing if logged[each] != 1]
    deaf_ones = [each for each in flow.senders.values() if each.startswith("deaf")]
    to_postmaster = sorted(name for names in notified.of(POSTMASTER).values() for name in names)
    many = Counter(to_postmaster)
    found += [f"the postmaster was notified {many[each]} times of {each}" for each in deaf_ones
              if many[each] != 1]  # fmt: skip
    found += [f"{name}: {ids}" for name, ids in doubled(notified.named).items()]
    found += unexplained(system, notified)
    if left := rows(system, "SELECT count(*) FROM messages"):
        found += [f"{number} bodies are left" for (number,) in left if number]
    return found


def unexplained(system: System, notified: Notified) -> list[str]:
    """Return the DSNs that came more often than unknown outcomes in the log explain."""
    unknown = dict(
        rows(
            system,
            "SELECT message_id_header, count(*) FROM attempts"
            " WHERE event = 'unknown' AND sender = '' GROUP BY 1",
        )
    )
    return [
        f"{times} copies of {message_id} to {recipient}, {unknown.get(message_id, 0)} unknown"
        for (recipient, message_id), times in notified.copies.items()
        if times > 1 + unknown.get(message_id, 0)
    ]
