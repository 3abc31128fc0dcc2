"""The command `bench/steer`: the effect of operators' bulk commands on the mail that flows."""

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import psycopg

from bench.bulk_commands import COMMANDS, DOMAIN, Measured, Operator, Queuectl
from bench.columns import aligned, cell, cells, spread
from bench.daemons import Product
from bench.database import Server, Watch, check_durability, fill, fresh, rest
from bench.options import EXIT, HELP, commands_of, dump, failing, finish, opened, relay_options
from bench.phases import EMPTY_WITHIN, Options, Phase, Result
from bench.progress import log
from bench.windows import Compared, Window, compare

ABOUT = f"""Measure what operators' bulk commands do to the mail that flows.

Holds rows for a domain whose next hop refuses connections, sends other mail end to end, and
meanwhile runs queuectl release, retry, hold and delete for all of these rows, with windows without
a command in between. {EXIT}a command took too long, or the mail flowed too slowly beside it."""


@dataclass
class Turn:
    """Hold one run: the figures of each command, and the rates in and beside its window."""

    result: Result
    windows: list[Window] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)


def run(
    options: Options, rows: int, times: tuple[float, float, float], directory: Path, server: Server
) -> Turn:
    """Do one run on a fresh database; `times` are warm-up, pause and tail in seconds."""
    phase = Phase("bulk", options, directory)
    turn = Turn(phase.result)
    with fresh(server, options.keep) as uri:
        check_durability(uri)
        product = Product(options.commands, phase.directory, uri, phase.result.notes)
        product.migrate()
        fill(uri, rows, held=True)
        rest(uri)
        watch = Watch(uri)
        with contextlib.closing(watch), phase.stack:
            phase.stack.callback(product.stop)
            phase.groups["postgres"] = [server.postmaster] if server.postmaster else []
            next_hop = phase.start_sink(traces=1)
            phase.groups["queued"] = product.start_queued(options.workers, next_hop)
            pid, port = product.start_smtpd(options.processes)
            phase.groups["smtpd"] = [pid]
            queuectl = Queuectl(options.commands / "queuectl", phase.directory / "queued.yaml", uri)
            operator = Operator(queuectl, *times)
            phase.stack.callback(operator.end)

            def check() -> None:
                product.check()
                operator.check()

            def after() -> None:
                watch.wait_empty(EMPTY_WITHIN)

            phase.transfer(port, check, after, operator.begin)
            if not operator.end():
                reason = operator.failure or "the source had nothing left: say more --messages"
                phase.result.problems.append(f"not all commands ran: {reason}")
            product.stop()
        phase.result.problems += left(uri, rows)
    turn.windows, turn.measured = operator.windows, operator.measured
    turn.compared = compare(turn.windows, phase.times("arrived"))
    for measured in turn.measured:
        if measured.name in ("release", "delete") and measured.rows != rows:
            phase.result.problems.append(f"{measured.name} changed {measured.rows} rows of {rows}")
    return turn


def left(uri: str, rows: int) -> list[str]:
    """Return the problems in the end: queued mail, held rows that were not deleted once."""
    with psycopg.connect(uri, autocommit=True) as connection:
        found = connection.execute(
            "SELECT (SELECT count(*) FROM queue), (SELECT count(*) FROM messages), count(*),"
            " count(DISTINCT row_id) FROM attempts WHERE event = 'deleted' AND domain = %s",
            [DOMAIN],
        ).fetchone()
    wanted = (0, 0, rows, rows)
    if found == wanted:
        return []
    return [f"rows in queue, messages, deletions, of distinct rows: {found}, wanted {wanted}"]


