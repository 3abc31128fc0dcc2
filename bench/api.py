"""The command bench/api: mail that comes by the HTTP API, beside other ways in."""

import os
import secrets
import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import click
import psycopg

from bench import cpu
from bench.api_client import UPLOAD_OCTETS, WARM_UP_MAILS
from bench.columns import aligned, number
from bench.corpus import Plan
from bench.daemons import Product
from bench.database import Server, fresh
from bench.helper import Helper
from bench.options import (
    EXIT_CODES_HELP,
    HELP_SETTINGS,
    commands_of,
    dump,
    failing,
    finish,
    opened,
    relay_options,
)
from bench.progress import log

MIN_POSTS_PER_S, MIN_RATIO_SMTP, MIN_RATIO_CLIENT, MAX_MB = 3000.0, 0.5, 0.7, 150.0
ABOUT = f"""Measure mail that comes by the HTTP API: single messages and batches.

Each of --rounds has --mails by SMTP, by POST without and with an Idempotency-Key, in batches, and
by Client.send_many(), each over its usual number of connections. At the end come --uploads of
{UPLOAD_OCTETS / 1e6:.0f} MB at once. The server of the API is one process, and no mail is
delivered. {EXIT_CODES_HELP}POST is under {MIN_POSTS_PER_S:,.0f}/s and under {MIN_RATIO_SMTP:.0%} of
SMTP, batches are under {MIN_RATIO_CLIENT:.0%} of Client.send_many(), or the server of the API takes
over {MAX_MB:.0f} MB."""
TIMEOUT_S, UPLOADS_TIMEOUT_S = 180.0, 900.0
WAYS = ("SMTP", "POST", "POST with a key", "batches", "Client.send_many")


class Intake:
    """smtpd, an API and a database that takes mail."""

    def __init__(self, server: Server, directory: Path, size: int, connections: int) -> None:
        self.server, self.directory = server, directory
        self.size, self.connections = size, connections
        self.stack = ExitStack()
        self.notes: list[str] = []
        self.first = 0  # number of the next mail

    def __enter__(self) -> Self:
        self.uri = self.stack.enter_context(fresh(self.server, keep=False))
        product = Product(commands_of(None), self.directory, self.uri, self.notes)
        product.migrate()
        self.stack.callback(product.stop)
        self.db = self.stack.enter_context(psycopg.connect(self.uri, autocommit=True))
        self.token = product.api_token()
        smtpd, self.smtp_port = product.start_smtpd(None)
        self.api, self.api_port = product.start_api({"limits": {"address_connections": 2000}})
        postmaster = self.server.postmaster
        self.groups = {
            "daemons": [smtpd, self.api],
            "PostgreSQL": [postmaster] if postmaster else [],
        }
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def send(self, way: str, mails: int) -> dict[str, float]:
        """Send mails; return their rate per second, and µs of CPU for each by group."""
        self.db.execute("TRUNCATE pgmta.messages, pgmta.queue, pgmta.message_chunks")
        self.db.execute("TRUNCATE pgmta.api_requests, pgmta.submit_calls")
        self.db.execute("CHECKPOINT")
        helper, warm = self._source(mails) if way == "SMTP" else self._client(way, mails)
        try:
            helper.wait("ready", TIMEOUT_S)
            before = cpu.snapshot(self.groups)
            helper.tell("go")
            found = helper.wait("result", TIMEOUT_S)
        finally:
            helper.close()
        after = cpu.snapshot(self.groups)
        if way == "SMTP":
            seconds, taken = found["last"] - found["first"], found["accepted"]
        else:
            seconds, taken = found["seconds"], found["ids"]
        stored = self.db.execute("SELECT count(*) FROM pgmta.messages").fetchall()[0][0]
        if taken != mails or stored < mails or stored > mails + warm:
            self.notes.append(f"{way}: {taken} of {mails} taken, {stored} stored")
        return {"mails/s": mails / seconds} | {
            f"µs of CPU, {name}": (after.groups[name] - before.groups[name]) / mails * 1e6
            for name in before.groups
        }

    def upload(self, number: int) -> dict[str, float]:
        """Send large mails at once; return their rate, and the largest memory of the API in MB."""
        helper, _ = self._client("uploads", number)
        try:
            helper.wait("ready", TIMEOUT_S)
            # the largest memory from now on
            Path(f"/proc/{self.api}/clear_refs").write_text("5")
            helper.tell("go")
            found = helper.wait("result", UPLOADS_TIMEOUT_S)
        finally:
            helper.close()
        if found["ids"] != number:
            first = found["failures"][0]
            self.notes.append(f"{found['ids']} of {number} uploads taken, the others: {first}")
        status = Path(f"/proc/{self.api}/status").read_text()
        largest = int(status.partition("VmHWM:")[2].split()[0]) / 1024
        return {"MB/s": number * UPLOAD_OCTETS / found["seconds"] / 1e6, "MB of the API": largest}

    def _source(self, mails: int) -> tuple[Helper, int]:
        plan = Plan(secrets.token_hex(4), mails, self.size, 1, 50)
        config = {
            "plan": plan.as_dict(), "port": self.smtp_port, "reuse": True, "rate": 0.0,
            "sessions": self.connections, "directory": str(self.directory),
        }  # fmt: skip
        return Helper("source", config, self.directory / "source.log"), 0

    def _client(self, way: str, mails: int) -> tuple[Helper, int]:
        works = {"batches": "batches", "Client.send_many": "client", "uploads": "uploads"}
        config: dict[str, Any] = {
            "work": works.get(way, "posts"), "mails": mails, "size": self.size,
            "connections": self.connections, "port": self.api_port, "token": self.token,
            "uri": self.uri, "keys": way == "POST with a key", "first": self.first,
        }  # fmt: skip
        self.first += mails + WARM_UP_MAILS
        return Helper("api_client", config, self.directory / "client.log"), WARM_UP_MAILS + 2


