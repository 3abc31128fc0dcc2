"""The measures of bench/lifecycle."""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg

from bench.accounts import RINGS, AccountLine, options, plan
from bench.corpus import Plan
from bench.database import Server, rest
from bench.guarding import Measured, alternate
from bench.link_sink import LinkSink
from bench.options import commands_of
from bench.progress import log
from bench.scheduling import Figure, Relay
from pgmta.store.lifecycle.collections import SESSION

LATE = 60.0  # seconds to wait for more than expected
PICK = """
SELECT w.token FROM lifecycle.waiting_tokens AS w JOIN lifecycle.tokens AS t ON t.id = w.token + 0
WHERE w.priority = 3 AND w.lease_until < now() ORDER BY w.token LIMIT 50
FOR NO KEY UPDATE OF w, t SKIP LOCKED
"""
"""The statement of tokens_pick()."""
AS_PICK = {f"enable_{name}": "off" for name in ("sort", "hashjoin", "mergejoin")}


@dataclass(frozen=True)
class Bench:
    """Where the measures are done, and how much."""

    server: Server
    directory: Path
    stall: float
    tokens: int
    collected: int
    waiting: int
    seconds: float
    pairs: int

    @contextmanager
    def line(self, name: str) -> Iterator[AccountLine]:
        """Give a new database with accounts."""
        log(name)
        line = AccountLine(
            name, plan("x"), self.server, self.directory, commands_of(None), self.stall
        )
        with line:
            line.prepare()
            yield line


def pace(bench: Bench) -> list[Figure]:
    """Measure three collectors that share 38 per second, and then 0.38 per second."""
    found = []
    for rate, batches in ((38.0, round(bench.seconds * 3.8)), (0.38, 3)):
        with bench.line(f"pace.{rate:g}") as line:
            line.add("u", 10 * (batches + 1))
            line.collectors(3, budget={"key": "shared", "rate": rate}, timeout="1s")
            line.wait_taken(10 * (batches + 1), LATE + 12 * batches / rate)
            times = line.batches()
        took = times[-1][0] - times[0][0]
        done = sum(taken for _, taken in times[:-1])
        above = 0.0
        for start, (first, _) in enumerate(times):
            sent = 0
            for at, taken in times[start:]:
                above = max(above, sent - rate * (at - first))
                sent += taken
        ratio = done / took / rate
        found.append(Figure(f"{rate:g}/s, {took:.0f} s: of the rate", ratio, 0.98, least=True))
        found.append(Figure(f"{rate:g}/s: tokens above it, at most", above, 1.0))
        if rate < 1:
            gap = min(after[0] - before[0] for before, after in itertools.pairwise(times))
            found.append(
                Figure(f"{rate:g}/s: s between batches of ten, least", gap, 26.3, least=True)
            )
    return found


def drain(bench: Bench) -> list[Figure]:
    """Measure one collector that makes the mail of many waiting tokens."""
    found = []
    for limit, least in ((10, 2000.0), (100, 8000.0)):
        with bench.line(f"drain.{limit}") as line:
            line.add("u", bench.tokens)
            rest(line.uri)
            line.collectors(1, limit=limit)
            line.wait_taken(bench.tokens, LATE)
            backend = line.ask(
                "SELECT pid FROM pg_stat_activity"
                " WHERE application_name = 'pgmta queued collector bench'"
            )
            cpu = sum(psutil.Process(backend).cpu_times()[:2]) / bench.tokens * 1e6
            took = line.ask(
                "SELECT extract(epoch FROM max(ended_at) - min(began_at))::float8"
                " FROM lifecycle.collections"
            )
        found.append(
            Figure(f"drain, limit {limit}: tokens/s", bench.tokens / took, least, least=True)
        )
        found.append(Figure(f"drain, limit {limit}: µs CPU of PostgreSQL a token", cpu))
    return found


