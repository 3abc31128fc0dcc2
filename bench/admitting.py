"""The command bench/admission: a host that admits five connections, found out or known."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import psycopg

from bench.corpus import Plan
from bench.daemons import HOST, DaemonError, Product
from bench.database import Server, fresh, insert, open_server
from bench.hostile_hops import DOMAIN, PLACES
from bench.options import EXIT, HELP, MISSED, WRONG, commands_of, failing, workplace
from bench.place import Place
from bench.progress import log

STALL = 60.0
DELAY = 0.01  # seconds that the host takes for a message: so its five connections are the limit
KINDS: dict[str, dict[str, Any]] = {"default": {}, "limited": {"connections": PLACES}}


def deliver(
    server: Server, commands: Path, directory: Path, kind: str, messages: int
) -> Mapping[str, float]:
    """Deliver messages to the host; return the rate, refused connections and deferred attempts."""
    place = Place(f"admission.{kind}", Plan(f"{time.monotonic_ns():x}", 1, 16, 1, 1), directory)
    with fresh(server, False) as uri, place.stack:
        product = Product(commands, place.directory, uri, [])
        product.migrate()
        place.stack.callback(product.stop)
        hop = place.helper("hostile_hops", group="hop", attack="hop-five", delay=DELAY)
        routes = {DOMAIN: f"{HOST}:{hop.wait('ready')['port']}"}
        with psycopg.connect(uri, autocommit=True) as database:
            insert(database, 1, messages, DOMAIN)
            started = time.monotonic()
            product.start_queued(1, 9, {"routes": routes, "delivery": KINDS[kind]})
            begun = _wait(product, database, messages, messages - 1)
            ended = _wait(product, database, messages, 0)
            row = database.execute(
                "SELECT count(*) FROM attempts WHERE event <> 'delivered'"
            ).fetchone()
        hop.tell("report")
        report = hop.wait("report")
        assert row
        twice = sum(number > 1 for number in report["full"].values())
        return {
            "messages/s": messages / (ended - begun),
            "seconds": ended - started,
            "deferred": float(row[0]),
            "refused": float(report["refused"]),
            "wrong": float(messages - len(report["full"]) + twice),
        }


def _wait(product: Product, database: psycopg.Connection[Any], messages: int, most: int) -> float:
    """Return when at most that number of messages waits; raise DaemonError if it never does."""
    moved, before = time.monotonic(), messages + 1
    while True:
        row = database.execute("SELECT count(*) FROM queue").fetchone()
        left = int(row[0]) if row else 0
        now = time.monotonic()
        if left <= most:
            return now
        if left != before:
            moved, before = now, left
        elif now - moved > STALL:
            raise DaemonError(f"{left} messages wait, nothing moved for {STALL:g} s")
        product.check()
        time.sleep(0.01)


@click.command(context_settings=HELP)
@click.option("--messages", default=2000, type=click.IntRange(10), help="Messages for the host.")
@click.option("--runs", default=3, type=click.IntRange(1), help="Rounds, both kinds in each.")
@click.option("--commands", type=click.Path(path_type=Path), help="Directory of smtpd and queued.")
def main(messages: int, runs: int, commands: Path | None) -> None:
    directory = workplace(False)
    missed = wrong = False
    with failing():
        server = open_server(None, directory)
        for turn in range(runs):
            order = list(KINDS) if turn % 2 == 0 else list(KINDS)[::-1]
            found = {}
            for kind in order:
                log(f"round {turn + 1} of {runs}, {kind}")
                found[kind] = deliver(server, commands_of(commands), directory, kind, messages)
            default, limited = found["default"], found["limited"]
            ratio = default["messages/s"] / limited["messages/s"]
            click.echo(
                f"{default['messages/s']:.0f} messages/s, limited {limited['messages/s']:.0f},"
                f" ratio {ratio:.2f}; {default['deferred']:.0f} deferred,"
                f" {default['refused']:.0f} connections refused"
            )
            wrong = wrong or any(each["wrong"] for each in found.values())
            missed = missed or ratio < 0.9 or default["deferred"] > 0 or default["refused"] > 10
    sys.exit(WRONG if wrong else MISSED if missed else 0)


main.help = f"""Measure delivery to a host that admits {PLACES} connections and says 421 to others.

Each round delivers with default settings, and with `delivery.connections` set to {PLACES}. {EXIT}a
message was deferred, over 10 connections were refused, or the rate was below 0.9 of the limited."""