@relay_options("uri", "keep")
@click.command(context_settings=HELP_SETTINGS, help=ABOUT)
@click.option("--mails", default=10000, type=click.IntRange(1000), help="Mails of a measurement.")
@click.option("--size", default=4096, type=click.IntRange(16), help="Octets of a text.")
@click.option("--connections", default=50, type=click.IntRange(1), help="Kept connections.")
@click.option("--uploads", default=200, type=click.IntRange(1), help="Large mails at once.")
@click.option("--rounds", default=3, type=click.IntRange(1), help="Rounds; medians count.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(
    uri: str | None,
    keep: bool,
    mails: int,
    size: int,
    connections: int,
    uploads: int,
    rounds: int,
    json_: bool,
) -> None:
    """Measure, print, compare."""
    with failing():
        what = f"{len(os.sched_getaffinity(0))} cores; "
        directory, server, about = opened(uri, keep, what)
        measured: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        with Intake(server, directory, size, connections) as run:
            for turn in range(rounds):
                for way in WAYS:
                    measured[way].append(run.send(way, mails))
                line = ", ".join(f"{way} {measured[way][-1]['mails/s']:,.0f}" for way in WAYS)
                log(f"round {turn + 1}: {line}")
            large = run.upload(uploads)
    found = {
        way: {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
        for way, turns in measured.items()
    }
    rates = {way: figures["mails/s"] for way, figures in found.items()}
    smtp, posts = rates["POST"] / rates["SMTP"], rates["POST"]
    client = rates["batches"] / rates["Client.send_many"]
    if json_:
        click.echo(dump({"about": about, **found, "uploads": large}))
    else:
        lines = [["", *found["SMTP"]]]
        lines += [[way, *map(number, figures.values())] for way, figures in found.items()]
        click.echo(f"{about}\n\n{aligned(lines)}\n")
        click.echo(f"POST to SMTP {smtp:.2f}, batches to Client.send_many {client:.2f}")
        click.echo(f"{uploads} uploads: " + ", ".join(f"{large[n]:.0f} {n}" for n in large))
    missed = {
        f"{posts:,.0f} POST/s, {smtp:.2f} of SMTP": posts < MIN_POSTS_PER_S
        and smtp < MIN_RATIO_SMTP,
        f"batches {client:.2f} of Client.send_many": client < MIN_RATIO_CLIENT,
        f"the API took {large['MB of the API']:.0f} MB": large["MB of the API"] > MAX_MB,
    }
    finish(run.notes, [text for text, miss in missed.items() if miss])


if __name__ == "__main__":
    main()
