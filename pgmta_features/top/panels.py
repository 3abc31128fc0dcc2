"""The parts of `queuectl top` as text, from the figures of one look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from pgmta.command import age
from pgmta.mail.text import printable
from pgmta.states import Status
from pgmta_features.top.figures import HOSTS_WINDOW_S, Figures, HopCount

SORTS = ("most", "slowest", "name")
"""Orders of next hops and hosts: by rows and failures, by ages and times, by name."""

_DEAD_S = 60.0  # without a heartbeat
_REST_LABEL = "(the rest)"


def rate_line(figures: Figures) -> Text:
    """Return the rates."""
    rates = dict(figures.rates)
    rates["failed"] = rates.get("failed", 0.0) + rates.pop("expired", 0.0)
    line = Text(no_wrap=True)
    for name in ("accepted", "delivered", "deferred", "failed", "unknown"):
        rate = rates.get(name, None if name == "accepted" else 0.0)
        bad = bool(rate) and name in ("failed", "unknown")
        line.append(f"{name} ")
        line.append(f"{_rate(rate)}/s", "bold red" if bad else "bold")
        line.append("  ")
    return line


def queue_lines(figures: Figures) -> Text:
    """Return the rows by status, how many are due, and how old the count is."""
    totals: dict[str, int] = {}
    for hop in figures.hops:
        for status, rows in hop.rows.items():
            totals[status] = totals.get(status, 0) + rows
    lines = Text(no_wrap=True)
    for status in Status:
        rows = totals.get(status.value, 0)
        if rows or status in (Status.QUEUED, Status.DEFERRED, Status.SENDING, Status.HOLD):
            lines.append(f"{status.value} ")
            lines.append(f"{rows:,}  ", "bold")
    lines.append("\n")
    if figures.counted_at is None:
        lines.append("the queue was not counted yet: a queued does it")
        return lines
    lines.append(f"due {sum(hop.due for hop in figures.hops):,}")
    if figures.oldest_due:
        lines.append(f", the first for {_since(figures, figures.oldest_due)}")
    since = _since(figures, figures.counted_at)
    lines.append("; counted now" if since == "now" else f"; counted {since} ago")
    if figures.share < 1:
        lines.append(f", estimated from {100 * figures.share:.0f} %")
    return lines


def hop_table(figures: Figures, sort: str, height: int) -> Table:
    """Return the queue by next hop."""
    orders: dict[str, Callable[[HopCount], Any]] = {
        "most": lambda hop: (-hop.waiting, -sum(hop.rows.values()), hop.next_hop or ""),
        "slowest": lambda hop: (hop.oldest_due is None, hop.oldest_due, hop.next_hop or ""),
        "name": lambda hop: hop.next_hop or "",
    }
    hops = sorted((hop for hop in figures.hops if hop.next_hop is not None), key=orders[sort])
    rest = [hop for hop in figures.hops if hop.next_hop is None]
    names = ("QUEUED", "DEFERRED", "SENDING", "HOLD")
    return _table(
        ("NEXT HOP", *names, "DUE", "DUE FOR"),
        (
            (
                _REST_LABEL if hop.next_hop is None else hop.next_hop,
                *(f"{hop.rows.get(name, 0):,}" for name in names),
                f"{hop.due:,}",
                _since(figures, hop.oldest_due) if hop.oldest_due else "-",
            )
            for hop in [*hops, *rest]
        ),
        height,
    )


def host_table(figures: Figures, sort: str, height: int) -> Table:
    """Return the hosts of the last minute: failures and times."""
    orders: dict[str, Callable[[dict[str, Any]], Any]] = {
        "most": lambda row: (row["delivered"] - row["attempts"], -row["seconds"]),
        "slowest": lambda row: -row["seconds"],
        "name": lambda row: row["host"],
    }
    return _table(
        ("HOST", "DELIVERED", "DEFERRED", "FAILED", "SECONDS", "CLASS"),
        (
            (
                row["host"],
                *(
                    _rate(row[name] / HOSTS_WINDOW_S)
                    for name in ("delivered", "deferred", "failed")
                ),
                f"{row['seconds']:.2f}",
                row["class"] or "-",
            )
            for row in sorted(figures.hosts, key=orders[sort])
        ),
        height,
        left=(0, 5),
        ratios={0: 2, 5: 1},
    )


def worker_table(figures: Figures, height: int) -> Table:
    """Return the workers: heartbeat, rows in flight and rate."""
    return _table(
        ("WORKER", "PROCESS", "ACTION", "HEARTBEAT", "IN FLIGHT", "ROWS/S", "DONE"),
        (
            (
                row["name"],
                row["owner"],
                row["action"],
                f"{age(row['silence'])}{' DEAD' if row['silence'] > _DEAD_S else ''}",
                "-" if row["in_flight"] is None else f"{row['in_flight']:,}",
                _rate(row["rate"]),
                f"{row['handled']:,}",
            )
            for row in figures.workers
        ),
        height,
        left=(0, 1, 2),
        ratios={0: 1, 1: 2},
    )


def _table(
    names: Sequence[str],
    rows: Iterable[Sequence[str]],
    height: int,
    *,
    left: Sequence[int] = (0,),
    ratios: Mapping[int, int] = {0: 1},
) -> Table:
    """Return a table of this number of lines, whose last one says how many rows it lacks."""
    table = Table(box=None, expand=True, pad_edge=False, header_style="dim")
    for number, name in enumerate(names):
        justify: JustifyMethod = "left" if number in left else "right"
        table.add_column(
            name, justify=justify, no_wrap=True, overflow="ellipsis",
            ratio=ratios.get(number), min_width=len(name),
        )  # fmt: skip
    found = list(rows)
    most = max(0, height - 1)
    shown = found if len(found) <= most else found[: max(0, most - 1)]
    for row in shown:
        table.add_row(*(Text(printable(cell)) for cell in row))
    if len(shown) < len(found) and most:
        table.add_row(Text(f"… {len(found) - len(shown)} more", "dim"))
    return table


def _since(figures: Figures, moment: Any) -> str:
    return age(max(0.0, (figures.at - moment).total_seconds()))


def _rate(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}"
