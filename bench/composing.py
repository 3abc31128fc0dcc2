"""The command bench/composed: how fast mail is composed, and relayed beside raw mail."""

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click
import psycopg

from bench.corpus import Plan
from bench.line import Line
from bench.options import EXIT, HELP, commands_of, failing, finish, opened, relay_options
from bench.parts import KINDS, PARTS, RAW, STATEMENTS, TEMPLATE, TEMPLATES, PartsCorpus, arguments
from bench.phases import Result
from bench.progress import log
from bench.report import as_json, table
from pgmta.compose.composed_message import parts_for, read_composition
from pgmta.compose.mime import MessageIdentity, compose_head
from pgmta.store.changes.templates import TemplateTable

ABOUT = f"""Measure how fast mail of text and html is composed, and relayed beside raw mail.

"compose" is what a worker does with the parameters of a message, by the CPU time of this process:
it reads JSON, fills a template, and encodes. "relay" and "delivery" submit mail by SQL to a running
queued: content, parts, words of one template, and of many templates in turn. "relay" lasts from the
first submission to the last message at the sink. In "delivery" all mail is committed at once. A
round measures each form once, every second round backwards, and ratios are within a round.
{EXIT}a rate or ratio is below its limit."""
COMPOSED = 2000  # messages of one measurement of "compose"
LEAST = {
    "ASCII": 20_000.0, "umlauts": 10_000.0, f"ratio to {RAW}": 0.85, f"ratio to {TEMPLATE}": 0.8
}  # fmt: skip
"""Limits: messages composed per second, and ratios of rates."""
BASES = {PARTS: RAW, TEMPLATE: RAW, TEMPLATES: TEMPLATE}


def compose(plan: Plan, rounds: int) -> list[Result]:
    """Return the rates at which one core composes parts and a template."""
    found = []
    for text, umlauts in (("ASCII", False), ("umlauts", True)):
        corpus = PartsCorpus(plan, umlauts)
        _, template = corpus.template()
        identity = MessageIdentity("<1.0123456789abcdef@bench.test>", datetime.now(UTC))
        compositions = corpus.compositions(COMPOSED)
        for _ in range(rounds):
            result = Result(f"compose {text}")
            for form, texts in compositions.items():
                began = time.process_time()
                for each in texts:
                    params = read_composition(each).params
                    parts = parts_for(params, template if form == "template" else None)
                    compose_head(parts, identity)
                rate = COMPOSED / (time.process_time() - began)
                result.figures[f"{form}, messages/s"] = rate
            found.append(result)
    return found


class Relay(Line):
    """The line of composed mail: sessions that submit it, in one form after another."""

    def open(self, corpus: PartsCorpus, sessions: int, batch: int, templates: int) -> None:
        """Store the templates and start all."""
        self.corpus, self.batch, self.templates = corpus, batch, templates
        store = TemplateTable(self.uri, "bench")
        self.stack.callback(store.close)
        store.put([corpus.named(number) for number in range(templates)])
        self.sessions = [self.connect() for _ in range(sessions)]
        self.pool = self.stack.enter_context(ThreadPoolExecutor(sessions))
        self.start(parts=True, umlauts=corpus.umlauts)
        self.next = 0

    def _numbers(self, messages: int) -> range:
        numbers = range(self.next, self.next + messages)
        self.next += messages
        self.sent(numbers)
        return numbers

    def relay(self, kind: str, messages: int) -> float:
        """Submit while queued delivers; return the messages per second."""
        numbers = self._numbers(messages)
        batches = [
            arguments(self.corpus, kind, numbers[at : at + self.batch], self.templates)
            for at in range(0, messages, self.batch)
        ]
        shares = [batches[at :: len(self.sessions)] for at in range(len(self.sessions))]
        began = time.monotonic()
        list(self.pool.map(partial(_submit, kind), self.sessions, shares))
        return messages / (float(self.receive(messages)["last"]) - began)

    def deliver(self, kind: str, messages: int) -> float:
        """Commit all at once; return the messages per second of queued."""
        values = arguments(self.corpus, kind, self._numbers(messages), self.templates)
        with self.control.transaction():
            _submit(kind, self.control, [values])
            began = time.monotonic()
        return messages / (float(self.receive(messages)["last"]) - began)


