"""A run of bench/held: steady mail without a held snapshot, beside one, and after its end."""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from bench import cpu
from bench.daemons import Product
from bench.database import Server, fresh, rest
from bench.held_load import Producer, make_dead, make_waiting, start_campaign
from bench.held_queued import FILE_VARIABLE, NULL_PORT
from bench.progress import log
from bench.rate_run import most_in
from pgmta.store.admin.migrate import migrate

DEAD_ROWS, SHARE_AFTER, AFTER_S = 5000, 1.2, 60.0
"""Limits for the end: dead rows of any table, and buffers per claim to those before, so soon."""
LAST_S = 20.0
"""The buffers at the end are those of so many seconds before AFTER_S."""
WARM_UP_S, REFERENCE_S = 10.0, 60.0
STEP_S, SHORT_STEP_S, SHORT_RUN_S = 60.0, 15.0, 240.0
_LOOK_S = 1.0
_DEAD = """
SELECT regexp_replace(relname, '^queue.*', 'queue'), sum(n_dead_tup)::bigint
FROM pg_stat_user_tables WHERE schemaname = 'pgmta' GROUP BY 1
"""
_BUFFERS = r"""
SELECT sum(shared_blks_hit + shared_blks_read)::float8 FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND regexp_replace(query, '--[^\n]*\n', '', 'g')
        ~ '^\s*WITH\s+(named|seen|RECURSIVE\s+walk)\s+AS'
"""
_OWN_BUFFERS = """
SELECT sum(s.hits + s.reads)::float8 FROM pg_stat_activity AS a, pg_stat_get_backend_io(a.pid) AS s
WHERE a.datname = current_database() AND a.application_name LIKE '% claim'
"""
_OF_BACKENDS = 180000  # the first version that counts buffers of a session


@dataclass(frozen=True)
class Settings:
    """What is measured: mails/s, rows beside them, and for how long a snapshot is held."""

    minutes: float
    rate: float
    fill: int
    waiting: int
    due: bool
    campaign: float


@dataclass
class Stretch:
    """One stretch of a run and its figures."""

    name: str
    figures: dict[str, float]


@dataclass
class Outcome:
    """The stretches, what was missed, and what queued logged."""

    stretches: list[Stretch]
    misses: list[str]
    notes: list[str]


@dataclass
class Notes:
    """What queued noted in a stretch."""

    claims: list[tuple[float, int]] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    rated: list[float] = field(default_factory=list)


def percentile(values: list[float], share: float) -> float:
    """Return the value, in thousandths, below which this share of them is."""
    return sorted(values)[int(len(values) * share)] * 1000 if values else 0.0


