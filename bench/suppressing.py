"""The command bench/suppressions: what suppressions cost the feed of a campaign."""

import os
import statistics
import time
from contextlib import ExitStack
from typing import Any

import click
import psycopg

from bench.columns import aligned, number
from bench.database import fresh
from bench.options import EXIT, HELP, dump, failing, finish, opened, relay_options
from bench.progress import log
from pgmta.store.admin.migrate import migrate

LIMIT = 1.10
"""The feed beside suppressions, as a multiple of the feed without any."""
ABOUT = f"""Measure what suppressions cost the feed of a campaign.

Of two databases one has no suppressions and the other --rows. In each of --rounds, a campaign is
fed in both, 200 mails a statement, whose recipients are no suppressed addresses, in random order.
The queue is emptied after each statement, outside of the times. {EXIT}the feed beside suppressions
takes over {LIMIT:.0%}."""
FEED = 200  # mails of a statement
ADDRESS = (
    "'user' || (n * 104729::bigint %% 10000000) || {suffix} || '@d' || n %% 5000 || '.example'"
)
_FILL = f"""
INSERT INTO suppressions (address, reason)
SELECT {ADDRESS.format(suffix="''")}, 'unsubscribed'
FROM generate_series(%(first)s::bigint, %(last)s) AS n
""".replace("104729", "7919")
_RECIPIENTS = f"""
INSERT INTO campaign_recipients (campaign_id, number, recipient, domain, params)
SELECT %(campaign)s, n, {ADDRESS.format(suffix="'x'")}, 'd' || n %% 5000 || '.example',
    '{{"name": "Ann"}}'
FROM generate_series(1, %(mails)s) AS n
"""
_TEMPLATE = """
INSERT INTO templates (name, version, sender, from_field, subject, body, words)
VALUES ('news', 1, 'news@a.example', 'News <news@a.example>', 'For {{name}}',
    'Hello {{name}}' || repeat(' more', 800) || ' {{unsubscribe}}',
    '{"name": ["field", "text"], "unsubscribe": ["text"]}')
"""


class Feeding:
    """A database with suppressions, and campaigns that are fed in it."""

    def __init__(self, uri: str, rows: int) -> None:
        migrate(uri)
        self._db = psycopg.connect(uri, autocommit=True)
        self._db.execute("SET search_path = pgmta")
        self._db.execute(_TEMPLATE)
        for first in range(1, rows + 1, 1_000_000):
            last = min(first + 999_999, rows)
            self._db.execute(_FILL.encode(), {"first": first, "last": last})
            log(f"{last:,} suppressions")
        self._db.execute("VACUUM (ANALYZE)")
        self._round = 0

    def close(self) -> None:
        """Disconnect."""
        self._db.close()

    def ask(self, query: str, **fields: Any) -> tuple[Any, ...]:
        """Return the one row of a query."""
        row = self._db.execute(query.encode(), fields).fetchone()
        assert row is not None
        return row

    def feed(self, mails: int) -> float:
        """Feed a campaign; return the median seconds of a statement."""
        self._round += 1
        name = f"c{self._round}"
        (campaign,) = self.ask("SELECT campaign_create(%(n)s, %(n)s, 'news', scope => 'news')",
                               n=name)  # fmt: skip
        self._db.execute(_RECIPIENTS.encode(), {"campaign": campaign, "mails": mails})
        self._db.execute("VACUUM (ANALYZE) campaign_recipients")
        self.ask("SELECT campaign_start(%(campaign)s)", campaign=campaign)
        self.ask("SELECT campaign_take()")
        times = []
        while True:
            start = time.perf_counter()
            fed, more = self.ask("SELECT fed, more FROM campaign_feed(%(n)s, 'bench')", n=name)
            seconds = time.perf_counter() - start
            if fed == FEED:
                times.append(seconds)
            self._db.execute("UPDATE campaign_recipients SET state = 'sent' WHERE state = 'queued'")
            self._db.execute("DELETE FROM queue")
            if not (fed or more):
                break
        (held,) = self.ask("SELECT count(*) FROM campaign_recipients WHERE state <> 'sent'")
        if held:
            raise psycopg.DataError(f"{held} recipients were not fed")
        self._db.execute("DELETE FROM campaign_recipients")
        return statistics.median(times)


@relay_options("uri", "keep")
@click.command(context_settings=HELP, help=ABOUT)
@click.option("--rows", default=10_000_000, type=click.IntRange(1), help="Suppressions.")
@click.option("--rounds", default=5, type=click.IntRange(1), help="Rounds.")
@click.option("--mails", default=20_000, type=click.IntRange(FEED), help="Mails of a campaign.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(uri: str | None, keep: bool, rows: int, rounds: int, mails: int, json_: bool) -> None:
    """Measure, print, compare."""
    with failing(), ExitStack() as stack:
        _, place, about = opened(uri, keep, f"{len(os.sched_getaffinity(0))} cores; ")
        plain, full = (
            Feeding(stack.enter_context(fresh(place, keep)), number_) for number_ in (0, rows)
        )
        stack.callback(plain.close)
        stack.callback(full.close)
        pairs = [(plain.feed(mails), full.feed(mails)) for _ in range(rounds)]
    ratios = [beside / alone for alone, beside in pairs]
    found = {
        "feed of 200 without suppressions, ms": statistics.median(a for a, _ in pairs) * 1e3,
        "feed of 200 beside suppressions, ms": statistics.median(b for _, b in pairs) * 1e3,
        "ratio": statistics.median(ratios),
        "least ratio": min(ratios),
        "greatest ratio": max(ratios),
    }
    if json_:
        click.echo(dump({"about": about, **found}))
    else:
        lines = [["", "measured"], *([name, number(value)] for name, value in found.items())]
        click.echo(f"{about}\n\n{aligned(lines)}\n")
    ratio = found["ratio"]
    finish([], [f"ratio {ratio:.3f}, limit {LIMIT}"] if ratio > LIMIT else [])


if __name__ == "__main__":
    main()
