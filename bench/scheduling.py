"""The command bench/scheduled: what scheduled mail costs other mail, and when it is sent."""

import random
import statistics
import time
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import click

from bench.ahead import claim_buffers, lose_lease, schedule
from bench.columns import aligned, number
from bench.corpus import Corpus, Plan
from bench.guarding import Measured, alternate
from bench.helper import Helper, HelperError
from bench.line import Line
from bench.options import EXIT, HELP, commands_of, dump, failing, finish, opened, relay_options
from bench.progress import log

ABOUT = f"""Measure what scheduled mail costs other mail, and when it is sent.

Of two databases one has no scheduled rows and the other --rows, of --domains and the next 30 days,
all with `once`. The buffers are those that the statements of a claim touch, by EXPLAIN. The relay
sends plain mail by SMTP through both, in alternating pairs of bursts. Then mail is submitted beside
the rows: --due messages for one second, and --single ones at random times. Their times at the sink
are compared with send_at, by the clock of the database. At last leases of rows with `once` are
lost. {EXIT}a limit was missed."""
AHEAD = 6.0  # seconds from the submission of mail to its send_at, at least
GAP = 0.5  # seconds between single messages, on average
LOSSES, PATIENCE = 3, 60.0  # lost leases, and seconds to wait for each
SETTLED = 10.0  # seconds

_SUBMIT = """
SELECT count(pgmta.submit(one.sender, ARRAY[one.recipient], one.content,
    send_at => to_timestamp(one.at)))
FROM unnest(%b::text[], %b::text[], %b::bytea[], %b::float8[])
    AS one (sender, recipient, content, at)
"""


@dataclass(frozen=True)
class Figure:
    """A measured figure and its limit, which is the most, or with `least` the least."""

    name: str
    value: float
    limit: float | None = None
    least: bool = False

    def row(self) -> list[str]:
        """Return the cells of the table."""
        sign = "≥" if self.least else "≤"
        return [
            self.name,
            number(self.value),
            f"{sign} {self.limit:g}" if self.limit is not None else "",
        ]

    def missed(self) -> str:
        """Return that the limit is missed, or nothing."""
        if self.limit is None or (
            self.value >= self.limit if self.least else self.value <= self.limit
        ):
            return ""
        return f"{self.name}: {self.value:.4g}, limit {self.limit:g}"


class Relay(Line):
    """A line with smtpd and a source before it."""

    def open(self, messages: int, sessions: int) -> None:
        """Start all; a burst has that many messages."""
        self.start()
        self.open_source(messages, sessions)

    def open_source(self, messages: int, sessions: int = 20) -> None:
        """Start smtpd and the source."""
        self.corpus, self.messages = Corpus(self.plan), messages
        _, port = self.product.start_smtpd(None)
        names: dict[str, Any] = {"sessions": sessions, "reuse": True, "rate": 0.0, "tls": False}
        plan = replace(self.plan, messages=messages)
        self.source: Helper = self.helper("source", plan=plan, port=port, **names)
        self.source.wait("ready")

    def burst(self) -> float:
        """Send all messages once; return the seconds of a message, from first MAIL to the sink."""
        self.source.tell("go")
        sent = self.source.wait("result", self.stall * 3)
        if sent["accepted"] != self.messages:
            raise HelperError(f"smtpd took {sent['accepted']} messages: {sent['samples']}")
        self.sent(range(self.messages))
        return float((self.receive(self.messages)["last"] - sent["first"]) / self.messages)

    def clock(self) -> float:
        """Return how much the clock of the database is ahead of the monotonic one, in seconds."""
        found = []
        for _ in range(20):
            before = time.monotonic()
            row = self.control.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone()
            after = time.monotonic()
            found.append((after - before, float(row[0]) - (before + after) / 2 if row else 0.0))
        return min(found)[1]

    def late(self, ahead: list[float]) -> list[float]:
        """Submit messages, each due in its number of seconds; return how late each arrives."""
        offset, corpus, numbers = self.clock(), self.corpus, range(len(ahead))
        now = time.monotonic() + offset
        due = [now + each for each in ahead]
        with self.control.transaction():
            self.control.execute(_SUBMIT, [
                [corpus.sender(n).decode() for n in numbers],
                [corpus.recipient(n, 0).decode() for n in numbers],
                [corpus.as_sent(n) for n in numbers], due,
            ])  # fmt: skip
        if time.monotonic() + offset > min(due):
            raise HelperError(f"the submission took longer than {min(ahead):g} s")
        self.sent(numbers)
        time.sleep(max(0.0, max(due) - offset - time.monotonic()))
        self.receive(len(ahead))
        offset = (offset + self.clock()) / 2
        return [at + offset - when for at, when in zip(self.times("arrived"), due, strict=False)]


