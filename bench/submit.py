"""The command `bench/submit`: what a submission costs the transactions of an application."""

import contextlib
import re
import statistics
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
import psycopg

from bench.daemons import Product
from bench.database import Server, check_durability, fresh
from bench.options import EXIT_CODES_HELP, HELP_SETTINGS, commands_of, failing, finish, opened
from bench.phases import Result
from bench.progress import Progress
from bench.report import as_json, table
from pgmta.postgres.embedded.programs import tool

ABOUT = f"""Measure transactions that insert an order, with and without the submission of a mail.

pgbench runs both in turn on a fresh database: BEGIN; INSERT; SELECT pgmta.submit(...); COMMIT, and
the same without the submission. No daemon runs, and no mail is delivered. {EXIT_CODES_HELP}a rate
or the ratio is below its limit, or sessions waited for NOTIFY's lock."""

_RATE = re.compile(r"^tps = ([\d.]+)", re.MULTILINE)
_FAILED = re.compile(r"^number of failed transactions: (\d+)", re.MULTILINE)
_LOOK_INTERVAL_S = 0.02  # at what the sessions wait for
_WARM_UP_S = 1  # before the first round
_ORDER = "\\set id random(1, 1000000000)\nBEGIN;\nINSERT INTO orders (item) VALUES (:id);\n"
_SUBMIT = """SELECT pgmta.submit('shop@shop.example',
    ARRAY['c' || :id || '@d' || :id % 50 || '.example'], convert_to(:content, 'UTF8'));
"""


@dataclass
class Round:
    """The rates of one round, in transactions per second, and what its sessions waited for."""

    plain: float
    submitting: float
    waits: dict[str, float] = field(default_factory=dict)  # share of looks, by wait event

    @property
    def ratio(self) -> float:
        """Return the rate with submission, relative to that without."""
        return self.submitting / self.plain


class Waits:
    """Counts what the sessions of pgbench wait for."""

    def __init__(self, uri: str) -> None:
        self._db = psycopg.connect(uri, autocommit=True)
        self._stop = threading.Event()
        self.seen: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_INTERVAL_S):
            for name, count in self._db.execute(
                "SELECT coalesce(wait_event_type || ':' || wait_event, 'running'), count(*)"
                " FROM pg_stat_activity WHERE application_name = 'pgbench' AND state <> 'idle'"
                " GROUP BY 1"
            ).fetchall():
                self.seen[name] += count

    def end(self) -> dict[str, float]:
        """Return the share of each wait event."""
        self._stop.set()
        self._thread.join()
        self._db.close()
        total = sum(self.seen.values()) or 1
        return {name: count / total for name, count in self.seen.most_common()}


