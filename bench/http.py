"""The command bench/http: rate and CPU of mail that goes to HTTP providers."""

import os
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import click
import psycopg
import yaml

from bench import cpu
from bench.certificate import make_certificate
from bench.columns import aligned, number
from bench.corpus import make_body
from bench.daemons import Product
from bench.database import Server, fresh
from bench.helper import Helper, HelperError
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

MIN_MAILS_PER_S, MAX_CPU_MICROSECONDS, MIN_RATIO_BESIDE, MAX_GROWTH_MB = 1000.0, 300.0, 0.95, 20.0
MIN_SMS_PER_S = 1000.0
ABOUT = f"""Measure mail that goes out as HTTP requests with its parts in JSON.

One queued has 20 kept connections to a provider on this machine. Each of --rounds sends --mails,
once alone and once beside a provider that hangs with a full queue. Then a provider answers with
10 MB each time, and a campaign of --mails SMS is sent. {EXIT_CODES_HELP}one of the rates is under
{MIN_MAILS_PER_S:,.0f}/s, queued takes over {MAX_CPU_MICROSECONDS:.0f} µs of CPU per mail,
the rate beside the provider that hangs is under {MIN_RATIO_BESIDE:.0%}, or the memory grows by
over {MAX_GROWTH_MB:.0f} MB with such answers."""
TIMEOUT_S = 120.0
PARTS = {"to": "{{recipient}}", "from": "{{from}}", "subject": "{{subject}}", "text": "{{text}}"}
LARGE_ANSWER_OCTETS = 10_000_000
_FILL = """
SELECT pgmta.submit('s' || n || '@a.example', ARRAY['r' || n || '@' || %b], %b, wake => true)
FROM generate_series(1, %b) AS n
"""
_TEMPLATE = """
INSERT INTO pgmta.templates (tenant, name, version, sender, from_field, subject, body, words)
VALUES ('', 'code', 1, 'a@a.example', 'a@a.example', 'code', 'Hello {{name}}, your code is 4711.',
    '{"name": ["body"]}')
"""
_CAMPAIGN = "SELECT pgmta.campaign_create('codes', 'sms', 'code')"
_NUMBERS = """
INSERT INTO pgmta.campaign_recipients (campaign_id, number, recipient, domain, params)
SELECT %s, n, '+49170' || lpad(n::text, 8, '0'), 'sms', jsonb_build_object('name', 'Ann')
FROM generate_series(1, %s) AS n
"""
_DONE = "SELECT sent::integer FROM pgmta.campaign_statistics WHERE name = 'codes'"
_LEFT = "SELECT NOT EXISTS (SELECT FROM pgmta.queue WHERE domain = %b)"


def _content(size: int) -> bytes:
    head = b"From: Ann <a@a.example>\r\nTo: b@b.example\r\nSubject: Your order 4711\r\n"
    mime = b"MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n"
    return head + b"Message-ID: <1@a.example>\r\n" + mime + make_body(1, size)


