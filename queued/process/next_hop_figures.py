"""Attempts by next hop: the largest have their own counts, and the others share one."""

from __future__ import annotations

from collections import Counter

OTHER = "other"
"""The label of all next hops without own counts."""

_MAX_CANDIDATES = 10_000  # next hops that are compared with those that have own counts
# a candidate needs so many times the attempts, or labels would change all the time
_TAKEOVER_FACTOR = 2


class NextHopFigures[K]:
    """Counts by next hop and a further key, for at most `most` next hops.

    The first ones get the places. `compare` gives them to larger ones. A next hop without a place
    is counted as OTHER. The counts of one that loses its place are forgotten, as those of a process
    that ended: no number ever falls.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: dict[str, dict[K, int]] = {}
        self._other: dict[K, int] = {}
        self._before: dict[str, int] = {}  # attempts up to the last comparison
        self._candidates: Counter[str] = Counter()  # attempts since the last comparison

    def count(self, next_hop: str, key: K) -> None:
        """Count an attempt."""
        found = self._other if next_hop == OTHER else self._counts.get(next_hop)
        if found is None:
            found = self._without_place(next_hop)
        found[key] = found.get(key, 0) + 1

    def _without_place(self, next_hop: str) -> dict[K, int]:
        if len(self._counts) < self._most:
            return self._counts.setdefault(next_hop, {})
        if next_hop in self._candidates or len(self._candidates) < _MAX_CANDIDATES:
            self._candidates[next_hop] += 1
        return self._other

    def compare(self) -> None:
        """Give the places of small next hops to larger ones, by the attempts since the last time.

        A round number of minutes between two calls makes the places last.
        """
        sums = {name: sum(counts.values()) for name, counts in self._counts.items()}
        recent = {name: number - self._before.get(name, 0) for name, number in sums.items()}
        smallest = sorted(recent, key=recent.__getitem__)
        for (name, number), place in zip(self._candidates.most_common(), smallest, strict=False):
            if number <= _TAKEOVER_FACTOR * recent[place]:
                break
            del self._counts[place]
            self._counts[name] = {}
            sums.pop(place)
        self._before, self._candidates = sums, Counter()

    @property
    def shown(self) -> dict[str, dict[K, int]]:
        """The counts by next hop, those of OTHER last."""
        return {**self._counts, OTHER: self._other} if self._other else dict(self._counts)
