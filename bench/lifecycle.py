"""The command bench/lifecycle: accounts, collectors and their links."""

import click

from bench.account_measures import MEASURES, Bench
from bench.columns import aligned
from bench.options import EXIT, HELP, dump, failing, finish, opened, relay_options
from bench.scheduling import Figure

ABOUT = f"""Measure accounts, collectors and their links.

"pace": three collectors share 38 tokens/s for --seconds, then 0.38/s for three batches of ten.
"drain": one collector makes the mail of --tokens that wait. "insert": CPU of an account's insert.
"buffers": what a batch reads beside --collected tokens. "links": from the INSERT of an account to
its link at a next hop, which verifies it. "recovery": the same for recoveries beside --waiting
activations. "beside": bursts of plain mail by SMTP, beside a collector at 1,000 tokens/s and
alone, in alternating pairs; the mail of that collector is not delivered. {EXIT}a limit was
missed."""


@relay_options("uri", "stall")
@click.command(context_settings=HELP, help=ABOUT)
@click.option("--measure", "names", multiple=True, type=click.Choice(list(MEASURES)),
              help="Only this one; repeatable  [default: all]")  # fmt: skip
@click.option("--tokens", default=10_000, type=click.IntRange(100), help="Of drain and insert.")
@click.option("--collected", default=1_000_000, type=click.IntRange(1), help="Collected tokens.")
@click.option("--waiting", default=100_000, type=click.IntRange(1), help="Waiting activations.")
@click.option("--seconds", default=60.0, type=click.FloatRange(1), help="Of pace and of links.")
@click.option("--pairs", default=15, type=click.IntRange(1), help="Pairs of bursts.")
@click.option("--limits/--no-limits", default=True, help="Whether a figure can miss its limit.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(
    names: tuple[str, ...],
    tokens: int,
    collected: int,
    waiting: int,
    seconds: float,
    pairs: int,
    limits: bool,
    json_: bool,
    uri: str | None,
    stall: float,
) -> None:
    """Read the options, measure, show."""
    figures: list[Figure] = []
    with failing():
        directory, server, about = opened(uri)
        bench = Bench(server, directory, stall, tokens, collected, waiting, seconds, pairs)
        for name in names or MEASURES:
            figures += MEASURES[name](bench)
    if json_:
        click.echo(dump({"about": about, "figures": [vars(one) for one in figures]}))
    else:
        click.echo(f"{about}\n\n{aligned([one.row() for one in figures])}\n")
    misses = [one.missed() for one in figures]
    finish([], [miss for miss in misses if miss] if limits else [])


if __name__ == "__main__":
    main()