def _submit(kind: str, session: psycopg.Connection[Any], batches: list[list[Any]]) -> None:
    for values in batches:
        session.execute(STATEMENTS[kind], values, prepare=True)


def measure(line: Relay, rounds: int, messages: int) -> list[Result]:
    """Return the rates of each form, one result a round; the first round warms up."""
    found = []
    for turn in range(rounds + 1):
        log(f"round {turn} of {rounds}" if turn else "warming up")
        rates: dict[tuple[str, str], float] = {}
        for kind in KINDS if turn % 2 else reversed(KINDS):
            rates["relay", kind] = line.relay(kind, messages)
            rates["delivery", kind] = line.deliver(kind, messages)
        if turn:
            found += [_result(rates, kind) for kind in KINDS]
    return found


def _result(rates: dict[tuple[str, str], float], kind: str) -> Result:
    result = Result(kind)
    for what in ("relay", "delivery"):
        result.figures[f"{what}, messages/s"] = rates[what, kind]
        if base := BASES.get(kind):
            ratio = rates[what, kind] / rates[what, base]
            result.figures[f"{what}, ratio to {base}"] = ratio
    return result


def misses(found: Sequence[Result]) -> list[str]:
    """Return the limits that medians do not keep; delivery has none."""
    missed = []
    for phase in dict.fromkeys(one.phase for one in found):
        figures = [one.figures for one in found if one.phase == phase]
        for name in figures[0]:
            key = phase.removeprefix("compose ") if "compose" in phase else name.partition(", ")[2]
            median = statistics.median(each[name] for each in figures)
            if not name.startswith("delivery") and median < LEAST.get(key, 0.0):
                missed.append(f"{phase}: {name} {median:.4g}, limit {LEAST[key]:g}")
    return missed


@relay_options("uri", "stall")
@click.command(context_settings=HELP, help=ABOUT)
@click.option("--messages", default=1000, type=click.IntRange(1), help="Of a form, a measurement.")
@click.option("--rounds", default=5, type=click.IntRange(1), help="Measurements of each form.")
@click.option("--size", default=4096, type=click.IntRange(200), help="Octets of text and html.")
@click.option("--umlauts", is_flag=True, help="Relay texts with umlauts, instead of ASCII.")
@click.option("--sessions", default=4, type=click.IntRange(1), help="Sessions that submit.")
@click.option("--batch", default=10, type=click.IntRange(1), help="Mails of a transaction.")
@click.option("--templates", default=2000, type=click.IntRange(1), help="Templates in turn.")
@click.option("--limits/--no-limits", default=True, help="Whether a rate can be too low.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(
    messages: int,
    rounds: int,
    size: int,
    umlauts: bool,
    sessions: int,
    batch: int,
    templates: int,
    limits: bool,
    json_: bool,
    uri: str | None,
    stall: float,
) -> None:
    """Read the options, measure, show."""
    total = (rounds + 1) * 2 * len(KINDS) * messages
    plan = Plan("composed", total, size, 1, 1)
    with failing():
        what = f"{size} octets of text and html, {messages} messages, {templates} templates, "
        directory, server, about = opened(uri, what=what)
        log("compose")
        made = compose(plan, max(3, rounds))
        with Relay("composed", plan, server, directory, commands_of(None), stall) as line:
            line.open(PartsCorpus(plan, umlauts), sessions, batch, templates)
            found = measure(line, rounds, messages)
            problems = line.problems()
    if json_:
        click.echo(as_json({"about": about}, made + found))
    else:
        click.echo(f"{about}\n\n{table(made)}\n\n{table(found)}\n")
    for note in line.notes:
        log(f"note: {note}")
    finish(problems, misses(made + found) if limits else [])