@dataclass(frozen=True)
class Bench:
    """Runs scripts with pgbench against one database."""

    pgbench: str
    uri: str
    sessions: int
    content: str
    directory: Path

    def script(self, name: str, text: str) -> Path:
        path = self.directory / f"{name}.sql"
        path.write_text(text)
        return path

    def rate(self, script: Path, seconds: int) -> float:
        """Run a script; return its transactions per second. Raises CalledProcessError."""
        done = subprocess.run(
            [self.pgbench, "-n", "-M", "prepared", "-c", str(self.sessions), "-j", "2", "-T",
             str(seconds), "-D", f"content={self.content}", "-f", str(script), self.uri],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        failed, rate = _FAILED.search(done), _RATE.search(done)
        if not rate or (failed and int(failed[1])):
            raise subprocess.CalledProcessError(1, self.pgbench, done)
        return float(rate[1])


def content_of(size: int) -> str:
    """Return a mail of about this number of octets."""
    head = "From: shop@shop.example\r\nTo: you@example.com\r\nSubject: Your order\r\n\r\n"
    line = "Thank you for your order. We send it tomorrow, and a mail when it is on its way.\r\n"
    return head + line * max(1, (size - len(head)) // len(line))


def measure(bench: Bench, rounds: int, seconds: int) -> list[Round]:
    """Run both scripts in turn, in alternating order."""
    plain = bench.script("plain", f"{_ORDER}COMMIT;\n")
    submitting = bench.script("submitting", f"{_ORDER}{_SUBMIT}COMMIT;\n")
    bench.rate(submitting, _WARM_UP_S)
    found = []
    progress = Progress("rounds", rounds)
    for turn in range(rounds):
        rates: dict[Path, float] = {}
        waits: dict[str, float] = {}
        for script in (plain, submitting) if turn % 2 == 0 else (submitting, plain):
            watch = Waits(bench.uri)
            rates[script] = bench.rate(script, seconds)
            seen = watch.end()
            waits = seen if script is submitting else waits
        found.append(Round(rates[plain], rates[submitting], waits))
        progress.show(turn + 1)
    progress.end()
    return found


def wrong(uri: str) -> str:
    """Return the problem with the mail in the queue, or nothing."""
    with psycopg.connect(uri, autocommit=True) as db:
        row = db.execute(
            "SELECT (SELECT count(*) FROM pgmta.messages), (SELECT count(*) FROM pgmta.queue),"
            " (SELECT count(DISTINCT message_id) FROM pgmta.queue), (SELECT count(*) FROM orders)"
        ).fetchone()
    messages, rows, distinct, orders = row or (0, 0, 0, 0)
    if messages == rows == distinct and 0 < messages < orders:
        return ""
    return f"{orders} orders, {messages} messages, {rows} rows of {distinct} messages"


def notify_waits(rounds: Sequence[Round]) -> float:
    """Return the largest share of looks in which sessions waited for the lock of NOTIFY."""
    return max(
        sum(
            share for name, share in turn.waits.items() if "Notify" in name or name == "Lock:object"
        )
        for turn in rounds
    )


def results(rounds: Sequence[Round]) -> list[Result]:
    """Return the figures of all rounds."""
    return [
        Result(
            "submit",
            {"without mail/s": one.plain, "with mail/s": one.submitting, "ratio": one.ratio}
            | {f"waits, {name}": share for name, share in one.waits.items()},
        )
        for one in rounds
    ]


def missed(rounds: Sequence[Round], least_rate: float, least_ratio: float) -> list[str]:
    """Return the limits that the medians do not keep."""
    rate = statistics.median(turn.submitting for turn in rounds)
    ratio = statistics.median(turn.ratio for turn in rounds)
    found = []
    if rate < least_rate:
        found.append(f"{rate:.0f} transactions/s, limit {least_rate:g}")
    if ratio < least_ratio:
        found.append(f"ratio {ratio:.2f}, limit {least_ratio:g}")
    if (share := notify_waits(rounds)) > 0:
        found.append(f"sessions waited for the lock of NOTIFY in {share:.1%} of the looks")
    return found


@contextlib.contextmanager
def prepared(server: Server, directory: Path) -> Iterator[str]:
    """Give the URI of a fresh database with our schema and a table of orders."""
    with fresh(server, keep=False) as uri:
        check_durability(uri)
        Product(commands_of(None), directory, uri, []).migrate()
        with psycopg.connect(uri, autocommit=True) as db:
            db.execute("CREATE TABLE public.orders (id bigserial PRIMARY KEY, item bigint)")
        yield uri


@click.command(help=ABOUT, context_settings=HELP_SETTINGS)
@click.option("--sessions", default=16, type=click.IntRange(1), help="Sessions of the application.")
@click.option("--size", default=4096, type=click.IntRange(100), help="Octets of a mail.")
@click.option("--seconds", default=10, type=click.IntRange(1), help="Length of a measurement.")
@click.option("--rounds", default=3, type=click.IntRange(1), help="Pairs of measurements.")
@click.option("--least-rate", default=4000.0, help="Limit: transactions with a mail per second.")
@click.option("--least-ratio", default=0.5, help="Limit: that rate to the rate without mail.")
@click.option("--uri", help="A PostgreSQL server to use, instead of a new embedded one.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(
    sessions: int,
    size: int,
    seconds: int,
    rounds: int,
    least_rate: float,
    least_ratio: float,
    uri: str | None,
    json_: bool,
) -> None:
    """Measure submission inside transactions."""
    with failing():
        directory, server, about = opened(
            uri, what=f"{sessions} sessions, mails of {size} octets, "
        )
        pgbench = tool("pgbench")
        with prepared(server, directory) as database:
            bench = Bench(pgbench, database, sessions, content_of(size), directory)
            found = measure(bench, rounds, seconds)
            problem = wrong(database)
    figures = results(found)
    print(as_json({"about": about}, figures) if json_ else table(figures))
    finish([problem] if problem else [], missed(found, least_rate, least_ratio))
