"""The command bench/stops: queued is stopped again and again while a large queue goes out."""

import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import click
import psycopg

from bench.columns import aligned
from bench.corpus import Plan
from bench.database import rest
from bench.helper import HelperError
from bench.line import Line
from bench.options import EXIT, HELP, commands_of, dump, failing, finish, opened, relay_options
from bench.progress import Progress, log

ABOUT = f"""Stop queued again and again while a large queue goes out, and kill it once.

Some processes of queued send --rows rows to one next hop, which takes --delay ms at most for each
message, at random. Every --every seconds one of them gets SIGTERM, and a new one follows it. Then
all are stopped. No message may have been sent twice, and each one that was sent has to be settled.
At last one process gets SIGKILL, and the others take its rows over. Each further copy needs an
attempt of unknown outcome in the log. {EXIT}an exit took too long."""
LONGEST = 31.0  # seconds from SIGTERM to the exit: `process.drain` and one more
KILLED = 60.0  # seconds until a process that does not end is killed
FIRST = 3_000_000_000_000  # id of the first message
STEP = 100_000  # rows of a commit
LOOK = 1.0  # seconds between looks whether the rows of a killed process are taken over
SHOWN = 5  # examples of a problem

_FILL = """
WITH numbers AS (
    SELECT n, 'd' || n %% %(domains)s || '.bench.test' AS domain
    FROM generate_series(%(from)s::bigint, %(to)s::bigint) AS n
), bodies AS (
    INSERT INTO messages (id, size, trace, body)
    SELECT %(first)s + n, 20, E'Received: by bench\\r\\n', E'Subject: waiting\\r\\n\\r\\n'
    FROM numbers
)
INSERT INTO queue (message_id, sender, sender_domain, recipient, domain)
SELECT %(first)s + n, 'source@bench.example', 'bench.example', 'r0.' || n || '@' || domain, domain
FROM numbers
"""
_OUTCOMES = """
SELECT sum(settled)::integer AS settled, sum(not_settled)::integer AS "not settled",
    sum(not_claimed)::integer AS "not claimed", sum(gone)::integer AS gone,
    sum(moved_on)::integer AS "moved on"
FROM outcome_counts
"""


@dataclass
class Audit:
    """The sink, the queue and the log at one time, while no queued runs."""

    copies: bytes  # of each message, at the sink
    waiting: dict[int, str]  # status of each row in the queue
    begun: list[int]  # rows in the queue that have an owner
    delivered: Counter[int]  # attempts of each message
    unknown: Counter[int]
    outcomes: dict[str, int]  # view outcome_counts

    def problems(self, clean: bool) -> list[str]:
        """Return what must not be; `clean`: every process has ended by itself."""
        found: dict[str, list[int]] = {}

        def note(problem: str, n: int) -> None:
            found.setdefault(problem, []).append(n)

        for n, copies in enumerate(self.copies):
            delivered, unknown, waits = self.delivered[n], self.unknown[n], n in self.waiting
            if copies > delivered + unknown:
                note("copies without an attempt in the log", n)
            if not copies and not waits:
                note("lost", n)
            if delivered and not copies:
                note("delivered in the log, and not at the sink", n)
            if delivered and waits:
                note("delivered, and still in the queue", n)
            if clean and copies > 1:
                note("sent twice", n)
            if clean and copies and waits:
                note("sent, and not settled", n)
            if clean and unknown:
                note("unknown after a clean exit", n)
        for n in self.begun:
            note("under a lease of a process that has ended", n)
        attempts = sum(self.delivered.values()) + sum(self.unknown.values())
        if clean and attempts != sum(self.outcomes.values()):
            note(f"{self.outcomes} are not all attempts:", attempts)
        return [f"{len(ns)} {problem}: {ns[:SHOWN]}" for problem, ns in found.items()]


@dataclass
class Exits:
    """The exits of processes after SIGTERM: codes and seconds."""

    codes: list[int | None] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def problems(self) -> list[str]:
        """Return the exits that were not clean."""
        return [f"an exit with {code}" for code in self.codes if code != 0]


