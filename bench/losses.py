"""The command bench/losses: the primary is lost again and again, under mail, and none may be."""

import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from bench.columns import aligned
from bench.loss.books import Books
from bench.loss.cluster import Cluster, ClusterError, lacking
from bench.loss.faults import FAILURES, KINDS, Faults, Loss
from bench.loss.hosts import Hosts
from bench.loss.relay import RELAYS, Rates, Relay
from bench.options import EXIT_CODES_HELP, FAILED, HELP_SETTINGS, dump, failing, finish, hardware
from bench.progress import log

MAX_ACCEPTS_S = 5.0
"""Limit: the next 250 after a server takes writes."""
MAX_SWITCHOVER_S, MEDIAN_SWITCHOVER_S = 8.0, 3.0
"""Limits: the pause of a switchover."""
_SECONDS_PER_LOSS = 100  # of a campaign, at most
_DRAIN_S = 180.0
_RATE_PER_SESSION = 20
ENDS: tuple[type[BaseException], ...] = (*FAILURES, KeyboardInterrupt)
"""After them no further loss is made, and the books are compared."""
RATES = Rates(route=10, campaign=10)
ABOUT = f"""Lose the primary of a cluster again and again under mail, and check that none is lost.

Three hosts have PostgreSQL with Patroni and etcd, by the files of packaging/cluster, two hosts have
smtpd and {sum(RELAYS.values())} processes of queued, and one has the clients and the next hop: each
is a network namespace. Two thirds of the mail come by SMTP, the rest by submit() with a key. A
campaign and a route have a rate. With each second loss a process of queued is killed, too. After
each loss the command waits until all three servers are there. At the end the queue is emptied, and
the books are compared: mail after 250 or COMMIT has arrived, a second copy has its attempt
`unknown`, the campaign counts each recipient, no second has more than a rate, and no reply is 5xx.
 Data are in memory, without fsync: processes are killed, and
no power is cut. Needs root, iproute2 and what scripts/test-packages gets. {EXIT_CODES_HELP}the next
250 comes later than {MAX_ACCEPTS_S:g} s after a server takes writes, a switchover has a 4xx, or its
pause is over {MAX_SWITCHOVER_S:g} s, or in the median over {MEDIAN_SWITCHOVER_S:g} s."""


def table(losses: Sequence[Loss]) -> str:
    """Return a line for each kind, with median and maximum of the times."""
    heads = ["", "losses", "faults", "writes s", "max", "then 250 s", "max", "pause s", "max",
             "whole s", "max", "4xx"]  # fmt: skip
    rows = [heads]
    for kind in KINDS:
        found = [loss for loss in losses if loss.kind == kind]
        if not found:
            continue
        row = [kind, str(len(found)), str(sum(bool(loss.faults) for loss in found))]
        for name in ("writes", "accepts", "pause", "whole"):
            times = [value for loss in found if (value := getattr(loss, name)) is not None]
            row += [f"{statistics.median(times):.1f}", f"{max(times):.1f}"] if times else ["-", "-"]
        rows.append([*row, str(sum(loss.later for loss in found))])
    return aligned(rows)


def misses(losses: Sequence[Loss]) -> list[str]:
    """Return the limits that were missed."""
    found = [
        f"loss {loss.number} ({loss.kind}): 250 after {loss.accepts:.1f} s, limit {MAX_ACCEPTS_S:g}"
        for loss in losses
        if loss.accepts is not None and loss.accepts > MAX_ACCEPTS_S
    ]
    switched = [loss for loss in losses if loss.kind == "switchover"]
    for loss in switched:
        if loss.later and loss.pause < 10:
            found.append(f"loss {loss.number} (switchover): {loss.later} replies 4xx")
        if loss.pause > MAX_SWITCHOVER_S:
            found.append(f"loss {loss.number} (switchover): pause of {loss.pause:.1f} s")
    if switched and (median := statistics.median(loss.pause for loss in switched)) > (
        MEDIAN_SWITCHOVER_S
    ):
        found.append(f"switchovers: median pause {median:.1f} s, limit {MEDIAN_SWITCHOVER_S:g}")
    return found


