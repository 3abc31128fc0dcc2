"""The command bench/held: what a snapshot costs that another session holds."""

from dataclasses import asdict
from typing import Any

import click

from bench.columns import aligned, number
from bench.held_run import AFTER_S, DEAD_ROWS, SHARE_AFTER, Outcome, Run, Settings, Stretch
from bench.options import (
    EXIT_CODES_HELP,
    HELP_SETTINGS,
    dump,
    failing,
    finish,
    hardware,
    opened,
    relay_options,
)
from bench.progress import log

ABOUT = f"""Measure what mail costs beside a snapshot that another session holds.

A program submits mail by SQL at a steady rate, and a queued delivers it to a next hop that needs no
network. After a stretch without it a REPEATABLE READ transaction reads the queue and stays open: no
row that is deleted meanwhile can be removed. Buffers are those of the statements of a claim, by
pg_stat_statements, or from PostgreSQL 18 on without it those of the session that claims.
{EXIT_CODES_HELP}less than 0.8 of the rate was delivered, the p99 of a claim rose above 3 times,
or within {AFTER_S:g} s after its end a table never had fewer than {DEAD_ROWS} dead
rows, or claims did not come down to {SHARE_AFTER:g} times their buffers."""


def table(stretches: list[Stretch]) -> str:
    """Return the figures, with a line for each stretch."""
    names = list(dict.fromkeys(name for one in stretches for name in one.figures))
    rows = [["", *(one.name for one in stretches)]]
    for name in names:
        values = [one.figures.get(name) for one in stretches]
        rows.append([name, *("-" if value is None else number(value) for value in values)])
    return aligned(rows)


@relay_options("uri")
@click.command(context_settings=HELP_SETTINGS, help=ABOUT)
@click.option("--minutes", default=30.0, help="For which the snapshot is held.")
@click.option("--rate", default=500.0, type=click.FloatRange(1), help="Mails per second.")
@click.option("--fill", default=0, type=click.IntRange(0),
              help="Dead rows that are made at once when the snapshot begins.")  # fmt: skip
@click.option("--waiting", default=0, type=click.IntRange(0), help="Other rows, due in a day.")
@click.option("--due", is_flag=True, help="The other rows are due, for a next hop that is away.")
@click.option("--campaign", default=0.0, help="Mails/s of a campaign beside the other mail.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(json_: bool, uri: str | None, **rest: Any) -> None:
    """Read the options, measure, show."""
    settings = Settings(**rest)
    with failing():
        directory, server, about = opened(uri, what=f"{hardware()}; ")
        outcome: Outcome = Run(settings, directory, server).go()
    if json_:
        options = asdict(settings) | {"about": about}
        click.echo(dump({"settings": options, **asdict(outcome)}))
    else:
        click.echo(f"{about}\n\n{table(outcome.stretches)}\n")
    for note in outcome.notes:
        log(f"note: {note}")
    finish([], outcome.misses)


if __name__ == "__main__":
    main()