class Requesting:
    """A queued with three providers: one is good, one hangs, and one has large answers."""

    def __init__(self, server: Server, directory: Path, size: int, *, tls: bool) -> None:
        self.server, self.directory = server, directory
        self.certificate = make_certificate(directory, "provider") if tls else None
        self.content = _content(size)
        self.stack = ExitStack()
        self.notes: list[str] = []

    def __enter__(self) -> Self:
        uri = self.stack.enter_context(fresh(self.server, keep=False))
        product = Product(commands_of(None), self.directory, uri, self.notes)
        product.migrate()
        self.stack.callback(product.stop)
        self.good = self._provider("good")
        routes = [
            self._route("good.example", self.good),
            self._route("hangs.example", self._provider("hangs", hangs=True)),
            self._route("large.example", self._provider("large", octets=LARGE_ANSWER_OCTETS)),
            self._route("sms", self._provider("sms"), {"to": "{{recipient}}", "text": "{{sms}}"}),
        ]
        shaping = self.directory / "shaping.yaml"
        shaping.write_text(yaml.safe_dump({"routes": routes}))
        settings: dict[str, Any] = {"shaping": str(shaping)}
        if self.certificate:
            settings["delivery"] = {"tls": {"ca": str(self.certificate[0])}}
        self.groups = {"queued": product.start_queued(1, 25, settings)}
        self.db = self.stack.enter_context(psycopg.connect(uri, autocommit=True))
        cpu.settle(self.groups)
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()
        # the bench deletes rows while they are in flight, which queued notes
        self.notes[:] = [each for each in self.notes if "row had moved on" not in each]

    def _provider(self, name: str, **config: Any) -> Helper:
        if self.certificate:
            config |= zip(("certificate", "key"), map(str, self.certificate), strict=True)
        helper = Helper("http_sink", config, self.directory / f"{name}.log")
        self.stack.callback(helper.close)
        return helper

    def _route(
        self, domain: str, provider: Helper, words: dict[str, str] = PARTS
    ) -> dict[str, Any]:
        scheme = "https" if self.certificate else "http"
        parameters = {
            "url": f"{scheme}://localhost:{provider.wait('ready')['port']}/v1/send",
            "private": True,
            "headers": {"Authorization": "Bearer key", "Idempotency-Key": "{{key}}"},
            "json": words,
            "id": "id",
        }
        return {"domain": domain, "transport": "http", "parameters": parameters}

    def send(self, domain: str, mails: int) -> tuple[float, float]:
        """Send mails; return their rate per second, and µs of CPU of queued for each."""
        with self.db.transaction():
            self.db.execute(_FILL, (domain, self.content, mails))
            before = cpu.snapshot(self.groups)
        while not self.db.execute(_LEFT, (domain,)).fetchall()[0][0]:
            time.sleep(0.02)
            if time.monotonic() - before.at > TIMEOUT_S:
                raise HelperError(f"mail for {domain} is still in the queue")
        after = cpu.snapshot(self.groups)
        used = after.groups["queued"] - before.groups["queued"]
        return mails / (after.at - before.at), used / mails * 1e6

    def block(self, mails: int) -> None:
        """Fill the queue with mail for the provider that hangs, and wait until it has some."""
        self.db.execute(_FILL, ("hangs.example", self.content, mails))
        time.sleep(2)

    def unblock(self) -> None:
        """Take the mail for the provider that hangs out of the queue."""
        self.db.execute("DELETE FROM pgmta.queue WHERE domain = 'hangs.example'")
        time.sleep(1)

    def campaign(self, messages: int) -> float:
        """Send a campaign by SMS without a rate; return how many go per second."""
        self.db.execute(_TEMPLATE)
        (campaign,) = self.db.execute(_CAMPAIGN).fetchall()[0]
        self.db.execute(_NUMBERS, (campaign, messages))
        began = time.monotonic()
        self.db.execute("SELECT pgmta.campaign_start(%s)", (campaign,))
        while self.db.execute(_DONE).fetchall()[0][0] < messages:
            time.sleep(0.05)
            if time.monotonic() - began > TIMEOUT_S:
                raise HelperError("the campaign is not done")
        return messages / (time.monotonic() - began)

    def growth(self) -> float:
        """Return the MB that queued grows by between 50 and 400 large answers."""
        self.send("large.example", 50)
        before = cpu.memory(self.groups)["queued"]
        self.send("large.example", 350)
        return cpu.memory(self.groups)["queued"] - before


@relay_options("uri", "keep")
@click.command(context_settings=HELP_SETTINGS, help=ABOUT)
@click.option("--mails", default=5000, type=click.IntRange(100), help="Mails of a round.")
@click.option("--size", default=2048, type=click.IntRange(16), help="Octets of a text.")
@click.option("--rounds", default=5, type=click.IntRange(1), help="Rounds; medians count.")
@click.option("--tls", is_flag=True, help="Ask by https.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(
    uri: str | None, keep: bool, mails: int, size: int, rounds: int, tls: bool, json_: bool
) -> None:
    """Measure, print, compare."""
    with failing():
        what = f"{len(os.sched_getaffinity(0))} cores; "
        directory, server, about = opened(uri, keep, what)
        with Requesting(server, directory, size, tls=tls) as run:
            run.send("good.example", mails)  # not measured: it warms up
            alone, beside = [], []
            for turn in range(rounds):
                alone.append(run.send("good.example", mails))
                run.block(1000)
                beside.append(run.send("good.example", mails))
                run.unblock()
                log(f"round {turn + 1}: {alone[-1][0]:,.0f}/s, beside {beside[-1][0]:,.0f}/s")
            sms = run.campaign(mails)
            growth = run.growth()
            run.good.tell("report")
            report = run.good.wait("report")
    pairs = zip(alone, beside, strict=True)
    found = {
        "SMS of a campaign per second": sms,
        "mails per second": statistics.median(rate for rate, _ in alone),
        "µs of CPU of queued per mail": statistics.median(spent for _, spent in alone),
        "rate beside a provider that hangs": statistics.median(b[0] / a[0] for a, b in pairs),
        "MB of growth by answers of 10 MB": growth,
        "connections at a time": report["peak"],
        "connections in all": report["connections"],
    }
    if json_:
        click.echo(dump({"about": about, **found}))
    else:
        lines = [["", "measured"], *([name, number(value)] for name, value in found.items())]
        click.echo(f"{about}\n\n{aligned(lines)}\n")
    sms, rate, spent, share, grown, *_ = found.values()
    missed = {
        f"{sms:,.0f} SMS/s": sms < MIN_SMS_PER_S,
        f"{rate:,.0f} mails/s": rate < MIN_MAILS_PER_S,
        f"{spent:.0f} µs per mail": spent > MAX_CPU_MICROSECONDS,
        f"{share:.3f} beside a provider that hangs": share < MIN_RATIO_BESIDE,
        f"{grown:.0f} MB of growth": grown > MAX_GROWTH_MB,
    }
    finish(run.notes, [text for text, miss in missed.items() if miss])


if __name__ == "__main__":
    main()
