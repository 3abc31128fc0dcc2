"""A campaign with one queued and a next hop, and looks at it while it runs."""

import threading
import time
from array import array
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import psycopg

from bench import cpu
from bench.campaign_sink import FILES
from bench.daemons import Product
from bench.database import Server, fresh, rest
from bench.helper import Helper, HelperError
from bench.options import commands_of
from bench.progress import log
from pgmta.store.admin.migrate import migrate
from pgmta.store.campaigns.campaigns import CampaignTable

NAME = "news"
DOMAINS = 5000
STEP = 100_000  # recipients of an INSERT
LOOK = 0.02  # seconds between two looks whether a job is done
PATIENCE = 120.0  # seconds
_TEMPLATE = """
INSERT INTO templates (name, version, sender, from_field, subject, body, words)
VALUES ('news', 1, 'news@a.example', 'News <news@a.example>', 'News from {{city}} for {{name}}',
    E'Dear {{name}},\n\nthis is new in {{city}}:\n\n'
        || repeat(E'The quick brown fox jumps over the lazy dog, again and again.\n', 60)
        || E'\nYours, {{city}}\n',
    '{"name": ["body", "subject"], "city": ["body", "subject"]}')
"""
_RECIPIENTS = f"""
INSERT INTO campaign_recipients (campaign_id, number, recipient, domain, params, state)
SELECT %(campaign)s, n, 'r' || n || '@d' || n %% {DOMAINS} || '.example',
    'd' || n %% {DOMAINS} || '.example', jsonb_build_object('name', 'N' || n, 'city', 'City ' || n),
    CASE WHEN n <= %(done)s THEN 'sent' ELSE 'unsent' END
FROM generate_series(%(first)s::integer, %(last)s) AS n
"""
_SINGLE = f"""
SELECT submit('app@b.example', ARRAY['t' || n || '@d' || n * 7 %% {DOMAINS} || '.example'],
    convert_to(
        E'Subject: Your code\r\n\r\n' || repeat(E'0123456789\r\n', 100), 'UTF8'),
    wake => true)
FROM generate_series(%s::integer, %s) AS n
"""
_DUE = """
SELECT count(*) FROM queue WHERE priority = 7 AND next_attempt <= now()
    AND status IN ('QUEUED', 'DEFERRED', 'SENDING')
"""


class Thread(threading.Thread):
    """Repeats work every `every` seconds, until stopped."""

    def __init__(self, every: float, work: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._every, self._work = every, work
        self._stopping = threading.Event()
        self._error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Work at even times; late work is not repeated."""
        due = time.monotonic()
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            due = max(due + self._every, time.monotonic() - self._every)
            try:
                self._work()
            except Exception as error:
                self._error = error
                return

    def stop(self) -> None:
        """End, and raise the error that ended it before."""
        self._stopping.set()
        self.join()
        if self._error:
            raise self._error


class CampaignLine:
    """A database with a campaign, a sink, and one queued."""

    def __init__(
        self, server: Server, directory: Path, recipients: int, done: int, singles: int
    ) -> None:
        self._server, self._directory = server, directory
        self.recipients, self.done, self._singles = recipients, done, singles
        self.stack = ExitStack()
        self.notes: list[str] = []
        self.shows: list[float] = []  # seconds of each look of `show`
        self.due: list[int] = []  # rows of the campaign that were due at each look
        self.sent: list[float] = []  # when each single mail was committed

    def __enter__(self) -> Self:
        """Make the recipients, and start all."""
        with self.stack:
            self._open()
            self.stack = self.stack.pop_all()
        return self

    def _open(self) -> None:
        self.uri = self.stack.enter_context(fresh(self._server, keep=False))
        migrate(self.uri)
        self.db = self.connect()
        self.db.execute(_TEMPLATE)
        self.campaign = self.ask("SELECT campaign_create('news', 'ses-1', 'news')")
        for first in range(1, self.recipients + 1, STEP):
            last = min(self.recipients, first + STEP - 1)
            span = {"campaign": self.campaign, "first": first, "last": last, "done": self.done}
            self.db.execute(_RECIPIENTS.encode(), span)
        log(f"{self.recipients:,} recipients")
        rest(self.uri)
        config = {"recipients": self.recipients, "singles": self._singles,
                  "directory": str(self._directory)}  # fmt: skip
        self.sink = Helper("campaign_sink", config, self._directory / "campaign_sink.log")
        self.stack.callback(self.sink.close)
        self.product = Product(commands_of(None), self._directory, self.uri, self.notes)
        self.stack.callback(self.product.stop)
        pids = self.product.start_queued(1, int(self.sink.wait("ready")["port"]))
        self.groups: cpu.Groups = {"queued": pids, "sink": [self.sink.process.pid]}
        if self._server.postmaster:
            self.groups["postgres"] = [self._server.postmaster]
        self.table = CampaignTable(self.uri, "bench")
        self.stack.callback(self.table.close)

    def __exit__(self, *_: object) -> None:
        """Stop all."""
        self.stack.close()

    def connect(self) -> psycopg.Connection[Any]:
        """Return another session, which closes at the end."""
        db = self.stack.enter_context(psycopg.connect(self.uri, autocommit=True))
        db.execute("SET search_path = pgmta")
        return db

    def ask(self, query: str, *params: object) -> Any:
        """Return the one value of a query."""
        row = self.db.execute(query.encode(), params).fetchone()
        return row[0] if row else None

    def look(self) -> ExitStack:
        """Look at the campaign, as `show` does, and at its rows, until the context ends."""
        db, stack = self.connect(), ExitStack()

        def show() -> None:
            began = time.monotonic()
            self.table.state("", NAME)
            self.shows.append(time.monotonic() - began)

        def due() -> None:
            row = db.execute(_DUE).fetchone()
            self.due.append(row[0] if row else 0)

        for every, work in ((0.25, show), (0.05, due)):
            stack.callback(Thread(every, work).stop)
        return stack

    def submit_singles(self, rate: float) -> ExitStack:
        """Submit single mail, until the context ends."""
        db, stack = self.connect(), ExitStack()

        def submit() -> None:
            number = len(self.sent)
            if number < self._singles:
                db.execute(_SINGLE.encode(), (number, number))
                self.sent.append(time.monotonic())

        stack.callback(Thread(1 / rate, submit).stop)
        return stack

    def wait(self, seconds: float) -> None:
        """Wait, and notice a process that ends."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.product.check()
            time.sleep(min(left, 0.2))

    def wait_done(self, stall: float = PATIENCE) -> float:
        """Wait until the jobs are done; return when. Raises HelperError if nothing moves."""
        moved, before = time.monotonic(), -1
        while not (state := self.table.state("", NAME)).done:
            now = time.monotonic()
            if state.ended != before:
                moved, before = now, state.ended
            elif now - moved > stall:
                raise HelperError(f"nothing moves for {stall:g} s: {state}")
            self.product.check()
            time.sleep(LOOK)
        return time.monotonic()

    def report(self) -> dict[str, Any]:
        """Return the figures of the sink, and its arrays."""
        self.sink.tell("report")
        found = self.sink.wait("report", 60.0)
        for name, kind in FILES.items():
            found[name] = array(kind, (self._directory / name).read_bytes())
        return found
