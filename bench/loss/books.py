"""The books at the end: what was promised, what arrived, and what the database says of it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from bench.loss.load import BEGUN, LATER, LOST, REFUSED, TAKEN
from bench.loss.relay import CAMPAIGN_SENDER, RATED_SENDER, Rates
from bench.loss.sink import MAIL, MESSAGE
from bench.rate_run import most_in

_MOST_NAMED = 5
_UNKNOWN = "SELECT recipient, count(*) FROM attempts WHERE event = 'unknown' GROUP BY recipient"
_STATES = "SELECT recipient, state FROM campaign_recipients WHERE campaign_id = 1"
_BOOKS = """
SELECT recipients, unsent, queued, sent, errored, invalid, unknown
FROM campaign_statistics WHERE id = 1
"""
_ON_HOLD = "SELECT recipient || ': ' || coalesce(hold_reason, '') FROM queue ORDER BY id"


@dataclass(frozen=True)
class Event:
    """A line of the load."""

    at: float
    kind: str
    where: str
    what: str


def events(path: Path, start: int = 0) -> Iterator[Event]:
    """Give the events of a load from an octet of its file on, in their order."""
    with path.open() as lines:
        lines.seek(start)
        for line in lines:
            if not line.endswith("\n"):
                return  # it is being written
            at, kind, where, what = line.rstrip("\n").split(" ", 3)
            yield Event(float(at), kind, where, what)


def some(found: Iterable[Any]) -> str:
    """Return the number of things, and the first few of them."""
    listed = list(found)
    return f"{len(listed)} ({', '.join(map(str, listed[:_MOST_NAMED]))})"


class Books:
    """Compares; `problems` has what is wrong, and `figures` the numbers."""

    def __init__(self, load: Path, arrivals: Path) -> None:
        self.problems: list[str] = []
        self.figures: dict[str, float] = {}
        self._by_kind: dict[str, set[str]] = defaultdict(set)
        for event in events(load):
            self._by_kind[event.kind].add(event.what)
            if event.kind in (TAKEN, LATER, LOST):
                name = "answers lost" if event.kind == LOST else event.kind
                self.figures[name] = self.figures.get(name, 0) + 1
        self._arrived: Counter[str] = Counter()
        self._begun: dict[str, list[float]] = defaultdict(list)
        with arrivals.open() as lines:
            for line in lines:
                word, at, what = line.rstrip("\n").split(" ", 2)
                if word == MESSAGE:
                    self._arrived[what] += 1
                elif word == MAIL:
                    self._begun[what].append(float(at))
                else:
                    self.problems.append(f"next hop: {what}")

    def check(self, db: psycopg.Connection[Any], rates: Rates) -> None:
        """Compare all with the database, whose queue is empty."""
        self._mail(db)
        self._campaign(db)
        for sender, rate in ((RATED_SENDER, rates.route), (CAMPAIGN_SENDER, rates.campaign)):
            most = most_in(self._begun[sender], 1.0)
            self.figures[f"most in a second, {sender}"] = most
            if most > rate:
                self._wrong(f"{sender} has {most} in a second, and a rate of {rate:g}")

    def _wrong(self, text: str) -> None:
        self.problems.append(text)

    def _mail(self, db: psycopg.Connection[Any]) -> None:
        if refused := self._by_kind[REFUSED]:
            self._wrong(f"refused for good: {some(refused)}")
        if lost := sorted(self._by_kind[TAKEN] - self._arrived.keys()):
            self._wrong(f"lost after 250 or COMMIT: {some(lost)}")
        unknown = dict(db.execute(_UNKNOWN).fetchall())
        again = {who: times for who, times in self._arrived.items() if times > 1}
        if silent := [who for who, times in again.items() if unknown.get(who, 0) < times - 1]:
            self._wrong(f"delivered twice, without `unknown` in the log: {some(silent)}")
        mail = self._arrived.keys() - dict(db.execute(_STATES).fetchall()).keys()
        if foreign := sorted(mail - self._by_kind[BEGUN]):
            self._wrong(f"never sent: {some(foreign)}")
        if held := [row[0] for row in db.execute(_ON_HOLD).fetchall()]:
            self._wrong(f"left in the queue: {some(held)}")
        self.figures |= {
            "taken": len(self._by_kind[TAKEN]),
            "arrived": len(mail),
            "arrived again": len(again),
            "unknown": int(sum(unknown.values())),
        }

    def _campaign(self, db: psycopg.Connection[Any]) -> None:
        row = db.execute(_BOOKS).fetchone()
        assert row
        counted = Counter(
            "errored" if state == "failed" else state for _, state in db.execute(_STATES).fetchall()
        )
        names = ("unsent", "queued", "sent", "errored", "invalid", "unknown")
        books = {name: int(number) for name, number in zip(names, row[1:], strict=True)}
        if sum(books.values()) != row[0] or any(counted[name] != books[name] for name in names):
            self._wrong(f"books of the campaign: {row[0]} recipients, {books}, counted {counted}")
        allowed = {"sent": {1}, "unknown": {0, 1}}
        if odd := [
            f"{who} {state} {self._arrived[who]}"
            for who, state in db.execute(_STATES).fetchall()
            if self._arrived[who] not in allowed.get(state, {0})
        ]:
            self._wrong(f"recipients of the campaign, with state and arrivals: {some(odd)}")
        self.figures |= {f"campaign {name}": number for name, number in books.items()}