def insert(bench: Bench) -> list[Figure]:
    """Measure the CPU time of an account's insert, by the session's process."""
    number, found = bench.tokens, []
    lone = "INSERT INTO lifecycle.accounts (email, login) VALUES (%s || '@b.example', %s)"
    with bench.line("insert") as line, psycopg.connect(line.uri, prepare_threshold=0) as db:
        backend = psutil.Process(db.info.backend_pid)

        def spent(work: Callable[[], object]) -> float:
            before = sum(backend.cpu_times()[:2])
            work()
            return (sum(backend.cpu_times()[:2]) - before) / number * 1e6

        def ones(name: str, commit: bool) -> None:
            for n in range(number):
                db.execute(lone, (f"{name}{n}", f"{name}{n}"))
                if commit:
                    db.commit()
            db.commit()

        def together(name: str) -> None:
            db.execute(
                "INSERT INTO lifecycle.accounts (email, login) SELECT %s || n || '@b.example',"
                " %s || n FROM generate_series(1, %s) AS n", (name, name, number),
            )  # fmt: skip
            db.commit()

        plain = "CREATE TABLE public.plain (LIKE lifecycle.accounts INCLUDING ALL)"
        db.execute(plain)
        together("warm")
        found.append(
            Figure("insert of many: µs CPU an account", spent(lambda: together("many")), 60.0)
        )
        name = "inserts in one transaction: µs CPU an account"
        found.append(Figure(name, spent(lambda: ones("few", commit=False))))
        name = "inserts with a commit each: µs CPU an account"
        found.append(Figure(name, spent(lambda: ones("lone", commit=True))))
        lone = lone.replace("lifecycle.accounts", "public.plain")
        name = "the same into a table without triggers: µs CPU"
        found.append(Figure(name, spent(lambda: ones("plain", commit=True))))
    return found


def buffers(bench: Bench) -> list[Figure]:
    """Measure what a batch reads beside many collected tokens."""
    with bench.line("buffers") as line:
        with line.control.transaction():
            line.control.execute("SET LOCAL session_replication_role = replica")
            line.control.execute(
                "INSERT INTO lifecycle.tokens (action, account, collected_at, message_id)"
                " SELECT 'activation', n, now(), n FROM generate_series(1, %s) AS n",
                (bench.collected,),
            )
        rest(line.uri)
        line.add("u", 500)
        for name, value in (SESSION | AS_PICK).items():
            line.control.execute("SELECT set_config(%s, %s, false)", (name, value))
        call = "SELECT * FROM lifecycle.collect('c', 'w', {}, 'limit', %s)"
        found = []
        for batch in (50, 10):
            for _ in range(2):  # what a session reads once
                line.control.execute(call.format(batch).encode(), (options(),))
            root = line.explain(call.format(batch), options())
            each = (root["Shared Hit Blocks"] + root["Shared Read Blocks"]) / batch
            found.append(
                Figure(f"buffers a token, batch of {batch}", each, 20.0 if batch == 50 else None)
            )
        sorts = str(line.explain(f"SELECT * FROM ({PICK}) AS w")).count("'Sort'")
        found.append(Figure("sorts of a batch", float(sorts), 0.0))
    return found


@contextmanager
def linked(line: AccountLine, **collector: object) -> Iterator[LinkSink]:
    """Give a sink; queued collects, and delivers to it. Raises OSError."""
    with LinkSink(RINGS) as sink:
        line.product.start_queued(1, sink.port, line.settings(**collector))
        yield sink
        line.product.stop()
        if sink.ledger.wrong:
            raise OSError(f"{len(sink.ledger.wrong)} bad mails: {sink.ledger.wrong[:3]}")


def links(bench: Bench) -> list[Figure]:
    """Measure the time from an inserted account to its link at the sink."""
    found = []
    for timeout in (1, 5):
        settings = {"timeout": f"{timeout}s", "limit": 1000}
        with bench.line(f"links.{timeout}") as line, linked(line, **settings) as sink:
            began: dict[str, float] = {}
            end = time.monotonic() + bench.seconds
            while time.monotonic() < end:
                name = f"u{len(began)}-"
                began[f"{name}1@b.example"] = time.monotonic()
                line.add(name, 1)
                time.sleep(0.11)
            took = sorted(sink.wait(address) - at for address, at in began.items())
        name = f"INSERT to link, timeout {timeout} s, {len(took)} accounts: s"
        found.append(Figure(f"{name} p50", statistics.median(took)))
        found.append(Figure(f"{name} p99", took[int(len(took) * 0.99)], timeout + 1.0))
    return found


