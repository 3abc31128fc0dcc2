"""What bench/held has in its database: steady mail, dead rows, waiting rows, a campaign."""

import threading
import time
from typing import Any

import psycopg

from bench.held_queued import RATED
from bench.progress import log
from bench.rate_run import START, TEMPLATE, make_campaign

_TICK_S = 0.02  # mail comes in one transaction per tick
_FILL_ROWS = 20_000  # in one transaction
_WAITING_ROWS = 100_000  # in one statement
_SUBMIT = """
SELECT count(submit('sender@plain.example', ARRAY['r@d' || n %% 50 || '.example'],
    E'Subject: steady\\r\\n\\r\\nHello\\r\\n'::bytea))
FROM generate_series(%s::bigint, %s::bigint) AS n
"""
# as when they came at the rate before now, were claimed and were delivered
_INSERT_DEAD = """
WITH numbers AS (
    SELECT n, 2000000000000 + n AS id, 'd' || n %% 50 || '.example' AS domain,
        clock_timestamp() - make_interval(secs => (%(all)s - n) / %(rate)s) AS at
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
), bodies AS (
    INSERT INTO messages (id, size, trace, body)
    SELECT id, 20, E'Received: by bench\\r\\n', E'Subject: dead\\r\\n\\r\\n' FROM numbers
)
INSERT INTO queue (message_id, sender, sender_domain, recipient, domain, next_attempt, ts)
SELECT id, 's@dead.bench', 'dead.bench', 'x@' || domain, domain, at, at FROM numbers
"""
_LEASE_DEAD = """
UPDATE queue SET status = 'SENDING', attempts = 1, lease_owner = 'bench', lease_since = now(),
    lease_token = 1, lease_until = now() + '1 h' WHERE sender_domain = 'dead.bench'
"""
_INSERT_WAITING = """
WITH numbers AS (
    SELECT n, 1000000000000 + n AS id FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
), bodies AS (
    INSERT INTO messages (id, size, trace, body)
    SELECT id, 20, E'Received: by bench\\r\\n', E'Subject: waiting\\r\\n\\r\\n' FROM numbers
)
INSERT INTO queue (message_id, sender, recipient, domain, status, next_attempt)
SELECT id, 's@waiting.bench', n || '@' || domain, domain, status, next_attempt
FROM numbers, LATERAL (SELECT
    CASE WHEN %(due)s THEN 'dead.example' ELSE 'w' || n %% 1000 || '.example' END AS domain,
    CASE WHEN %(due)s THEN 'QUEUED' ELSE 'DEFERRED' END AS status,
    CASE WHEN %(due)s THEN now() ELSE now() + '1 day' + n * interval '1 ms' END AS next_attempt
) AS each
"""

type Database = psycopg.Connection[Any]
"""A connection whose search_path has the queue."""


class Producer(threading.Thread):
    """Puts mail in at a steady rate, and counts what is committed."""

    def __init__(self, uri: str, rate: float) -> None:
        super().__init__(daemon=True)
        self._uri, self._rate = uri, rate
        self._done = threading.Event()
        self.committed = 0
        self.failed: Exception | None = None

    def run(self) -> None:
        """Work until stopped; a commit that takes long is made up for."""
        try:
            with psycopg.connect(self._uri, autocommit=True, application_name="bench") as db:
                db.execute("SET search_path = pgmta")
                began = time.monotonic()
                while not self._done.wait(_TICK_S):
                    until = int((time.monotonic() - began) * self._rate)
                    until = min(until, self.committed + max(1, int(self._rate)))
                    if until > self.committed:
                        db.execute(_SUBMIT, (self.committed + 1, until))
                        self.committed = until
        except psycopg.Error as error:
            self.failed = error

    def stop(self) -> None:
        """End it."""
        self._done.set()
        self.join()


def make_dead(db: Database, rows: int, rate: float) -> None:
    """Make dead rows as mail at that rate leaves them beside a snapshot."""
    for first in range(1, rows + 1, _FILL_ROWS):
        last = min(rows, first + _FILL_ROWS - 1)
        with db.transaction():
            sizes = {"first": first, "last": last, "all": rows, "rate": rate}
            db.execute(_INSERT_DEAD, sizes)
            db.execute(_LEASE_DEAD)
            db.execute("DELETE FROM queue WHERE sender_domain = 'dead.bench'")
            db.execute("DELETE FROM messages WHERE id > 2000000000000")
        log(f"dead rows: {last}")


def make_waiting(db: Database, rows: int, *, due: bool) -> None:
    """Queue rows that wait for a day, or with `due` for a next hop that is away."""
    for first in range(1, rows + 1, _WAITING_ROWS):
        last = min(rows, first + _WAITING_ROWS - 1)
        db.execute(_INSERT_WAITING, {"first": first, "last": last, "due": due})
        log(f"waiting rows: {last}")


def start_campaign(db: Database, rate: float, seconds: float) -> None:
    """Start a campaign that has mail for so long."""
    db.execute(TEMPLATE)
    number = make_campaign(db, f"news@{RATED}", round(rate * seconds))
    db.execute(START, (number, rate, 1))
