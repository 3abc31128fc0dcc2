"""The command bench/events: what the relay costs that tells programs of its outcomes."""

import os
import secrets
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import click
import psycopg

from bench import cpu
from bench.columns import aligned, number
from bench.corpus import Plan
from bench.daemons import Product
from bench.database import Server, fresh
from bench.helper import Helper, HelperError
from bench.http_sink import BAD
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
from pgmta.config.token_keys import read_key
from pgmta_features.webhooks.signing import Secrets

LEAST = {"cursor": 0.95, "posted": 0.8}
"""The least share of the rate without a subscription."""
MOST_S = 1.0
"""The longest wait for an event (p99) at good endpoints beside bad ones."""
_GOOD, _BAD_OF_KIND, _MAILS, _PAUSE_S = 75, 5, 100, 0.05
ABOUT = f"""Measure the relay while programs get its events.

smtpd takes --mails by SMTP while one queued sends them to a next hop. Each of --rounds does so
while nobody subscribes, while a reader has their events by cursor, while they are posted to a
webhook, while they go into a table, and while a function is called with them. A round begins with
the first mail, and ends when the last one has gone and its events are there.
At last {_GOOD} webhooks get the events of single mails, beside {_BAD_OF_KIND} each that hang, fail,
reset, answer 410 or redirect inward.
{EXIT_CODES_HELP}the rate by cursor is under {LEAST["cursor"]}, or the one of webhooks under
{LEAST["posted"]}, of the rate without a subscription, as medians of the rounds; or
an event takes more than {MOST_S:g} s (p99) to the good webhooks beside bad ones."""
TIMEOUT_S = 120.0
_EVENTS_PER_MAIL = 2  # accepted, delivered
_OCTETS, _DOMAINS, _SESSIONS = 4096, 50, 50
_LEFT = "SELECT EXISTS (SELECT FROM queue)"
_APPLICATION = """
CREATE SCHEMA shop;
CREATE TABLE shop.mail_events (
    id text PRIMARY KEY, type text, at timestamptz, message_id bigint, recipient text,
    document jsonb
);
CREATE TABLE shop.got (id text);
CREATE FUNCTION shop.on_mail(events jsonb) RETURNS void LANGUAGE sql
    AS $$ INSERT INTO shop.got SELECT e ->> 'id' FROM jsonb_array_elements(events) AS e $$;
"""
_UNSUBSCRIBE = "SELECT events_unsubscribe(name) FROM event_subscriptions"
_MAIL = "SELECT submit('s@a.example', '{r@b.example}', convert_to(E'A: x\\r\\n\\r\\nx', 'UTF8'))"
_ADD = "SELECT webhook_add(%s, %s, %s, '{}', %s, NULL, 100)"
_REMOVE = "DELETE FROM webhooks"
_READ = "SELECT cursor, id FROM events_read(%s, 100)"

type Count = Callable[[], int]