def recovery(bench: Bench) -> list[Figure]:
    """Measure recoveries beside many activations that wait to be collected and delivered."""
    found = []
    with bench.line("recovery") as line:
        line.add("u", bench.waiting)
        line.add("lost", 1000, "active")
        rest(line.uri)
        took: list[float] = []
        with linked(line, limit=100) as sink:
            while len(took) < 1000 and line.ask(
                "SELECT count(*) > 0 FROM lifecycle.waiting_tokens"
            ):
                name = f"lost{len(took) + 1}"
                began = time.monotonic()
                line.control.execute("SELECT lifecycle.recover(%s)", (name,))
                took.append(sink.wait(f"{name}@b.example") - began)
            left = line.ask("SELECT count(*) FROM pgmta.queue")
        took.sort()
        name = f"{len(took)} recoveries beside {bench.waiting} activations: s"
        found.append(Figure(f"{name} p50", statistics.median(took)))
        found.append(Figure(f"{name}, longest", took[-1], 1.0))
        found.append(Figure("mails that still wait in the queue then", float(left)))
    return found


class Beside(Relay, AccountLine):
    """The relay of plain mail, with accounts whose mail another process makes."""

    tenant = "accounts"

    def _empty(self) -> bool:
        """Return whether no row of plain mail moves."""
        return bool(self.ask("SELECT NOT EXISTS (SELECT FROM pgmta.queue WHERE tenant = '')"))


def beside(bench: Bench) -> list[Figure]:
    """Measure plain mail beside a collector at 1,000 tokens/s, whose mail waits in the queue."""
    messages = 4000
    mails = Plan("beside", messages, 4096, 1, 1)
    with Beside(
        "beside", mails, bench.server, bench.directory, commands_of(None), bench.stall
    ) as line:
        line.prepare()
        line.add("u", bench.waiting)
        rest(line.uri)
        log("plain mail beside a collector")
        sink = line.helper("sink", traces=1)
        line.sink = sink
        line.product.start_queued(
            1,
            int(sink.wait("ready")["port"]),
            {"workers": [{"name": "plain", "where": "tenant = ''"}]},
        )
        line.open_source(messages)
        (pid,) = line.collectors(
            1, limit=100, budget={"key": "shared", "rate": 1000.0},
            activation={"template": "activation", "priority": 9},
        )  # fmt: skip
        collector = psutil.Process(pid)
        collector.suspend()
        done: list[float] = []

        def busy() -> float:
            began = time.monotonic()
            collector.resume()
            try:
                return line.burst()
            finally:
                collector.suspend()
                took = time.monotonic() - began
                # the claims of plain mail would read it
                gone = line.control.execute("DELETE FROM pgmta.queue WHERE tenant <> ''")
                done.append(gone.rowcount / took)

        measured = Measured("plain mail", alternate("plain mail", busy, line.burst, bench.pairs))
        collector.resume()
        problems = line.problems()
    if problems:
        raise OSError(f"plain mail: {problems}")
    own, other = (statistics.median(column) for column in zip(*measured.costs, strict=True))
    low, high = measured.interval(1.0)
    return [
        Figure("plain mail alone, messages/s", 1 / other),
        Figure("plain mail beside the collector, messages/s", 1 / own),
        Figure("tokens/s of the collector then", statistics.median(done)),
        Figure("ratio", 1 / statistics.median(measured.ratios())),
        Figure("ratio, 95 % from", 1 / high),
        Figure("ratio, 95 % to", 1 / low, 0.9, least=True),
    ]


MEASURES = {each.__name__: each for each in (pace, drain, insert, buffers, links, recovery, beside)}
