"""Urgent mail beside a backlog of live destinations: its waits, and what bulk mail loses."""

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from bench.columns import spread
from bench.daemons import Product
from bench.database import Server, check_durability, fresh, rest
from bench.helper import Helper
from bench.phases import Options
from bench.progress import Progress, log
from bench.source import percentile

GRACE = 30.0  # seconds that urgent mail may come later than its window
WARM = 2.0  # at most this many seconds of bulk mail before its first window
STEP = 100_000  # rows filled by one statement


@dataclass
class Beside:
    """Figures by name, what went wrong, and remarks."""

    figures: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def fill(uri: str, rows: int, domains: int) -> None:
    """Queue that many messages for live domains, in turn."""
    progress = Progress("fill", rows)
    with psycopg.connect(uri, autocommit=True) as connection:
        for first in range(0, rows, STEP):
            connection.execute(
                """
                WITH numbers AS (SELECT n, nextval('message_ids') AS id
                    FROM generate_series(%s::int, %s::int) AS n
                ), bodies AS (
                    INSERT INTO messages (id, size, trace, body)
                    SELECT id, 18, E'Received: by bench\\r\\n', E'Subject: bulk\\r\\n\\r\\n\\r\\n'
                    FROM numbers
                )
                INSERT INTO queue (message_id, sender, recipient, domain)
                SELECT id, 'source@bench.example', format('b%%s@d%%s.live.example', n, n %% %s),
                    format('d%%s.live.example', n %% %s)
                FROM numbers
                """,
                [first, min(rows, first + STEP) - 1, domains, domains],
            )
            progress.show(min(rows, first + STEP))
    progress.end()


class Sender:
    """Puts urgent mail into the queue, evenly, and remembers when."""

    def __init__(self, uri: str, rate: float, domains: int) -> None:
        self._db = psycopg.connect(uri, autocommit=True)
        self._rate = rate
        self._domains = domains
        self.sent: dict[str, float] = {}

    def close(self) -> None:
        """Disconnect."""
        self._db.close()

    def send(self, seconds: float) -> list[str]:
        """Send for so long; return which."""
        began = time.monotonic()
        names = []
        for n in range(max(1, round(seconds * self._rate))):
            time.sleep(max(0.0, began + n / self._rate - time.monotonic()))
            names.append(self._one())
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        return names

    def _one(self) -> str:
        number = len(self.sent)
        name = str(number)
        domain = f"d{number * 7919 % self._domains}.live.example"
        self.sent[name] = time.monotonic()
        with self._db.transaction():
            self._db.execute(
                """
                WITH body AS (
                    INSERT INTO messages (id, size, trace, body)
                    VALUES (nextval('message_ids'), 20, E'Received: by bench\\r\\n',
                        E'Subject: urgent\\r\\n\\r\\n\\r\\n')
                    RETURNING id
                )
                INSERT INTO queue (message_id, sender, recipient, domain, priority)
                SELECT id, 'source@bench.example', %s, %s, 0 FROM body
                """,
                [f"u{name}@{domain}", domain],
            )
            self._db.execute("NOTIFY pgmta_queue")
        return name


class Trial:
    """One database with a backlog, a relay and a next hop."""

    def __init__(self, options: Options, rows: int, sink: Helper, sender: Sender) -> None:
        self.options = options
        self.rows = rows
        self.sink = sink
        self.sender = sender
        self.result = Beside()

    def _ask(self) -> dict[str, Any]:
        self.sink.tell("report")
        return self.sink.wait("report")

    def _waits(self, label: str, names: list[str]) -> None:
        """Wait for the rest of that mail, and put its times into the figures."""
        end = time.monotonic() + min(GRACE, 10 * self.options.urgent_seconds)
        while True:
            report = self._ask()
            missing = [name for name in names if name not in report["urgent"]]
            if not missing or time.monotonic() >= end:
                break
            time.sleep(0.1)
        waits = [
            (report["urgent"].get(name) or [report["at"]])[0] - self.sender.sent[name]
            for name in names
        ]
        waits.sort()
        figures = self.result.figures
        figures[f"{label} ms p50"] = percentile(waits, 0.5) * 1000
        figures[f"{label} ms p99"] = percentile(waits, 0.99) * 1000
        figures[f"{label} missing"] = len(missing)
        if missing:
            self.result.notes.append(f"{label}: {len(missing)} of {len(names)} did not come")
        again = [name for name, times in report["urgent"].items() if len(times) > 1]
        if again or report["twice"] or report["faults"]:
            self.result.problems.append(
                f"{label}: came twice: urgent {again[:8]}, bulk {report['twice']}; "
                f"wrong {report['faults']}"
            )

    def hang(self) -> None:
        """Let all connections hang that bulk mail may use."""
        moved, before = time.monotonic(), -1
        while time.monotonic() - moved < 0.5 or not before:
            held = int(self._ask()["held"])
            if held != before:
                moved, before = time.monotonic(), held
            if not held and time.monotonic() - moved > GRACE:
                self.result.problems.append("no bulk mail came to the next hop")
                return
            time.sleep(0.05)
        self.result.figures["hanging connections"] = before
        self._waits("urgent, hanging", self.sender.send(self.options.urgent_seconds))
        self.sink.tell("release")

    def flow(self) -> None:
        """Bulk mail flows: windows alone, with urgent mail, alone."""
        seconds = self.options.urgent_seconds
        time.sleep(min(WARM, seconds))
        rates = []
        names: list[str] = []
        for urgent in (False, True, False):
            before = self._ask()
            if urgent:
                names = self.sender.send(seconds)
            else:
                time.sleep(seconds)
            after = self._ask()
            rates.append((after["bulk"] - before["bulk"]) / (after["at"] - before["at"]))
        enough = self._ask()["bulk"] < self.rows
        self._waits("urgent", names)
        if enough:
            alone = spread([rates[0], rates[2]])
            if alone and alone[1]:
                self.result.figures["bulk/s"] = alone[1]
                self.result.figures["bulk ratio"] = rates[1] / alone[1]
        else:
            done = ", ".join(f"{rate:.0f}" for rate in rates)
            self.result.notes.append(f"the backlog was over before the end ({done}/s): no ratio")


def measure(options: Options, rows: int, directory: Path, server: Server) -> Beside:
    """Measure on a fresh database: first connections hang, then mail flows."""
    place = directory / f"urgent.{time.monotonic_ns()}"
    place.mkdir()
    log(f"urgent mail at {options.urgent:g}/s beside {rows} rows")
    with fresh(server, options.keep) as uri, contextlib.ExitStack() as stack:
        check_durability(uri)
        notes: list[str] = []
        product = Product(options.commands, place, uri, notes)
        product.migrate()
        fill(uri, rows, options.urgent_domains)
        rest(uri)
        sink = Helper("urgent_sink", {"rows": rows}, place / "sink.log")
        stack.callback(sink.close)
        sender = Sender(uri, options.urgent, options.urgent_domains)
        stack.callback(sender.close)
        stack.callback(product.stop)
        trial = Trial(options, rows, sink, sender)
        sink.tell("hang")
        product.start_queued(options.workers, int(sink.wait("ready")["port"]))
        trial.hang()
        trial.flow()
        product.check()
        product.stop()
        trial.result.notes += notes
        return trial.result