def table(turns: Sequence[Turn]) -> str:
    """Return the aligned table: a row for each command, medians of all runs."""
    several = len(turns) > 1
    ratio = ["ratio", "", ""] if several else ["ratio"]
    head = ["command", "rows", "seconds", "worked off", "messages/s", "", "", "aftermath", *ratio]
    second = ["", "", "", "seconds", "before", "during", "after", "ratio"]
    second += ["min", "median", "max"] if several else [""]
    lines = [head, second]
    for command in COMMANDS:
        measured = [c for turn in turns for c in turn.measured if c.name == command.name]
        compared = [c for turn in turns for c in turn.compared if c.command == command.name]
        columns = [
            [float(c.rows) for c in measured],
            [c.seconds for c in measured],
            [c.afterwards for c in measured],
            [c.before for c in compared],
            [c.during for c in compared],
            [c.after for c in compared],
            [c.aftermath for c in compared],
        ]
        spreads = [spread(column) for column in columns]
        ratios = spread([c.ratio for c in compared])
        line = [command.name, *(cell(values[1] if values else None) for values in spreads)]
        lines.append(line + (cells(ratios) if several else [cell(ratios[1] if ratios else None)]))
    return aligned(lines)


def misses(turns: Sequence[Turn], least: float, longest: float) -> list[str]:
    """Return which limits were not kept: the slowest run counts, and the median ratio."""
    found = []
    for command in COMMANDS:
        seconds = max(
            (c.seconds for t in turns for c in t.measured if c.name == command.name), default=0
        )
        compared = [c for t in turns for c in t.compared if c.command == command.name]
        for when, ratios in (
            ("beside", spread([c.ratio for c in compared])),
            ("after", spread([c.aftermath for c in compared])),
        ):
            if ratios and ratios[1] < least:
                found.append(f"mail {when} {command.name} at {ratios[1]:.2f}, limit {least:g}")
        if seconds >= longest:
            found.append(f"{command.name} took {seconds:.1f} s, limit {longest:g} s")
    return found


@relay_options(
    "sessions", "size", "recipients", "domains", "reuse", "processes", "workers", "rate", "uri",
    "stall", "keep", "commands",
)  # fmt: skip
@click.command(context_settings=HELP, help=ABOUT)
@click.option("--rows", default=100_000, type=click.IntRange(1), help="Rows on hold.")
@click.option("--messages", default=1_000_000, type=click.IntRange(1),
              help="At most; sending ends with the last window.")  # fmt: skip
@click.option("--warm", default=3.0, help="Seconds of mail before the first window.")
@click.option("--quiet", default=10.0, help="Seconds of a window without a command.")
@click.option("--tail", default=5.0, help="Seconds that count to a release after its end.")
@click.option("--runs", default=1, type=click.IntRange(1), help="Repeat.")
@click.option("--least", default=0.80, help="The mail's rate beside a command, as a ratio.")
@click.option("--longest", default=30.0, help="Seconds that a command may take.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(
    rows: int,
    warm: float,
    quiet: float,
    tail: float,
    runs: int,
    least: float,
    longest: float,
    json_: bool,
    uri: str | None,
    commands: Path | None,
    **rest: Any,
) -> None:
    """Read the options, run, show."""
    options = Options(commands=commands_of(commands), backlog=0, sample=0.0, **rest)
    turns: list[Turn] = []
    with failing():
        directory, server, about = opened(uri, options.keep, f"{rows} held rows; ")
        for number in range(runs):
            if runs > 1:
                log(f"run {number + 1} of {runs}")
            turns.append(run(options, rows, (warm, quiet, tail), directory, server))
    if json_:
        settings = asdict(options) | {"commands": str(options.commands), "about": about}
        settings |= {"rows": rows, "warm": warm, "quiet": quiet, "tail": tail}
        click.echo(dump({"settings": settings, "runs": [asdict(turn) for turn in turns]}))
    else:
        click.echo(f"{about}\n\n{table(turns)}\n")
    for note in [note for turn in turns for note in turn.result.notes]:
        log(f"note: {note}")
    problems = [problem for turn in turns for problem in turn.result.problems]
    finish(problems, misses(turns, least, longest))
