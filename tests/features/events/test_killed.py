"""Workers and PostgreSQL are killed while mail has mixed outcomes: events are the log, one to one.

`--event-kills 100` is the long run.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.features.events.event_log import events, send, subscribe
from tests.support.database import PrivateServer
from tests.support.killer import Killer
from tests.support.nexthop import Do, Script, Transaction
from tests.support.system import System
from tests.support.waiting import PATIENCE, take_time, until

pytestmark = pytest.mark.slow

MAILS = 60  # between two kills
LOGGED = """
SELECT CASE WHEN event = 'failed' AND class = 'expired' THEN 'expired'
    WHEN event = 'failed' THEN 'bounced' WHEN event = 'deleted' THEN 'cancelled' ELSE event END,
    message_id, row_id, lease_token, ended_at FROM attempts
"""
WRITTEN = "SELECT kind, message_id, row_id, lease_token, ended_at FROM mail_events WHERE row_id > 0"


@pytest.fixture
def system(tmp_path: Path, private_server: PrivateServer) -> Iterator[System]:
    """A relay on a server that the test may crash."""
    system = System(tmp_path, private_server.uri)
    yield system
    system.clean()


def moody(chance: random.Random) -> Script:
    """A next hop that takes mail, puts it off, refuses it, or goes without an answer."""
    at_the_end = [None, None, None, Do(line="451 4.3.0 Not now"), Do(line="550 5.1.1 No such user"),
                  Do(drop=True)]  # fmt: skip

    def script(point: str, _: str, __: Transaction | None) -> Do | None:
        return chance.choice(at_the_end) if point == "end of data" else None

    return script


def submit(uri: str, chance: random.Random) -> bool:
    """Submit mail, some of which is cancelled, or rolled back; return whether the server lived."""
    with suppress(psycopg.Error), psycopg.connect(uri, connect_timeout=5) as db:
        db.execute("SET search_path = pgmta")
        for _ in range(MAILS):
            message = send(db, f"r{chance.getrandbits(60)}@b.example")  # not suppressed yet
            if chance.random() < 0.2:
                db.execute("SELECT cancel(%s)", (message,))
            if chance.random() < 0.1:
                db.rollback()
                db.execute("SET search_path = pgmta")
            db.commit()
        return True
    return False


def over(uri: str) -> bool:
    """Whether nothing waits, and each event has its number."""
    with suppress(psycopg.Error), psycopg.connect(uri) as db:
        waits = "SELECT EXISTS (SELECT FROM pgmta.queue), EXISTS (SELECT FROM pgmta.event_commits)"
        return db.execute(waits).fetchone() == (False, False)
    return False


@pytest.mark.timeout(0)
def test_events_are_the_log_whatever_dies(
    system: System, private_server: PrivateServer, request: pytest.FixtureRequest
) -> None:
    kills = int(request.config.getoption("--event-kills"))
    seed = random.SystemRandom().randrange(10**6)
    print("seed", seed)
    chance, uri = random.Random(seed), private_server.uri
    hop = system.hop(moody(random.Random(seed)))
    settings: dict[str, Any] = {
        "process": {"lease": "3s"},
        "retry": {"intervals": ["1s"]},
    }
    workers = [system.queued(hop, **settings) for _ in range(2)]
    killer = Killer(chance, private_server, workers)
    with psycopg.connect(uri, autocommit=True) as db:
        db.execute("SET search_path = pgmta")
        subscribe(db)
    for _ in range(kills):
        until(lambda: submit(uri, chance))
        take_time(chance.uniform(0.0, 0.5))
        killer.kill()
    killer.revive()
    until(lambda: over(uri), PATIENCE + kills * 5)
    with psycopg.connect(uri, autocommit=True) as db:
        db.execute("SET search_path = pgmta")
        logged = Counter(db.execute(LOGGED).fetchall())
        assert Counter(db.execute(WRITTEN).fetchall()) == logged
        found = events(db)
        read = Counter((each.kind, each.message_id, each.row_id) for each in found if each.row_id)
        assert read == Counter((kind, message, row) for kind, message, row, _, _ in logged)
        assert len({each.id for each in found}) == len(found)
        accepted = [each.message_id for each in found if each.kind == "accepted"]
        assert set(accepted) == {message for _, message, _, _, _ in logged}
        assert len(set(accepted)) == len(accepted)
    print(dict(killer.done), Counter(each.kind for each in found))
