"""The command bench/suspended: what suspended mail costs other mail, and a resume."""

import asyncio
import os
import statistics
import time
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import click
import psycopg

from bench.columns import aligned, number
from bench.database import fresh
from bench.options import EXIT, HELP, dump, failing, finish, opened, relay_options
from bench.progress import log
from pgmta.postgres.link import Link
from pgmta.store.admin.migrate import migrate
from pgmta.store.queue.claim import SESSION, Claims
from pgmta.store.records.suspensions import LOGGED, SUSPENDING, SuspensionTable
from queued.config import QueuedConfig
from queued.process.queued_process import QueuedProcess
from queued.upkeep.suspending import RowTimes, SuspensionDuty

LEAST, LONGEST = 0.97, 60.0
ABOUT = f"""Measure what suspended mail costs other mail.

Of two databases one has no suspended rows and the other --rows of --domains, which the duty of
queued has put off: by a condition, or by an MX host to which the domains lead. In each of --rounds
other mail is put into both, and claimed, 200 rows per claim. Then the suspension is resumed.
{EXIT}claims beside suspended rows have less than {LEAST} of their rate, or the resume takes over
{LONGEST:.0f} s."""
CLAIM = 200  # rows of a claim
SUSPEND = {
    "condition": "SELECT queue_suspend('condition', $$domain LIKE 'bad%.example'$$, 'bench')",
    "mx": "SELECT queue_suspend('mx', 'mx.bad.example', 'bench')",
}
LEARN = """
INSERT INTO suspension_domains (suspension_id, domain)
SELECT id, domain
FROM suspensions, (SELECT DISTINCT domain FROM queue WHERE domain LIKE 'bad%') AS q
WHERE kind = 'mx'
"""
FILL = """
WITH made AS (
    INSERT INTO messages (id, size, trace, body)
    SELECT nextval('message_ids'), 4, 'T: t' || E'\\r\\n', 'body' FROM generate_series(1, %(rows)s)
    RETURNING id
)
INSERT INTO queue (message_id, sender, sender_domain, recipient, domain)
SELECT id, 's@a.example', 'a.example', 'r@' || domain, domain
FROM (SELECT id, %(name)s || (id %% %(domains)s) || '.example' AS domain FROM made) AS mail
"""


async def _no_hosts(domain: str) -> list[str]:
    return []


class Mail:
    """A database with suspended rows, and claims of other rows."""

    def __init__(self, uri: str) -> None:
        migrate(uri)
        self._uri = uri
        self._db = psycopg.connect(uri, autocommit=True)
        self._db.execute("SET search_path = pgmta")

    def close(self) -> None:
        """Disconnect."""
        self._db.close()

    def fill(self, name: str, rows: int, domains: int) -> None:
        """Put mail for some domains into the queue."""
        self._db.execute(FILL.encode(), {"rows": rows, "name": name, "domains": domains})

    def vacuum(self) -> None:
        """Let the database rest."""
        self._db.execute("VACUUM (ANALYZE)")

    async def change(self, call: str) -> tuple[float, int]:
        """Begin or end a suspension; return the seconds of the duty, and the rows that wait."""
        self._db.execute(call.encode())
        self._db.execute(LEARN.encode())
        link, logged = (Link(self._uri, "bench", each) for each in (SUSPENDING, LOGGED))
        process = cast(QueuedProcess, SimpleNamespace(config=QueuedConfig()))
        began = time.perf_counter()
        table, other = SuspensionTable(link), SuspensionTable(logged)
        await SuspensionDuty(table, RowTimes(process), "bench", other, _no_hosts).do_round()
        seconds = time.perf_counter() - began
        await link.close()
        await logged.close()
        return seconds, self._db.execute("SELECT FROM queue WHERE suspension > 0").rowcount

    async def claim(self, rows: int) -> float:
        """Claim that many rows of other mail; return the rows per second of the claims."""
        self.fill("good", rows, 50)
        link = Link(self._uri, "bench claim", SESSION)
        claims = Claims(link, "bench", 600)
        found, seconds = 0, 0.0
        while found < rows:
            began = time.perf_counter()
            claim = await claims.claim(CLAIM, [])
            seconds += time.perf_counter() - began
            if not claim.items:
                raise psycopg.DataError(f"{found} of {rows} rows were claimed")
            found += len(claim.items)
            self._db.execute(
                "DELETE FROM queue WHERE id = ANY (%s)", ([item.id for item in claim.items],)
            )
        await link.close()
        return found / seconds


async def measure(
    plain: Mail, full: Mail, suspend: str, shape: tuple[int, int], rounds: int, mails: int
) -> dict[str, Any]:
    """Return the figures with mail of a shape: rows, and domains."""
    log(f"{shape[0]:,} rows")
    full.fill("bad", *shape)
    for each in (plain, full):
        each.vacuum()
    put_off, waiting = await full.change(suspend)
    log(f"put off {waiting:,} rows in {put_off:.1f} s")
    for each in (plain, full):
        each.vacuum()
    pairs = []
    for turn in range(rounds + 1):
        order = [plain, full][:: -1 if turn % 2 else 1]
        rates = {each: await each.claim(mails) for each in order}
        if turn:  # the first one warms up
            pairs.append((rates[plain], rates[full]))
    resumed, left = await full.change("SELECT queue_resume(id) FROM suspensions")
    ratios = [beside / alone for alone, beside in pairs]
    return {
        "suspended rows": waiting,
        "put off, s": put_off,
        "claims without suspended rows, rows/s": statistics.median(a for a, _ in pairs),
        "claims beside suspended rows, rows/s": statistics.median(b for _, b in pairs),
        "ratio": statistics.median(ratios),
        "least ratio": min(ratios),
        "greatest ratio": max(ratios),
        "resume, s": resumed,
        "rows left": left,
    }


@relay_options("uri", "keep")
@click.command(context_settings=HELP, help=ABOUT)
@click.option("--rows", default=1_000_000, type=click.IntRange(1), help="Suspended rows.")
@click.option("--kind", default="condition", type=click.Choice([*SUSPEND]), help="What suspends.")
@click.option("--domains", default=100, type=click.IntRange(1), help="Their domains.")
@click.option("--rounds", default=10, type=click.IntRange(1), help="Rounds.")
@click.option("--mails", default=10_000, type=click.IntRange(CLAIM), help="Other mails of a round.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(
    uri: str | None,
    keep: bool,
    rows: int,
    kind: str,
    domains: int,
    rounds: int,
    mails: int,
    json_: bool,
) -> None:
    """Measure, print, compare."""
    with failing(), ExitStack() as stack:
        _, place, about = opened(uri, keep, f"{len(os.sched_getaffinity(0))} cores; ")
        plain, full = (Mail(stack.enter_context(fresh(place, keep))) for _ in range(2))
        stack.callback(plain.close)
        stack.callback(full.close)
        found = asyncio.run(measure(plain, full, SUSPEND[kind], (rows, domains), rounds, mails))
    if json_:
        click.echo(dump({"about": about, **found}))
    else:
        lines = [["", "measured"], *([name, number(value)] for name, value in found.items())]
        click.echo(f"{about}\n\n{aligned(lines)}\n")
    problems = []
    if found["ratio"] < LEAST:
        problems.append(f"ratio {found['ratio']:.3f}, at least {LEAST}")
    if found["resume, s"] > LONGEST or found["rows left"]:
        problems.append(f"resume took {found['resume, s']:.0f} s, {found['rows left']} rows left")
    finish([], problems)


if __name__ == "__main__":
    main()
