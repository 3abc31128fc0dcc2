"""PostgreSQL, queued and the application are killed: mails are those of the committed orders.

Option --submission-rounds (CONTRIBUTING.md).
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.daemons import ROOT, Queued
from tests.support.database import PrivateServer
from tests.support.nexthop import Do, Script, Transaction
from tests.support.system import System
from tests.support.waiting import until

ORDERS = 50  # per round
LEASE = "3s"
PATIENCE = 120.0


class Recipients:
    """Counts what the next hop keeps; it sometimes loses the connection after the final dot."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self.kept: Counter[str] = Counter()

    def script(self, point: str, _: str, transaction: Transaction | None) -> Do | None:
        if point != "end of data" or not transaction:
            return None
        with self._lock:
            fate = self._chance.random()
            if fate < 0.03:
                return Do(line="451 4.3.0 not now")
            self.kept.update(transaction.recipients)
            return Do(drop=True) if fate < 0.06 else None


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    """Number of rounds."""
    return int(request.config.getoption("--submission-rounds"))


@pytest.fixture
def system(tmp_path: Path, private_server: PrivateServer) -> Iterator[System]:
    """A relay on a server that the test may crash."""
    system = System(tmp_path, private_server.uri)
    yield system
    system.clean()


def shop(uri: str, seed: str, first: int) -> subprocess.Popen[bytes]:
    """Start the application."""
    words = [sys.executable, "-m", "tests.support.shop", uri, seed, str(first), str(ORDERS)]
    return subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL)


def one_round(chance: random.Random, number: int, server: PrivateServer, worker: Queued) -> str:
    """Kill some of the three while the application sells, and start them again afterwards."""
    chosen = [name for name in ("shop", "queued", "postgres") if chance.random() < 0.5]
    process = shop(server.uri, f"{number} 1", number * ORDERS)
    chance.shuffle(chosen)
    for name in chosen:
        threading.Event().wait(chance.uniform(0.0, 0.25))
        if name == "shop":
            process.kill()
        elif name == "queued":
            worker.kill()
        else:
            server.crash()
            server.start()
    if "queued" in chosen:
        worker.start()
    if "shop" in chosen:
        process.wait(PATIENCE)
        process = shop(server.uri, f"{number} 2", number * ORDERS)
    assert process.wait(PATIENCE) == 0
    return "+".join(chosen) or "nothing"


def rows(system: System, query: str) -> list[Any]:
    return [tuple(row.values()) for row in system.ask(query)]


def settled(system: System) -> bool:
    """Whether each row has gone, or waits for an operator."""
    return rows(system, "SELECT count(*) FROM queue WHERE status <> 'HOLD'") == [(0,)]


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_mails_are_those_of_the_committed_orders(
    system: System, private_server: PrivateServer, rounds: int
) -> None:
    seed = random.SystemRandom().randrange(10**6)
    chance, hop = random.Random(seed), Recipients(seed)
    script: Script = hop.script
    with psycopg.connect(private_server.uri, autocommit=True) as db:
        db.execute("CREATE TABLE public.orders (id bigint PRIMARY KEY, once boolean NOT NULL)")
    worker = system.queued(
        system.hop(script),
        process={"lease": LEASE},
        retry={"intervals": ["1s"]},
    )
    story = [f"seed {seed}"]
    for number in range(1, rounds + 1):
        story.append(f"{number}: {one_round(chance, number, private_server, worker)}")
        print(story[-1], flush=True)
    until(lambda: settled(system), PATIENCE)

    orders = dict(rows(system, "SELECT 'order' || id, once FROM public.orders"))
    kept = {address.partition("@")[0]: times for address, times in hop.kept.items()}
    unknown = dict(
        rows(system, "SELECT split_part(recipient, '@', 1), count(*) FROM attempts"
             " WHERE event = 'unknown' GROUP BY 1")
    )  # fmt: skip
    duplicates = dict(
        rows(system, "SELECT split_part(recipient, '@', 1), possible FROM duplicates")
    )
    held = {name for (name,) in rows(system, "SELECT split_part(recipient, '@', 1) FROM queue")}
    found = [f"{name}: mail without an order" for name in kept.keys() - orders.keys()]
    for name, once in orders.items():
        copies = kept.get(name, 0)
        if not copies and not (once and unknown.get(name)):
            found.append(f"{name}: no mail")
        if copies > 1 and (once or duplicates.get(name, 0) < copies):
            found.append(f"{name}: {copies} copies, {unknown.get(name, 0)} unknown, once {once}")
        if once and bool(unknown.get(name)) != (name in held):
            found.append(f"{name}: unknown {unknown.get(name)}, held {name in held}")
    copies = sum(times > 1 for times in kept.values())
    summary = (
        f"{rounds} rounds, {len(orders)} orders, {sum(orders.values())} of them once,"
        f" {copies} recipients with copies, {len(held)} held"
    )
    print(summary)
    assert found == [], "\n".join([summary, *story, *found])
    assert len(orders) > rounds * ORDERS / 2