def keep_logs(folder: Path, logs: Path) -> None:
    """Copy the logs of all processes, the events of the load and the arrivals."""
    logs.mkdir(parents=True, exist_ok=True)
    for path in (*folder.glob("**/*.log"), *folder.glob("events"), *folder.glob("arrivals")):
        shutil.copy(path, logs / str(path.relative_to(folder)).replace("/", "-"))


def lose(
    numbers: dict[str, int], rate: float, seed: int, programs: Path | None, logs: Path | None
) -> tuple[list[Loss], list[str], dict[str, float]]:
    """Make all losses; return them, what is wrong, and figures.

    Raises ClusterError, HelperError, OSError, psycopg.Error.
    """
    losses: list[Loss] = []
    problems: list[str] = []
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="pgmta-losses-", dir=memory if memory.is_dir() else None))
    folder.chmod(0o755)  # for the user of PostgreSQL
    with Hosts(folder) as hosts:
        cluster = Cluster(hosts, programs)
        relay = Relay(hosts, cluster, RATES)
        try:
            cluster.start()
            log("a primary is there")
            relay.prepare(round(RATES.campaign * _SECONDS_PER_LOSS * (sum(numbers.values()) + 1)))
            relay.start(rate, max(3, round(rate / _RATE_PER_SESSION)))
            faults = Faults(hosts, cluster, relay, seed)
            try:
                for number, kind in enumerate(faults.order(numbers), 1):
                    losses.append(faults.make(number, kind))
            except ENDS as error:
                problems.append(f"ended after {len(losses)} losses: {error!r}")
            try:
                relay.drain(_DRAIN_S)
            except FAILURES as error:
                problems.append(str(error))
            books = Books(relay.events, relay.arrivals)
            relay.ask(lambda db: books.check(db, RATES))
        finally:
            relay.close()
            cluster.close()
            if logs:
                keep_logs(folder, logs)
    problems += [f"loss {loss.number} ({loss.kind}): {f}" for loss in losses for f in loss.faults]
    return losses, problems + books.problems, books.figures


@click.command(context_settings=HELP_SETTINGS, help=ABOUT)
@click.option("--kills", default=0, type=click.IntRange(0), help="Killed postmasters.")
@click.option("--hosts", default=0, type=click.IntRange(0), help="Lost hosts; each third is empty.")
@click.option("--partitions", default=0, type=click.IntRange(0), help="Cut off primaries.")
@click.option("--disks", default=0, type=click.IntRange(0), help="Full disks.")
@click.option("--switchovers", default=0, type=click.IntRange(0), help="Switchovers by patronictl.")
@click.option("--rate", default=100.0, help="Messages per second.")
@click.option("--seed", default=1, help="Chooses the order, and who is cut off.")
@click.option(
    "--programs",
    type=click.Path(exists=True, file_okay=False, path_type=Path, resolve_path=True),
    help="The folder of PostgreSQL's programs  [default: those of the embedded server]",
)
@click.option("--logs", type=click.Path(path_type=Path), help="A folder for all logs, at the end.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(
    rate: float,
    seed: int,
    programs: Path | None,
    logs: Path | None,
    json_: bool,
    **numbers: int,
) -> None:
    """Read the options, run, show."""
    if lacks := lacking():
        log(f"bench/losses lacks {', '.join(lacks)}: scripts/test-packages gets packages, as root")
        sys.exit(FAILED)
    chosen = {kind: numbers[f"{kind}s"] for kind in KINDS}
    about = f"{sum(chosen.values())} losses, seed {seed}, {rate:g} messages/s; {hardware()}"
    log(about)
    with failing(ClusterError):
        losses, problems, figures = lose(chosen, rate, seed, programs, logs)
    if json_:
        found: dict[str, Any] = {"about": about, "losses": [asdict(loss) for loss in losses]}
        click.echo(dump(found | {"figures": figures, "problems": problems}))
    else:
        lines = "\n".join(f"{name}: {value:g}" for name, value in figures.items())
        click.echo("\n\n".join([about, table(losses), lines]) + "\n")
    finish(problems, misses(losses))


if __name__ == "__main__":
    main()