class Stops(Line):
    """Processes of queued that share a large queue and one slow next hop."""

    def open(self, lease: str, delay: float, workers: int) -> None:
        """Fill the queue, and start the sink and queued."""
        plan = self.plan
        progress = Progress("fill", plan.messages)
        for first in range(0, plan.messages, STEP):
            last = min(plan.messages, first + STEP)
            values = {"first": FIRST, "from": first, "to": last - 1, "domains": plan.domains}
            self.control.execute(_FILL, values)
            progress.show(last)
        progress.end()
        rest(self.uri)
        self.exits, self.pids = Exits(), list[int]()
        self.lease = lease
        self.sink = self.helper("slow_sink", delay=delay)
        self.port = int(self.sink.wait("ready")["port"])
        for _ in range(workers):
            self.begin()

    def begin(self) -> None:
        """Start one process more."""
        self.pids += self.product.start_queued(1, self.port, {"process": {"lease": self.lease}})

    def end(self) -> None:
        """Stop the oldest process, and note its exit."""
        code, took = self.product.end(self.pids.pop(0), signal.SIGTERM, KILLED)
        self.exits.codes.append(code)
        self.exits.seconds.append(took)

    def stop_in_turn(self, number: int, every: float) -> None:
        """Stop the oldest process `number` times, and start another one after each."""
        due = time.monotonic()
        for turn in range(number):
            due += every
            time.sleep(max(0.0, due - time.monotonic()))
            self.product.check()
            self.end()
            log(f"stop {turn + 1}: {self.exits.seconds[-1]:.2f} s, exit {self.exits.codes[-1]}")
            self.begin()

    def kill(self) -> float:
        """Kill the oldest process; return the seconds until others have all its rows."""
        pid = self.pids.pop(0)
        self.product.end(pid, signal.SIGKILL, KILLED)
        began = time.monotonic()
        left, count = "SELECT count(*) FROM queue WHERE lease_owner ~ (':' || %s || '(:|$)')", -1
        log("killed one")
        while count:
            if time.monotonic() - began > self.stall:
                raise HelperError(f"{count} rows of the killed process are not taken over")
            self.product.check()
            time.sleep(LOOK)
            count = int(self._one(left, str(pid)))
        return time.monotonic() - began

    def audit(self) -> Audit:
        """Stop all processes, and look at everything."""
        while self.pids:
            self.end()
        self.received = int(self.report()["received"])
        waiting: dict[int, str] = {}
        begun: list[int] = []
        with self.connect() as db:
            rows = db.execute(f"SELECT message_id - {FIRST}, status, lease_owner FROM queue")
            for n, status, owner in rows:
                waiting[n] = status
                if owner:
                    begun.append(n)
            attempts = db.execute(
                f"SELECT message_id - {FIRST}, event, count(DISTINCT lease_token) FROM attempts"
                " GROUP BY message_id, event"
            ).fetchall()
            shown = db.cursor(row_factory=psycopg.rows.dict_row).execute(_OUTCOMES).fetchone()
        counts = {event: Counter[int]() for _, event, _ in attempts}
        for n, event, number in attempts:
            counts[event][n] += number
        none: Counter[int] = Counter()
        return Audit(
            (self.directory / "seen").read_bytes(),
            waiting,
            begun,
            counts.get("delivered", none),
            counts.get("unknown", none),
            dict(shown or {}),
        )

    def _one(self, query: str, *values: Any) -> Any:
        row = self.control.execute(query.encode(), values).fetchone()
        return row and row[0]


@relay_options("uri")
@click.command(context_settings=HELP, help=ABOUT)
@click.option("--rows", default=50_000, type=click.IntRange(1),
              help="Rows; 1000000 for the real thing.")  # fmt: skip
@click.option("--domains", default=1000, type=click.IntRange(1), help="Their domains.")
@click.option("--workers", default=2, type=click.IntRange(1), help="queued processes.")
@click.option("--stops", default=10, type=click.IntRange(1), help="Stops by SIGTERM.")
@click.option("--every", default=5.0, help="Seconds between them.")
@click.option("--delay", default=50.0, help="Milliseconds of the next hop for a message, at most.")
@click.option("--lease", default="1m", help="Time of a lease.")
@click.option("--stall", default=180.0, help="Seconds for the takeover of rows.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(
    rows: int,
    domains: int,
    workers: int,
    stops: int,
    every: float,
    delay: float,
    lease: str,
    stall: float,
    json_: bool,
    uri: str | None,
) -> None:
    """Read the options, stop and kill, show."""
    with failing():
        directory, server, about = opened(uri, what=f"{rows} rows, {workers} queued, ")
        plan = Plan("stops", rows, 16, 1, domains)
        with Stops("stops", plan, server, directory, commands_of(None), stall) as line:
            line.open(lease, delay / 1000, workers)
            line.stop_in_turn(stops, every)
            stopped = line.audit()
            sent = line.received
            problems = stopped.problems(clean=True)
            for _ in range(workers + 1):
                line.begin()
            time.sleep(every)
            taken = line.kill()
            killed = line.audit()
            problems += killed.problems(clean=False) + line.exits.problems()
            notes = line.notes
    copies = [n for n in killed.copies if n > 1]
    figures: dict[str, Any] = {
        "sent before the kill": sent,
        "exits": len(line.exits.codes),
        "longest exit, s": round(max(line.exits.seconds), 2),
        "sent twice before the kill": sum(n > 1 for n in stopped.copies),
        "taken over after, s": round(taken, 1),
        "sent after the kill": line.received - sent,
        "messages with more than one copy": len(copies),
        "unknown outcomes": sum(killed.unknown.values()),
    } | {f"outcomes: {name}": number for name, number in killed.outcomes.items()}
    if json_:
        click.echo(dump({"about": about, "figures": figures, "notes": notes}))
    else:
        click.echo(f"{about}\n\n{aligned([[name, str(n)] for name, n in figures.items()])}\n")
    for note in notes:
        log(f"note: {note}")
    late = [f"{took:.1f} s" for took in line.exits.seconds if took > LONGEST]
    finish(problems, [f"an exit took {took}, limit {LONGEST:g} s" for took in late])
