"""The command bench/tafto: the work of a published benchmark, done with the library alone."""

import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import click
import psycopg
import uvloop

from bench.database import Server, check_durability, fresh
from bench.null_hop import NullTransport
from bench.options import EXIT, HELP, failing, finish, opened, relay_options
from bench.phases import Result
from bench.progress import Progress, log
from bench.report import as_json, table
from pgmta.client.own_connection import enqueue_many
from pgmta.compose.submitted_mail import RawMail
from pgmta.config.environment import Environment, Log
from pgmta.config.types import HostPort
from pgmta.logs import configure
from pgmta.postgres.notify import listen
from pgmta.store.admin.migrate import migrate
from queued.config import QueuedConfig, Worker
from queued.delivery.transports import TRANSPORTS, TransportKind
from queued.process.queued_process import QueuedProcess
from queued.worker.delivery_worker import DeliveryWorker

PUBLISHED = {"producer": 6944.0, "consumer": 3462.0}
"""Messages per second that tafto's authors measured, with 20,000 messages."""

HOSTNAME = "bench.pgmta.test"
ABOUT = f"""Do the work of tafto's published benchmark with pgmta's library.

The producer puts all messages into the queue by one call, which returns when they are durable. The
consumer is the worker of queued, with its claims, leases, settlements and log of attempts; only its
transport is replaced, by one that takes all mail at once. {EXIT}a median was below the aim."""
LOOK = 0.005  # seconds between two looks whether all is done


@dataclass
class Turn:
    """One run: seconds and CPU of both halves, and the problems."""

    seconds: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def mails(number: int) -> list[RawMail]:
    """Return the messages of the benchmark."""
    content = (
        b"From: obi-wan@jedi.example\r\nTo: grievous@cis.example\r\n"
        b"Subject: Hello there\r\n\r\nGeneral Kenobi!\r\n"
    )
    return [
        RawMail("obi-wan@jedi.example", ["grievous@cis.example"], content) for _ in range(number)
    ]


async def produce(uri: str, number: int) -> float:
    """Put all messages into the queue by one call and return the seconds that it took."""
    batch = mails(number)
    started = time.perf_counter()
    with psycopg.connect(uri, autocommit=True) as connection:
        ids = enqueue_many(connection, batch)
    seconds = time.perf_counter() - started
    assert len(set(ids)) == number
    return seconds


async def consume(uri: str, number: int, worker: Worker, stall: float) -> tuple[float, list[str]]:
    """Work all messages off; return the seconds until the last outcome was durable, and problems.

    The time includes the start of connections and of the claim loop.
    """
    routes: dict[str, HostPort | Literal["mx"]] = {"*": HostPort("127.0.0.1", 25)}
    config = QueuedConfig(environment=Environment(hostname=HOSTNAME), routes=routes)
    progress = Progress("consume", number)
    started = time.perf_counter()
    TRANSPORTS["smtp"] = TransportKind(NullTransport)
    process = QueuedProcess(config, uri)
    consumer = DeliveryWorker(process, worker)
    beside = [*consumer.tasks(), listen(process.resources, [loop.wake for loop in consumer.loops])]
    background = [asyncio.create_task(work) for work in beside]
    loops = [asyncio.create_task(loop.run()) for loop in consumer.loops]
    problems: list[str] = []
    seconds = await _all_handled(consumer, number, stall, started, progress)
    if seconds is None:
        problems.append(f"{consumer.handled} of {number} handled, then nothing for {stall:g} s")
        seconds = time.perf_counter() - started
    progress.show(consumer.handled)
    progress.end()
    await consumer.drain(loops)
    for task in background:
        task.cancel()
    outcomes = await asyncio.gather(*background, return_exceptions=True)
    if failure := loops[0].exception():
        problems.append(f"the worker's loop ended: {failure!r}")
    problems += [
        f"a part of the worker ended: {outcome!r}"
        for outcome in outcomes
        if outcome is not None and not isinstance(outcome, asyncio.CancelledError)
    ]
    await process.close()
    return seconds, problems


