"""The bounds of a page: its size and time with many destinations, and counters that never fall."""

from __future__ import annotations

import time
from typing import cast

from pgmta.metrics.exposition import page
from pgmta.metrics.series import Values, add, dump, load
from pgmta.store.admin.queue_counts import GroupCount, QueueCount
from pgmta_features.metrics.queued_page import queue_values
from pgmta_features.metrics.queued_series import QUEUED_SERIES
from queued.process.next_hop_figures import OTHER, NextHopFigures
from queued.process.queue_figures import QueueFigures
from tests.features.metrics.scraping import Scrape

HOPS = 5000


def large(most: int) -> Values:
    """The values of a process with mail for many next hops, and with all of them in the queue."""
    figures = NextHopFigures[tuple[str, str]](most)
    for number in range(HOPS):
        for key in (("delivered", ""), ("deferred", "greylisted"), ("failed", "unknown_user")):
            figures.count(f"d{number}.example", key)
    groups = [
        GroupCount(f"d{n}.example", status, "", 100, 10, 5.0, 5.0)
        for n in range(HOPS // 2)
        for status in ("QUEUED", "DEFERRED")
    ]
    queue = QueueFigures()
    queue.keep(QueueCount(1.0, 1.0, 1.0, 5.0, groups))
    attempts: dict[tuple[str, ...], float | list[float]] = {
        (hop, *key): float(number)
        for hop, counts in figures.shown.items()
        for key, number in counts.items()
    }
    return {"pgmta_queued_next_hop_attempts_total": attempts} | queue_values(queue, most)


def test_many_destinations_make_a_bounded_page() -> None:
    began = time.process_time()
    text = page(QUEUED_SERIES, large(100))
    assert time.process_time() - began < 2  # bench figures are in docs/decisions/metrics.md
    assert len(text) < 100_000
    seen = Scrape.read(text.decode())
    name = "pgmta_queued_next_hop_attempts_total"
    assert seen.total(name) == HOPS * 3
    assert seen.total(name, next_hop=OTHER) == (HOPS - 100) * 3
    assert seen.total("pgmta_queue_next_hop_rows") == HOPS * 100
    assert len(page(QUEUED_SERIES, large(1000))) < 1_000_000  # the most that the file takes


def test_a_large_next_hop_gets_the_place_of_a_small_one() -> None:
    figures = NextHopFigures[str](2)
    for name in ("a", "b", "c", "c", "c"):
        figures.count(name, "x")
    assert figures.shown == {"a": {"x": 1}, "b": {"x": 1}, OTHER: {"x": 3}}
    figures.compare()
    figures.count("c", "x")
    assert figures.shown == {"b": {"x": 1}, "c": {"x": 1}, OTHER: {"x": 3}}
    figures.compare()
    assert set(figures.shown) == {"b", "c", OTHER}


def test_values_pass_between_processes_and_add_up() -> None:
    values: Values = {"a": {("x", "y"): 2.0, ("x", ""): 1.0}, "b": {(): [1.0, 0.0, 2.5]}}
    total: Values = {}
    for _ in range(3):
        add(total, load(dump(values)))
    assert total == {"a": {("x", "y"): 6.0, ("x", ""): 3.0}, "b": {(): [3.0, 0.0, 7.5]}}
    assert cast(float, total["a"]["x", "y"]) == 6.0


def test_each_list_of_labels_survives() -> None:
    for labels in ((), ("",), ("", ""), ("x", ""), ("\x1f",), ('"],[', "é\n")):
        values: Values = {"a": {labels: 1.0}}
        assert load(dump(values)) == values
        assert dump(values).count(b"\n") == 1