class Relay:
    """A relay, a next hop, a receiver of webhooks, and an application's table and function."""

    def __init__(self, server: Server, directory: Path) -> None:
        self.server, self.directory = server, directory
        self.stack = ExitStack()
        self.notes: list[str] = []

    def __enter__(self) -> Self:
        uri = self.stack.enter_context(fresh(self.server, keep=False))
        self.uri = uri
        bad = tuple(f"webhook={kind}" for kind in BAD)
        product = Product(commands_of(None), self.directory, uri, self.notes, bad)
        product.migrate()
        self.stack.callback(product.stop)
        hop = self._helper("rate_sink", file=str(self.directory / "times.json"))
        self.receiver = self._helper("http_sink")
        key = self.directory / "webhook.key"
        key.write_text(secrets.token_hex(32))
        key.chmod(0o600)
        self.secrets = Secrets([read_key(str(key))], {})
        webhooks = {"keys": [str(key)], "networks": ["127.0.0.0/8"]}
        pids = product.start_queued(1, int(hop.wait("ready")["port"]), {"webhooks": webhooks})
        self.url = f"http://127.0.0.1:{self.receiver.wait('ready')['port']}/"
        self.db = self.stack.enter_context(psycopg.connect(uri, autocommit=True))
        self.db.execute("SET search_path = pgmta")
        self.db.execute(_APPLICATION)
        smtpd, self.smtp_port = product.start_smtpd(None)
        cpu.settle({"smtpd": [smtpd], "queued": pids})
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def _helper(self, module: str, **config: Any) -> Helper:
        helper = Helper(module, config, self.directory / f"{module}.log")
        self.stack.callback(helper.close)
        return helper

    def rate(self, mode: str, mails: int) -> float:
        """Relay mails and return their rate until the last one has gone, and its events came."""
        plan = Plan(secrets.token_hex(4), mails, _OCTETS, 1, _DOMAINS)
        config = {
            "plan": plan.as_dict(), "port": self.smtp_port, "reuse": True, "rate": 0.0,
            "sessions": _SESSIONS, "directory": str(self.directory),
        }  # fmt: skip
        source = Helper("source", config, self.directory / "source.log")
        with getattr(self, mode)() as events, self._unsubscribed(), closing(source):
            source.wait("ready")
            source.tell("go")
            sent = source.wait("result", TIMEOUT_S)
            if sent["accepted"] != mails:
                raise HelperError(f"{mode}: {sent['accepted']} of {mails} mails were taken")
            wanted = _EVENTS_PER_MAIL * mails if mode != "nobody" else 0
            while self.db.execute(_LEFT).fetchall()[0][0] or events() < wanted:
                time.sleep(0.02)
                if time.monotonic() - sent["first"] > TIMEOUT_S:
                    raise HelperError(f"{mode}: {events()} of {wanted} events came")
            return float(mails / (time.monotonic() - sent["first"]))

    @contextmanager
    def _unsubscribed(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.db.execute("TRUNCATE shop.mail_events, shop.got")
            while not self._ended():
                pass

    def _ended(self) -> bool:
        with suppress(psycopg.errors.LockNotAvailable):
            self.db.execute(_REMOVE)
            self.db.execute(_UNSUBSCRIBE)
            return True
        return False

    @contextmanager
    def nobody(self) -> Iterator[Count]:
        """Nobody subscribes."""
        yield lambda: 0

    @contextmanager
    def cursor(self) -> Iterator[Count]:
        """A program reads pages of 100."""
        self.db.execute("SELECT events_subscribe('bench', 'reader')")
        over, found = threading.Event(), [0]
        (after,) = self.db.execute("SELECT events_end()").fetchall()[0]

        def read() -> None:
            nonlocal after
            with psycopg.connect(self.uri, autocommit=True) as db:
                db.execute("SET search_path = pgmta")
                db.execute("LISTEN pgmta_events")
                while not over.is_set():
                    while rows := db.execute(_READ, (after,), prepare=True).fetchall():
                        after = rows[-1][0]
                        found[0] += sum(name is not None for _, name in rows)
                    for _ in db.notifies(timeout=0.2, stop_after=1):
                        pass

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield lambda: found[0]
        finally:
            over.set()
            reader.join()

    @contextmanager
    def posted(self) -> Iterator[Count]:
        """A webhook gets batches of 100."""
        self._add("bench", None)

        def posted() -> int:
            query = "SELECT cursor FROM webhooks"
            behind = "SELECT count(*) FROM events_read(%s, 1) WHERE id IS NOT NULL"
            unnumbered = "SELECT count(*) FROM event_commits"
            ((cursor,),) = self.db.execute(query).fetchall()
            waiting = self.db.execute(unnumbered).fetchall()[0][0]
            left = self.db.execute(behind, (cursor,)).fetchall()[0][0]
            return 0 if waiting or left else 1 << 30

        yield posted

    @contextmanager
    def table(self) -> Iterator[Count]:
        """Events are rows of a table."""
        self.db.execute("SELECT events_into('shop.mail_events')")
        yield lambda: self._rows("SELECT count(*) FROM shop.mail_events")

    @contextmanager
    def function(self) -> Iterator[Count]:
        """A function is called with them."""
        self.db.execute("SELECT events_call('shop.on_mail')")
        yield lambda: self._rows("SELECT count(*) FROM shop.got")

    def beside_bad_ones(self) -> dict[str, float]:
        """Return how long the events of single mails took to the good endpoints."""
        kinds = {"good": _GOOD, **dict.fromkeys(BAD, _BAD_OF_KIND)}
        with self._unsubscribed():
            for name in (f"{kind}{n}" for kind, number in kinds.items() for n in range(number)):
                self._add(name, ["accepted"])
            while self._rows("SELECT count(*) FROM webhooks WHERE leased_by IS NULL"):
                time.sleep(_PAUSE_S)
            for _ in range(_MAILS):
                self.db.execute(_MAIL.encode())
                time.sleep(_PAUSE_S)
            end, wanted, report = time.monotonic() + TIMEOUT_S, _GOOD * _MAILS, {"events": 0.0}
            while report["events"] != wanted:
                if time.monotonic() > end:
                    raise HelperError(f"{report['events']} of {wanted} events came")
                time.sleep(_PAUSE_S)
                self.receiver.tell("report")
                report = self.receiver.wait("report")
        return report

    def _add(self, name: str, kinds: list[str] | None) -> None:
        self.db.execute(_ADD, (name, self.url + name, kinds, self.secrets.new_reference()))

    def _rows(self, query: str) -> int:
        return int(self.db.execute(query.encode()).fetchall()[0][0])


MODES = ("cursor", "posted", "table", "function")


@relay_options("uri", "keep")
@click.command(context_settings=HELP_SETTINGS, help=ABOUT)
@click.option("--mails", default=20000, type=click.IntRange(100), help="Mails of a round.")
@click.option("--rounds", default=5, type=click.IntRange(1), help="Rounds; medians count.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(uri: str | None, keep: bool, mails: int, rounds: int, json_: bool) -> None:
    """Measure, print, compare."""
    rates: dict[str, list[float]] = {mode: [] for mode in MODES}
    alone: list[float] = []
    with failing():
        what = f"{len(os.sched_getaffinity(0))} cores; "
        directory, server, about = opened(uri, keep, what)
        with Relay(server, directory) as run:
            run.rate("nobody", mails)  # not measured: it warms up
            for turn in range(rounds):
                for mode in MODES:
                    # each beside one without a subscription, as other load changes
                    alone.append(run.rate("nobody", mails))
                    rates[mode].append(run.rate(mode, mails) / alone[-1])
                shown = ", ".join(f"{mode} {rates[mode][-1]:.2f}" for mode in MODES)
                log(f"round {turn + 1}: {alone[-1]:,.0f}/s, {shown}")
            waits = run.beside_bad_ones()
    shares = {mode: statistics.median(found) for mode, found in rates.items()}
    figures = {"mails per second while nobody subscribes": statistics.median(alone)}
    figures |= {f"of that: {mode}": share for mode, share in shares.items()}
    figures |= {f"seconds beside bad ones, {at}": waits[at] for at in ("p50", "p99")}
    if json_:
        click.echo(dump({"about": about, **figures}))
    else:
        lines = [["", "measured"], *([name, number(value)] for name, value in figures.items())]
        click.echo(f"{about}\n\n{aligned(lines)}\n")
    missed = [f"{mode}: {shares[mode]:.3f} of the rate" for mode, least in LEAST.items()
              if shares[mode] < least]  # fmt: skip
    if waits["p99"] > MOST_S:
        missed.append(f"webhooks beside bad ones: {waits['p99']:.2f} s (p99)")
    finish(run.notes, missed)


if __name__ == "__main__":
    main()
