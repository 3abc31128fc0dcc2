"""The command bench/guard: CPU per message against a stored baseline."""

import json
import statistics
import sys
from pathlib import Path

import click
import uvloop

from bench.daemons import Product
from bench.database import fresh, open_server
from bench.options import HELP, workplace
from bench.progress import log
from bench.stages import Costs, calibrate, measure

BASELINE = Path(__file__).parent / "baseline.json"


def rounds(uri: str, number: int) -> tuple[Costs, Costs]:
    """Return the median cost of each stage, in seconds and in calibration loops."""
    seconds: dict[str, list[float]] = {}
    ratios: dict[str, list[float]] = {}
    for turn in range(number + 1):
        before = calibrate()
        costs = uvloop.run(measure(uri))
        loop = (before + calibrate()) / 2
        log(f"round {turn} of {number}, calibration loop {loop * 1000:.1f} ms")
        if turn:  # the first one warms up
            for name, cost in costs.items():
                seconds.setdefault(name, []).append(cost)
                ratios.setdefault(name, []).append(cost / loop)
    return (
        {name: statistics.median(values) for name, values in seconds.items()},
        {name: statistics.median(values) for name, values in ratios.items()},
    )


def compare(ratios: Costs, baseline: Costs) -> Costs:
    """Return for each stage how many times its baseline it costs; nothing for a new stage."""
    return {name: ratio / baseline[name] for name, ratio in ratios.items() if name in baseline}


@click.command(context_settings=HELP)
@click.option("--rounds", "number", default=5, type=click.IntRange(1), help="Rounds; the median.")
@click.option("--limit", default=1.6, help="Times the baseline that a stage may cost.")
@click.option("--update", is_flag=True, help="Store the costs as the baseline.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(number: int, limit: float, update: bool, json_: bool) -> None:
    """Compare the CPU that a message costs in each stage with the stored baseline.

    Costs are counted in calibration loops, so that they hold on another machine. Exit code: 0 all
    within the limit; 1 a stage costs more.
    """
    directory = workplace(keep=False)
    server = open_server(None, directory)
    with fresh(server, keep=False) as uri:
        Product(Path(sys.executable).parent, directory, uri, []).migrate()
        seconds, ratios = rounds(uri, number)
    baseline: Costs = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    factors = compare(ratios, baseline)
    if json_:
        click.echo(json.dumps({"seconds": seconds, "ratios": ratios, "factors": factors}, indent=2))
    else:
        click.echo(f"{'stage':10} {'µs/message':>12} {'times baseline':>15}")
        for name, cost in seconds.items():
            factor = f"{factors[name]:.2f}" if name in factors else "-"
            click.echo(f"{name:10} {cost * 1e6:12.1f} {factor:>15}")
    if update:
        text = json.dumps({name: round(ratio, 7) for name, ratio in ratios.items()}, indent=2)
        BASELINE.write_text(text + "\n")
        return
    slow = [name for name, factor in factors.items() if factor > limit]
    missing = [name for name in ratios if name not in baseline]
    for name in slow:
        log(f"{name} costs {factors[name]:.2f} times its baseline; the limit is {limit:g}")
    for name in missing:
        log(f"{name} has no baseline: bench/guard --update")
    sys.exit(1 if slow or missing else 0)