async def _all_handled(
    consumer: DeliveryWorker, number: int, stall: float, started: float, progress: Progress
) -> float | None:
    before, moved = 0, started
    while consumer.handled < number:
        await asyncio.sleep(LOOK)
        now = time.perf_counter()
        if consumer.handled != before:
            before, moved = consumer.handled, now
            progress.show(before)
        elif now - moved > stall:
            return None
    return time.perf_counter() - started


def check(uri: str, number: int) -> list[str]:
    """Return the problems after the consumer."""
    once = sum(1 for times in NullTransport.taken.values() if times == 1)
    with psycopg.connect(uri, autocommit=True) as connection:
        found = connection.execute(
            "SELECT (SELECT count(*) FROM queue), (SELECT count(*) FROM messages), count(*),"
            " count(DISTINCT row_id), count(*) FILTER (WHERE event = 'delivered' AND attempt = 1)"
            " FROM attempts"
        ).fetchone()
    wanted = (0, 0, number, number, number)
    problems = []
    if found != wanted:
        problems.append(
            "rows in queue and messages, attempts, of distinct rows, first and delivered: "
            f"{found}, wanted {wanted}"
        )
    if (once, NullTransport.taken.total()) != (number, number):
        problems.append(
            f"{once} rows sent once, {NullTransport.taken.total()} in all, wanted {number}"
        )
    return problems


def turn(server: Server, number: int, worker: Worker, stall: float) -> Turn:
    """Do one run of both halves on a fresh database."""
    done = Turn()
    NullTransport.taken.clear()
    with fresh(server, keep=False) as uri:
        check_durability(uri)
        migrate(uri)
        done.seconds["producer"] = uvloop.run(produce(uri, number))
        log(f"produced {number} in {done.seconds['producer']:.2f} s")
        with psycopg.connect(uri, autocommit=True) as connection:
            waiting = connection.execute("SELECT count(*) FROM queue").fetchone()
        if waiting != (number,):
            done.problems.append(f"rows queued: {waiting}, wanted {number}")
        done.seconds["consumer"], problems = uvloop.run(consume(uri, number, worker, stall))
        done.problems += problems + check(uri, number)
    return done


def results(turns: Sequence[Turn], number: int) -> list[Result]:
    """Return the rates of both halves, and their ratios to the published ones."""
    found = []
    for one in turns:
        rates = {half: number / one.seconds[half] for half in PUBLISHED}
        figures = {f"{half}, messages/s": rate for half, rate in rates.items()}
        figures |= {f"{half}, times published": rates[half] / PUBLISHED[half] for half in rates}
        found.append(Result("tafto", figures, one.problems))
    return found


def misses(found: Sequence[Result], aim: float) -> list[str]:
    """Return which halves were below the aim, by their medians."""
    medians = {
        half: statistics.median(one.figures[f"{half}, times published"] for one in found)
        for half in PUBLISHED
    }
    return [f"{half}: {is_:.2f} times the published rate, aim {aim:g}"
            for half, is_ in medians.items() if is_ < aim]  # fmt: skip


@relay_options("uri", "stall")
@click.command(context_settings=HELP, help=ABOUT)
@click.option("--messages", default=20_000, type=click.IntRange(1), help="Messages of a run.")
@click.option("--runs", default=5, type=click.IntRange(1), help="Repeat; shows min, median, max.")
@click.option("--aim", default=2.0, help="Times the published rates.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(
    messages: int,
    runs: int,
    aim: float,
    json_: bool,
    uri: str | None,
    stall: float,
) -> None:
    """Read the options, run, show."""
    worker = Worker()
    turns: list[Turn] = []
    with failing():
        cores = len(os.sched_getaffinity(0))
        _, server, about = opened(uri, what=f"{messages} messages, {cores} cores; ")
        configure(Log(level="warning"), daemon="bench")
        for number in range(runs):
            log(f"run {number + 1} of {runs}")
            turns.append(turn(server, messages, worker, stall))
    found = results(turns, messages)
    if json_:
        click.echo(as_json({"messages": messages, "about": about}, found))
    else:
        click.echo(f"{about}\n\n{table(found)}\n")
    finish([problem for one in turns for problem in one.problems], misses(found, aim))
