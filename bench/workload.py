"""Mail of a client to the worker of queued, one measure at a time, each on a fresh database."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from bench import cpu
from bench.database import Server, check_durability, fresh
from bench.helper import Helper, HelperError
from bench.phases import Result
from bench.producer import WARM_UP_MAILS
from bench.progress import Progress, log
from pgmta.store.admin.migrate import migrate

RATE_FIGURE = "mails/s"
"""The figure of each measure but `lone`."""

RATIO_FIGURE = "to INSERT and COMMIT"
"""The figure of `lone`: the time of a send, as a multiple of that of a small row."""

MEASURES = {
    "batch": "one send_many, no consumer: from the call until the last commit has returned",
    "beside": "the same, and the consumer was started first",
    "consumed": "all mail waits, then the consumer starts: until the last outcome is durable",
    "tasks50": "50 tasks, each one send after the other, no consumer",
    "tasks200": "200 tasks likewise",
    "lone": "one send after the other, and INSERT and COMMIT of a small row in turn",
}
"""What each measure does."""

PHASES = """\
Producer: parts to JSON, one statement and one commit for at most 1,000 mails, the answer for each.
Consumer: claim, compose, check, a next hop that takes all at once, log of attempts, settle."""


@dataclass(frozen=True)
class Sizes:
    """Mails of the measures, and processes of the consumer."""

    batch: int
    messages: int
    lone: int
    workers: int

    def __str__(self) -> str:
        """Return the sizes in words."""
        mails = f"batch of {self.batch} mails, {self.messages} consumed and of tasks"
        return f"{mails}, {self.workers} processes of the consumer"


@dataclass(frozen=True)
class Site:
    """Where the programs run: words before their commands, and the URI of a database from there."""

    words: Callable[[str], Sequence[str]] = lambda who: ()
    uri: Callable[[str, str], str] = lambda who, uri: uri


@dataclass
class Workload:
    """Does the measures, with helpers that log into the directory.

    Each mail has three recipients, two of them the same: so it is two rows.
    """

    server: Server
    directory: Path
    sizes: Sizes
    stall: float
    site: Site = field(default_factory=Site)

    def measure(self, name: str) -> Result:
        """Do one measure. Raises HelperError if a program ended, or nothing moved."""
        self._result = Result(name)
        self._pids: cpu.Groups = {}
        works = {"batch": self._batch, "beside": self._beside, "consumed": self._consumed}
        with fresh(self.server, keep=False) as uri, contextlib.ExitStack() as self._stack:
            check_durability(uri)
            migrate(uri)
            self._uri = uri
            self._db = self._stack.enter_context(psycopg.connect(uri, autocommit=True))
            works.get(name, self._singly)()
        return self._result

    # -- the measures --

    def _batch(self) -> None:
        self._produce("batch", self.sizes.batch)

    def _singly(self) -> None:
        name = self._result.phase
        if name == "lone":
            self._db.execute("CREATE TABLE public.orders (id bigserial PRIMARY KEY, item bigint)")
            self._produce(name, self.sizes.lone)
        else:
            self._produce("tasks", self.sizes.messages, int(name.removeprefix("tasks")))

    def _beside(self) -> None:
        consumers = self._start_consumers()
        number = self.sizes.batch
        producer = self._start_producer("batch", number)
        self._wait_handled(consumers, 2 * WARM_UP_MAILS)  # afterwards all connections are open
        began = time.monotonic()
        self._take(producer, number)
        last = self._wait_handled(consumers, 2 * (number + WARM_UP_MAILS))
        self._result.figures["to the last outcome, mails/s"] = number / (last - began)
        self._check_consumed(consumers, number + WARM_UP_MAILS)

    def _consumed(self) -> None:
        number = self.sizes.messages
        rate = self._produce("batch", number)
        self._result.figures["produced, mails/s"] = rate
        consumers = self._start_consumers()
        with self._cpu(number + WARM_UP_MAILS):
            for each in consumers:
                each.tell("go")
            last = self._wait_handled(consumers, 2 * (number + WARM_UP_MAILS))
        first = min(each.latest["first"] for each in consumers)
        self._result.figures[RATE_FIGURE] = (number + WARM_UP_MAILS) / (last - first)
        self._check_consumed(consumers, number + WARM_UP_MAILS)

    # -- the producer --

    def _produce(self, work: str, number: int, tasks: int = 0) -> float:
        """Send, and check the queue; return the mails per second."""
        rate = self._take(self._start_producer(work, number, tasks), number)
        row = self._db.execute("SELECT count(*), count(DISTINCT message_id) FROM queue").fetchone()
        rows, messages = row or (0, 0)
        if (rows, messages) != (2 * (number + WARM_UP_MAILS), number + WARM_UP_MAILS):
            self._result.problems.append(
                f"{rows} rows of {messages} messages queued, "
                f"wanted {number + WARM_UP_MAILS} of 2 rows"
            )
        self._result.figures["rows per mail"] = rows / max(1, messages)
        return rate

    def _start_producer(self, work: str, number: int, tasks: int = 0) -> Helper:
        return self._start("producer", work=work, number=number, tasks=tasks)

    def _take(self, producer: Helper, number: int) -> float:
        """Let the producer send; note its figures, and return the mails per second."""
        producer.wait("ready", self.stall)
        with self._cpu(number):
            producer.tell("go")
            told = producer.wait("result", self.stall)
        figures = self._result.figures
        if told["ids"] != number + WARM_UP_MAILS:
            self._result.problems.append(
                f"{told['ids']} ids returned, wanted {number + WARM_UP_MAILS}"
            )
        figures |= told["figures"]
        if RATIO_FIGURE not in figures:
            figures[RATE_FIGURE] = number / told["seconds"]
        figures["CPU µs/mail, producer"] = told["cpu"] / number * 1e6
        producer.close()
        return number / float(told["seconds"])

    # -- the consumer --

    def _start_consumers(self) -> list[Helper]:
        """Start the processes; they wait for go unless mail is to come."""
        consumers = [
            self._start("consumer", name=f"worker{place}") for place in range(self.sizes.workers)
        ]
        for each in consumers:
            each.wait("ready", self.stall)
            if self._result.phase == "beside":
                each.tell("go")
        return consumers

    def _wait_handled(self, consumers: Sequence[Helper], wanted: int) -> float:
        """Wait until this number of rows is handled; return when the last one was."""
        progress = Progress("consumed", wanted)
        before, moved = -1, time.monotonic()
        while (handled := sum(each.latest.get("handled", 0) for each in consumers)) < wanted:
            if handled != before:
                before, moved = handled, time.monotonic()
            elif time.monotonic() - moved > self.stall:
                raise HelperError(f"{handled} of {wanted} rows handled, then nothing")
            progress.show(handled)
            for each in consumers:
                each.poll("never", 0.002)  # raises if the process has ended
        return max(float(each.latest["last"]) for each in consumers if each.latest)

    def _check_consumed(self, consumers: Sequence[Helper], mails: int) -> None:
        """Stop the consumer, and note each loss and doubling."""
        problems, rows = self._result.problems, 2 * mails
        sent = 0
        for each in consumers:
            each.tell("stop")
            told = each.wait("result", self.stall)
            sent += told["rows"]
            problems += told["problems"]
            if told["twice"]:
                problems.append(f"{told['twice']} rows were sent twice")
        found = self._db.execute(
            "SELECT (SELECT count(*) FROM queue), (SELECT count(*) FROM messages), count(*),"
            " count(DISTINCT row_id), count(DISTINCT message_id),"
            " count(*) FILTER (WHERE event = 'delivered' AND attempt = 1)"
            " FROM attempts"
        ).fetchone()
        wanted = (0, 0, rows, rows, mails, rows)
        if found != wanted:
            problems.append(
                "rows in queue and messages, attempts, of distinct rows, of distinct messages, "
                f"first and delivered: {found}, wanted {wanted}"
            )
        if sent != rows:
            problems.append(f"{sent} rows sent, wanted {rows}")
        self._result.figures["rows per mail"] = sent / mails

    # -- helpers --

    def _start(self, who: str, **config: Any) -> Helper:
        uri = self.site.uri(who, self._uri)
        path = self.directory / f"{who}.log"
        helper = Helper(who, {"uri": uri, **config}, path, self.site.words(who))
        self._stack.callback(helper.close)
        self._pids.setdefault(who, []).append(helper.process.pid)
        return helper

    @contextlib.contextmanager
    def _cpu(self, mails: int) -> Iterator[None]:
        """Note the CPU time that PostgreSQL and the consumer take meanwhile.

        The cores of others are those that neither they nor the producer used.
        """
        roots = [self.server.postmaster] if self.server.postmaster else []
        groups = {"PostgreSQL": roots, **self._pids}
        before = cpu.snapshot(groups)
        yield
        after = cpu.snapshot(groups)
        figures = self._result.figures
        spent = {name: seconds - before.groups[name] for name, seconds in after.groups.items()}
        # a producer says itself how much it used; a consumer beside it goes on afterwards
        own = {"PostgreSQL", "consumer"} if self._result.phase == "consumed" else {"PostgreSQL"}
        for name in own & spent.keys():
            figures[f"CPU µs/mail, {name}"] = spent[name] / mails * 1e6
        others = after.machine - before.machine - sum(spent.values())
        figures["cores of others"] = max(0.0, others) / (after.at - before.at)
        log(f"{self._result.phase}: {mails} mails in {after.at - before.at:.2f} s")
