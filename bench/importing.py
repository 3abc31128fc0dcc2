"""The command bench/import: time and memory of imports of recipients, by CSV and by SQL."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import psycopg

from bench.daemons import Product
from bench.database import check_durability, fresh
from bench.options import EXIT, HELP, commands_of, failing, finish, opened
from bench.phases import Result
from bench.progress import log
from bench.report import as_json, table

ABOUT = f"""Measure `queuectl campaign import` of --rows recipients, by CSV and by SQL.

The template has three words. Of a thousand lines of the CSV one is bad and five are duplicates.
Each is compared with the lines that the command names. The memory is that of queuectl. The query
reads a table of the same database. {EXIT}a limit was missed."""

_TEMPLATE = """---
from: Shop <shop@shop.example>
subject: Order {{number}}
---
Hello {{name}} in {{city}}
"""
_TABLE = """
CREATE TABLE public.customers AS
SELECT 's' || n || '@h' || n % 5000 || '.example' AS recipient, 'Ann ' || n AS name, n AS number,
    'City, ' || n AS city, now() AS seen
FROM generate_series(1, {}) AS n
"""
_WITHIN = 1800  # seconds of an import, at most


@dataclass(frozen=True)
class Import:
    """One import: seconds, CPU seconds and peak memory in MB of queuectl, and its counts."""

    name: str
    seconds: float
    cpu: float
    memory: float
    counts: dict[str, int]


def lines(rows: int) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a list, and whether an import leaves them out."""
    bad = ("Ann,no-address,1,X\n", "Ann,a@b.example\n", '"A"nn,x@y.example,1,X\n')
    for n in range(rows):
        if n % 1000 == 500:
            yield bad[n // 1000 % 3], True
        elif n % 200 == 77:
            yield f"Ann,R{n - 50}@H{(n - 50) % 5000}.example,1,X\n", True
        else:
            yield (
                f'"Ann ""{n}"" Müller",r{n}@h{n % 5000}.example,{n},"Street {n % 97}, City"\n',
                False,
            )


def run(command: list[str | Path], name: str) -> Import:
    """Run an import, and return what it took."""
    begun = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout
        said = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - begun
    if process.returncode not in (0, 1) or not said:
        raise subprocess.SubprocessError(f"import by {name}: exit code {process.returncode}")
    log(f"{name}: {seconds:.1f} s")
    cpu = usage.ru_utime + usage.ru_stime
    return Import(name, seconds, cpu, usage.ru_maxrss / 1024, json.loads(said))


def wrong(rows: int, left_out: set[int], path: Path, found: list[Import]) -> list[str]:
    """Return what the imports left out, or did not, against the list."""
    named = {int(line.split(",", 1)[0]) for line in path.read_text().splitlines()[1:]}
    by_csv, by_sql = found
    problems = []
    if named != left_out:
        problems.append(f"{len(named ^ left_out)} lines of {len(left_out)} are named wrongly")
    if by_csv.counts["imported"] != rows - len(left_out) or by_sql.counts["imported"] != rows:
        problems.append(f"imported {by_csv.counts} and {by_sql.counts}")
    return problems


@click.command(help=ABOUT, context_settings=HELP)
@click.option("--rows", default=1_000_000, type=click.IntRange(1), help="Recipients.")
@click.option("--most-csv", default=60.0, help="Limit: seconds by CSV.")
@click.option("--most-sql", default=40.0, help="Limit: seconds by SQL.")
@click.option("--most-memory", default=200.0, help="Limit: MB of memory.")
@click.option("--uri", help="A PostgreSQL server to use, instead of a new embedded one.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(
    rows: int, most_csv: float, most_sql: float, most_memory: float, uri: str | None, json_: bool
) -> None:
    """Measure imports of recipients."""
    with failing():
        directory, server, about = opened(uri, what=f"{rows} recipients, ")
        commands = commands_of(None)
        with fresh(server, keep=False) as database:
            check_durability(database)
            product = Product(commands, directory, database, [])
            product.migrate()
            config = directory / "queued.yaml"
            config.write_text(json.dumps({"environment": {"database": {"uri": database}}}))
            with psycopg.connect(database, autocommit=True) as db:
                db.execute(_TABLE.format(rows).encode())
            (directory / "hello.txt").write_text(_TEMPLATE)
            at = ["-c", str(config)]
            _call(commands, "template", "put", str(directory / "hello.txt"), *at)
            for name in ("csv", "sql"):
                _call(commands, "campaign", "create", f"by-{name}", "--template", "hello",
                      "--credential", "ses-1", *at)  # fmt: skip
            left_out = set()
            with (directory / "list.csv").open("w") as file:
                file.write("name,recipient,number,city\n")
                for number, (line, bad) in enumerate(lines(rows), 2):
                    file.write(line)
                    if bad:
                        left_out.add(number)
            start: list[str | Path] = [commands / "queuectl", "campaign", "import"]
            errors = directory / "errors.csv"
            found = [
                run([*start, "by-csv", directory / "list.csv", "--errors", errors, "--json", *at],
                    "csv"),
                run([*start, "by-sql", "--sql", "SELECT * FROM public.customers", "--json", *at],
                    "sql"),
            ]  # fmt: skip
            problems = wrong(rows, left_out, errors, found)
    figures = [
        Result(each.name, {"seconds": each.seconds, "CPU seconds": each.cpu, "MB": each.memory,
                           "imported": each.counts["imported"], "bad": each.counts["bad"],
                           "duplicates": each.counts["duplicates"]})
        for each in found
    ]  # fmt: skip
    print(as_json({"about": about}, figures) if json_ else table(figures))
    limits = ((found[0].seconds, most_csv, "s by CSV"), (found[1].seconds, most_sql, "s by SQL"),
              (max(each.memory for each in found), most_memory, "MB"))  # fmt: skip
    finish(problems, [f"{value:.1f} {unit}, limit {most:g}" for value, most, unit in limits
                      if value > most])  # fmt: skip


def _call(commands: Path, *words: str) -> None:
    subprocess.run([commands / "queuectl", *words], check=True, timeout=60, capture_output=True)