def beside(plain: Relay, full: Relay, pairs: int) -> list[Figure]:
    """Measure the relay beside the rows; its limit is missed if the whole interval is below."""
    measured = Measured("relay", alternate("relay", full.burst, plain.burst, pairs))
    own, other = (statistics.median(column) for column in zip(*measured.costs, strict=True))
    low, high = measured.interval(1.0)
    return [
        Figure("relay, messages/s without rows", 1 / other),
        Figure("relay, messages/s beside them", 1 / own),
        Figure("relay, ratio", 1 / statistics.median(measured.ratios())),
        Figure("relay, ratio, 95 % from", 1 / high),
        Figure("relay, ratio, 95 % to", 1 / low, 0.97, least=True),
    ]


def in_time(full: Relay, due: int, single: int) -> list[Figure]:
    """Measure when mail is at the sink: many messages of one second, then single ones."""
    log(f"{due} due in one second")
    spread = AHEAD + due / 2000  # the submission takes some time
    many = full.late([spread + n / due for n in range(due)])
    last = max(late + n / due for n, late in enumerate(many))
    log(f"{single} at random times")
    gaps = [AHEAD, *(random.uniform(0.0, 2 * GAP) for _ in range(single - 1))]
    ones = sorted(full.late(list(accumulate(gaps))))
    early = min(*many, *ones)
    return [
        Figure(f"{due} due in one second: s to the last", last, 5.0),
        Figure("ms until the first of all", early * 1000, 0.0, least=True),
        Figure("single, ms late p50", statistics.median(ones) * 1000, 60.0),
        Figure("single, ms late p99", ones[int(len(ones) * 0.99)] * 1000, 200.0),
    ]


def losses(full: Relay) -> Figure:
    """Measure the longest time until a lost lease is settled."""
    log("lost leases")
    found = [lose_lease(full.control, PATIENCE) for _ in range(LOSSES)]
    return Figure("lost lease with `once`: s to its hold",
                  max(PATIENCE if each is None else each for each in found), SETTLED)  # fmt: skip


def buffers(plain: Relay, full: Relay, rows: int, domains: int) -> list[Figure]:
    """Schedule the rows, and compare what claims touch without and beside them."""
    before = claim_buffers(plain.uri)
    schedule(full.uri, rows, domains)
    after = claim_buffers(full.uri)
    found = []
    for how, (every, queue) in before.items():
        found += [
            Figure(f"claim {how}, buffers without rows", every),
            Figure(f"claim {how}, ratio beside them", after[how][0] / every),
            Figure(f"claim {how}, ratio without messages", after[how][1] / queue, 1.02),
        ]
    return found


@relay_options("sessions", "uri", "stall")
@click.command(context_settings=HELP, help=ABOUT)
@click.option(
    "--rows",
    default=50_000,
    type=click.IntRange(0),
    help="Scheduled rows; 1000000 for the real thing.",
)
@click.option("--domains", default=100_000, type=click.IntRange(1), help="Their domains, at most.")
@click.option("--messages", default=1000, type=click.IntRange(1), help="Plain mail of a burst.")
@click.option("--pairs", default=11, type=click.IntRange(1), help="Pairs of bursts.")
@click.option("--due", default=10_000, type=click.IntRange(1), help="Messages of one second.")
@click.option("--single", default=40, type=click.IntRange(1), help="Messages at random times.")
@click.option("--limits/--no-limits", default=True, help="Whether a figure can miss its limit.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(
    rows: int,
    domains: int,
    messages: int,
    pairs: int,
    due: int,
    single: int,
    limits: bool,
    json_: bool,
    sessions: int,
    uri: str | None,
    stall: float,
) -> None:
    """Read the options, measure, show."""
    with failing():
        directory, server, about = opened(uri, what=f"{rows} scheduled rows, ")

        def line(name: str) -> Relay:
            plan = Plan(name, max(messages, due, single), 4096, 1, 1)
            return Relay(name, plan, server, directory, commands_of(None), stall)

        with line("plain") as plain, line("full") as full:
            figures = buffers(plain, full, rows, domains)
            for each in (plain, full):
                each.open(messages, sessions)
            figures += beside(plain, full, pairs)
            figures += [*in_time(full, due, single), losses(full)]
            problems = plain.problems() + full.problems()
    if json_:
        click.echo(dump({"about": about, "figures": [vars(one) for one in figures]}))
    else:
        click.echo(f"{about}\n\n{aligned([one.row() for one in figures])}\n")
    misses = [one.missed() for one in figures]
    finish(problems, [miss for miss in misses if miss] if limits else [])
