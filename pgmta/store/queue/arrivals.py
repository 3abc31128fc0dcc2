"""Notices rows that other programs put into the queue, by its sequence (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from pgmta.store.queries import queries

LOOK_QUESTION = queries("arrivals")["look"]
"""The question whose answers `Arrivals.see` takes."""
MIN_SCHEDULED_ID = 10**15
"""Ids from this one on come from the sequence scheduled_ids; the row watch leaves them out."""
_LOOKS_PER_MOVE = 16  # at which transactions count that no snapshot has shown while open
_MAX_IDS = 10_000  # in memory
_OVERFLOW_ID = 0  # stands for more ids; no row has it


class Arrivals:
    """Says after each look whether rows may have been committed that no claim has taken.

    A sequence moves before its transaction commits. So each transaction that may have moved it
    counts until it ends, and its end counts as a move. They do not count once all rows are claimed.
    The first look counts as a move: transactions that are open then may have rows already.

    A snapshot names the open transactions below its upper end, which is the one that ended last.
    Transactions above may be open too, and show only when a later one has ended.
    """

    def __init__(self) -> None:
        self._next = 0  # the id of the next row; 0: before the first look
        self._snapshot = ""
        self._missing: set[int] = set()  # ids of rows that are not claimed, as far as known
        self._early: set[int] = set()  # ids of rows that were claimed before a look has shown them
        self._open: set[int] = set()  # open transactions that may have inserted rows
        self._above: int | None = None  # from this number on, transactions may be open unseen
        self._left = 0  # number of looks at which transactions above `_above` still count

    @property
    def waiting(self) -> bool:
        """Whether transactions are known that are open and may have rows to claim."""
        return bool(self._open and self._missing)

    def claimed(self, ids: Iterable[int]) -> None:
        """Note rows that are claimed: they need no further claim."""
        for number in ids:
            if number < self._next:
                self._missing.discard(number)
            elif len(self._early) < _MAX_IDS and number < MIN_SCHEDULED_ID:
                self._early.add(number)

    def see(self, number: int, snapshot: str) -> bool:
        """Take the answer to LOOK_QUESTION; return whether to claim now, as after a first look."""
        if not self._missing:
            self._open.clear()
            self._above = None
        if number == self._next and snapshot == self._snapshot:
            return False
        _, high, running = snapshot.split(":")
        shown, end = {int(each) for each in running.split(",") if each}, int(high)
        news = not self._open <= shown
        self._open &= shown
        if self._above is not None and self._above < end:
            later = {each for each in shown if each >= self._above}
            news |= end - self._above > len(later)
            self._open |= later
            self._left -= 1
            self._above = end if self._left else None
        if number != self._next and (missing := self._rows(number)):
            self._missing |= missing
            self._open |= shown
            self._above, self._left = end, _LOOKS_PER_MOVE
            news = True
        self._next, self._snapshot = number, snapshot
        self._early = {each for each in self._early if each >= number}
        if not self._open and self._above is None:
            self._missing.clear()
        return news

    def _rows(self, number: int) -> set[int]:
        """Return the rows since the last look that are not claimed."""
        ids = range(self._next, number)
        known = self._next and 0 < len(ids) <= _MAX_IDS
        return set(ids) - self._early if known else {_OVERFLOW_ID}
