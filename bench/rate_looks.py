"""Looks at the campaigns of a credential, often per second, while queued works."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

PER_SECOND = 100
_USING = """
SELECT count(*) FROM (
    SELECT j.campaign_id::text FROM campaign_jobs AS j JOIN campaigns AS c ON c.id = j.campaign_id
    WHERE c.credential = %(credential)s AND j.status IN ('ENQUEUED', 'SENDING', 'SENT')
    UNION SELECT split_part(q.metadata ->> '_campaign', '.', 1) FROM queue AS q
    WHERE q.metadata ->> 'credential' = %(credential)s) AS using_it
"""


@dataclass
class Looks:
    """Numbers of looks: all, with a campaign that uses the credential, and with several."""

    all: int = 0
    one: int = 0
    both: int = 0


@contextmanager
def looking(uri: str, credential: str) -> Iterator[Looks]:
    """Look `PER_SECOND` times per second: which jobs have it, and which mail is in the queue."""
    looks, done = Looks(), threading.Event()

    def look() -> None:
        with psycopg.connect(uri, autocommit=True) as db:
            db.execute("SET search_path = pgmta")
            while not done.wait(1 / PER_SECOND):
                row = db.execute(_USING, {"credential": credential}).fetchone()
                looks.all += 1
                looks.one += row == (1,)
                looks.both += row is not None and row[0] > 1

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield looks
    finally:
        done.set()
        thread.join()