class Run:
    """A database with a queued and steady mail."""

    def __init__(self, settings: Settings, directory: Path, server: Server) -> None:
        self._settings, self._directory, self._server = settings, directory, server
        self._stack = ExitStack()
        self._uri = self._stack.enter_context(fresh(server, keep=False))
        migrate(self._uri)
        self._db = self._stack.enter_context(psycopg.connect(self._uri, autocommit=True))
        self._db.execute("SET search_path = pgmta, public")
        try:
            self._db.execute("CREATE EXTENSION pg_stat_statements SCHEMA public")
            self._db.execute("SELECT count(*) FROM pg_stat_statements")
            self._has_statements = True
        except psycopg.Error:  # not installed, or not loaded
            self._has_statements = False
        self._has_own = self._db.info.server_version >= _OF_BACKENDS
        self._file = directory / "notes.json"
        self._file.touch()
        self._notes = self._stack.enter_context(self._file.open(encoding="utf-8"))
        self._producer = Producer(self._uri, settings.rate)
        self._groups: cpu.Groups = {}
        self._misses: list[str] = []
        self._product: Product | None = None

    def go(self) -> Outcome:
        """Measure. Raises DaemonError, OSError, psycopg.Error."""
        settings = self._settings
        with self._stack:
            self._prepare()
            self._product = product = self._start()
            self._stack.callback(product.stop)
            self._producer.start()
            self._stack.callback(self._producer.stop)
            self._sleep(WARM_UP_S)
            whole = settings.minutes * 60
            step = STEP_S if whole >= SHORT_RUN_S else SHORT_STEP_S
            stretches = [self._measure("before", min(REFERENCE_S, max(whole, SHORT_STEP_S)))]
            with self._snapshot():
                make_dead(self._db, settings.fill, settings.rate)
                held = [
                    self._measure(f"held, {n * step / 60:g} min", step)
                    for n in range(1, max(1, round(whole / step)) + 1)
                ]
            stretches += [*held, self._end(stretches[0])]
            self._judge(stretches[0], held)
            self._producer.stop()
            product.stop()
        return Outcome(stretches, self._misses, product.notes)

    def _prepare(self) -> None:
        settings = self._settings
        make_waiting(self._db, settings.waiting, due=settings.due)
        if settings.campaign:
            seconds = settings.minutes * 60 + WARM_UP_S + REFERENCE_S + AFTER_S + 60
            start_campaign(self._db, settings.campaign, seconds)
        rest(self._uri)

    def _start(self) -> Product:
        """Start queued with the null hop; its command is a file of ours."""
        script = self._directory / "queued"
        root = Path(__file__).resolve().parent.parent
        script.write_text(
            f'#!/bin/sh\nPYTHONPATH={root} exec {sys.executable} -m bench.held_queued "$@"\n'
        )
        script.chmod(0o755)
        product = Product(self._directory, self._directory, self._uri, [])
        product.environment[FILE_VARIABLE] = str(self._file)
        self._groups["queued"] = product.start_queued(1, NULL_PORT)
        self._groups["postgres"] = [pid for pid in [self._server.postmaster] if pid]
        return product

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Hold a snapshot that has read the queue."""
        with psycopg.connect(self._uri, application_name="bench holder") as holder:
            holder.execute("SET SESSION idle_in_transaction_session_timeout = 0")
            holder.commit()
            holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            holder.execute("SELECT count(*) FROM pgmta.queue")
            log("a snapshot is held")
            yield
            holder.rollback()
            log("its end")

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_S))
            if self._product:
                self._product.check()
            if self._producer.failed:
                raise self._producer.failed

    def _read_notes(self) -> Notes:
        """Return what queued noted since the last time."""
        found = Notes()
        while line := self._notes.readline():
            each = json.loads(line)
            found.claims += [tuple(claim) for claim in each["claims"]]
            found.plain += each["plain"]
            found.rated += each["rated"]
        return found

    def _dead(self) -> dict[str, int]:
        """Return the dead rows of each table, the leaves of the queue together."""
        found = defaultdict[str, int](int)
        for name, number in self._db.execute(_DEAD):
            found[name] += number
        return found

    def _buffers(self) -> float | None:
        """Return the buffers of all claims so far."""
        if not self._has_statements and not self._has_own:
            return None
        row = self._db.execute(_BUFFERS if self._has_statements else _OWN_BUFFERS).fetchone()
        return row[0] if row else None

    def _measure(self, name: str, seconds: float) -> Stretch:
        """Watch for so long."""
        self._read_notes()
        begun, committed = cpu.snapshot(self._groups), self._producer.committed
        buffers = self._buffers()
        self._sleep(seconds)
        now = self._buffers()
        spent = cpu.snapshot(self._groups)
        notes = self._read_notes()
        took = spent.at - begun.at
        claims = [each for each, _ in notes.claims]
        dead = self._dead()
        figures = {
            "offered/s": (self._producer.committed - committed) / took,
            "delivered/s": len(notes.plain) / took,
            "claims/s": len(claims) / took,
            "rows per claim": sum(rows for _, rows in notes.claims) / max(1, len(claims)),
            "claim ms p50": percentile(claims, 0.5),
            "claim ms p99": percentile(claims, 0.99),
            "commit to next hop ms p50": percentile(notes.plain, 0.5),
            "commit to next hop ms p99": percentile(notes.plain, 0.99),
            "dead rows, queue": dead["queue"],
            "dead rows, messages": dead["messages"],
        }
        if self._settings.campaign:
            figures["campaign/s"] = len(notes.rated) / took
            figures["campaign, most in a second"] = most_in(notes.rated, 1.0)
        if buffers is not None and now is not None and claims:
            figures["buffers per claim"] = (now - buffers) / len(claims)
        for group, used in spent.groups.items():
            figures[f"% of a core, {group}"] = 100 * (used - begun.groups[group]) / took
        log(f"{name}: {figures['delivered/s']:.0f}/s, claim {figures['claim ms p99']:.1f} ms p99")
        return Stretch(name, figures)

    def _end(self, reference: Stretch) -> Stretch:
        """Watch until AFTER_S after the end of the snapshot."""
        began = time.monotonic()
        few = None
        while (now := time.monotonic()) < began + AFTER_S - LAST_S:
            if few is None and max(self._dead().values()) <= DEAD_ROWS:
                few = now - began
            self._sleep(_LOOK_S)
        last = self._measure("after its end", LAST_S)
        most = max(self._dead().values())
        if few is not None or most <= DEAD_ROWS:
            last.figures["seconds until few dead rows"] = AFTER_S if few is None else few
        else:
            what = f"{most} dead rows of a table {AFTER_S:g} s after the end"
            self._misses.append(f"{what}, limit {DEAD_ROWS}")
        cost, was = (one.figures.get("buffers per claim") for one in (last, reference))
        if cost and was:
            rows = last.figures["rows per claim"] / reference.figures["rows per claim"]
            # a busy machine has fewer claims of more rows each: the cost of a row tells then
            share = cost / was / max(1.0, rows)
            last.figures["buffers per claim, to those before"] = cost / was
            last.figures["the same, for as many rows"] = share
            if share > SHARE_AFTER:
                what = f"{share:.2f} times those before"
                self._misses.append(f"buffers per claim are {what}, limit {SHARE_AFTER:g}")
        return last

    def _judge(self, reference: Stretch, held: list[Stretch]) -> None:
        """Compare the stretches beside the snapshot with the one before."""
        p99 = reference.figures["claim ms p99"] * 3
        slow = [one for one in held if one.figures["claim ms p99"] > p99]
        self._misses += [
            f"{one.name}: p99 of a claim is {one.figures['claim ms p99']:.1f} ms, limit {p99:.1f}"
            for one in slow
        ]
        for name, rate in (
            ("delivered/s", self._settings.rate),
            ("campaign/s", self._settings.campaign),
        ):
            found = sum(one.figures.get(name, 0.0) for one in held) / len(held)
            if rate and found < 0.8 * rate:
                self._misses.append(f"{name} beside the snapshot: {found:.0f} of {rate:g}")
        for one in [reference, *held]:
            most = one.figures.get("campaign, most in a second", 0.0)
            if most > self._settings.campaign + 1e-6:
                self._misses.append(f"{one.name}: {most:g} of the campaign in a second")
