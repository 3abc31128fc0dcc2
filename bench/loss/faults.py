"""Losses of the primary one after the other, and how long each stops the mail."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from bench.loss.books import Event, events
from bench.loss.cluster import DATABASES, Cluster, ClusterError, wait
from bench.loss.hosts import Hosts
from bench.loss.load import AWAY, LATER, REFUSED, TAKEN
from bench.loss.relay import Relay
from bench.options import FAILURES as OF_BENCH
from bench.progress import log

KINDS = {
    "kill": "the postmaster is killed",
    "host": "the host of the primary is lost, and comes back later, each third time empty",
    "partition": "the primary is cut off, in turn alone and with one host of pgmta",
    "disk": "the primary has no room for its WAL",
    "switchover": "an operator switches over by patronictl",
}
SMTP = ("mx1", "mx2")
FAILURES: tuple[type[Exception], ...] = (*OF_BENCH, ClusterError)
"""What may go wrong in a loss without an end to the others."""
_WRITES_TIMEOUT_S = 90.0
_ACCEPTS_TIMEOUT_S = 60.0
_WHOLE_TIMEOUT_S = 150.0
_APART_S = 5.0  # a partition outlasts the failover by so much, so that both sides act
_FULL_S = 40.0  # the room is given back then, also if no other server has taken over


@dataclass
class Loss:
    """One loss. Times are seconds from the fault, `accepts` from the first write."""

    number: int
    kind: str
    note: str
    at: float  # by the monotonic clock
    primary: str
    writes: float | None = None  # until a server takes writes
    accepts: float | None = None  # from then until the next 250
    whole: float | None = None  # until three servers are there
    pause: float = 0.0  # the longest time without a 250, over both hosts
    later: int = 0  # replies 4xx, and sessions that could not begin
    refused: int = 0  # replies 5xx
    faults: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return it as a line."""
        times = [("writes after", self.writes), ("250 after", self.accepts), ("whole", self.whole)]
        shown = ", ".join(f"{name} {'-' if s is None else f'{s:.1f} s'}" for name, s in times)
        rest = f"pause {self.pause:.1f} s, {self.later} 4xx, {self.refused} 5xx"
        wrong = "".join(f"\n  WRONG: {fault}" for fault in self.faults)
        note = self.note.removesuffix(", ")
        return f"{self.number} {self.kind} of {self.primary} ({note}): {shown}, {rest}{wrong}"


class Faults:
    """Makes them on the hosts."""

    def __init__(self, hosts: Hosts, cluster: Cluster, relay: Relay, seed: int) -> None:
        self._hosts, self._cluster, self._relay = hosts, cluster, relay
        self._random = random.Random(seed)
        self._makers: dict[str, Callable[[Loss], None]] = {
            "kill": self._kill,
            "host": self._host,
            "partition": self._partition,
            "disk": self._disk,
            "switchover": self._switchover,
        }
        self._lost: str | None = None
        self._start = 0  # octet of the file of events, before the latest loss
        self._turns = dict.fromkeys(KINDS, 0)

    def order(self, numbers: dict[str, int]) -> list[str]:
        """Return the kinds of all losses, in an order by chance."""
        kinds = [kind for kind, number in numbers.items() for _ in range(number)]
        self._random.shuffle(kinds)
        return kinds

    def make(self, number: int, kind: str) -> Loss:
        """Make one loss and wait until all is whole again.

        What goes wrong is in its `faults`. Raises ClusterError if the cluster does not come back.
        """
        primary = self._cluster.wait_whole(_WHOLE_TIMEOUT_S)
        self._start = self._relay.events.stat().st_size
        loss = Loss(number, kind, "", time.monotonic(), primary)
        try:
            self._await_mail(loss.at)
        except ClusterError as error:
            loss.faults.append(f"before the fault: {error}")
        loss.at = time.monotonic()
        for probe in self._cluster.probes.values():
            probe.await_write()
        self._turns[kind] += 1
        worker = self._random.choice(self._relay.workers)
        try:
            if number % 2 == 0:  # what it sends now has an unknown outcome
                self._relay.kill_worker(worker)
                loss.note = f"and {worker}, "
            self._makers[kind](loss)
        except FAILURES as error:
            loss.faults.append(str(error))
        try:
            self._repair()
            self._cluster.wait_whole(_WHOLE_TIMEOUT_S)
            loss.whole = time.monotonic() - loss.at
        except FAILURES as error:
            loss.faults.append(str(error))
            self._begin_again()
        finally:
            loss.faults += [f"{name} has ended" for name in self._relay.ended()]
            self._count(loss)
            log(loss.line())
        return loss

    def _repair(self) -> None:
        self._hosts.heal()
        self._cluster.free_disks()
        if self._lost:
            wiped = self._turns["host"] % 3 == 0
            name, self._lost = self._lost, None
            self._hosts.lose(name)
            self._hosts.heal()
            self._cluster.start_host(name, wiped)

    def _begin_again(self) -> None:
        """Start all three hosts with what they have on disk. Raises ClusterError."""
        for name in DATABASES:
            self._hosts.lose(name)
        self._hosts.heal()
        for name in DATABASES:
            self._cluster.start_host(name)
        self._cluster.wait_whole(_WHOLE_TIMEOUT_S)

    def _await_mail(self, since: float) -> float:
        """Return when the first 250 after a time came. Raises ClusterError."""

        def first() -> float:
            return next((e.at for e in self._smtp(since) if e.kind == TAKEN), 0.0)

        return float(wait("a 250", first, _ACCEPTS_TIMEOUT_S))

    def _smtp(self, since: float) -> list[Event]:
        return [
            e for e in events(self._relay.events, self._start) if e.at >= since and e.where in SMTP
        ]

    def _follow(self, loss: Loss, others: bool = True, seconds: float = _WRITES_TIMEOUT_S) -> None:
        """Wait for the first write, by one of the others, and the next 250."""
        names = [name for name in DATABASES if not others or name != loss.primary]

        def first() -> float:
            found = [self._cluster.probes[name].first for name in names]
            return min(filter(None, found), default=0.0)

        writes = wait("a new primary that takes writes", first, seconds)
        loss.writes = writes - loss.at
        loss.accepts = self._await_mail(writes) - writes

    def _count(self, loss: Loss) -> None:
        found = self._smtp(loss.at - 1)
        taken = [e.at for e in found if e.kind == TAKEN]
        loss.pause = max((b - a for a, b in pairwise(taken)), default=0.0)
        loss.later = sum(e.kind in (LATER, AWAY) for e in found)
        loss.refused = sum(e.kind == REFUSED for e in found)

    def _kill(self, loss: Loss) -> None:
        self._cluster.kill_postmaster(loss.primary)
        self._follow(loss)

    def _host(self, loss: Loss) -> None:
        loss.note += "comes back empty" if self._turns["host"] % 3 == 0 else "comes back"
        self._lost = loss.primary
        self._hosts.lose(loss.primary)
        self._follow(loss)

    def _partition(self, loss: Loss) -> None:
        client = self._random.choice(SMTP) if self._turns["partition"] % 2 == 0 else None
        loss.note += f"with {client}" if client else "alone"
        self._hosts.part([loss.primary, *([client] if client else [])])
        self._follow(loss)
        end = time.monotonic() + _APART_S
        wait("the partition", lambda: time.monotonic() > end, 2 * _APART_S)

    def _disk(self, loss: Loss) -> None:
        self._cluster.fill_disk(loss.primary)
        try:
            self._follow(loss, seconds=_FULL_S)
            loss.note += "another took over"
        except ClusterError:
            loss.note += f"freed after {_FULL_S:g} s"
            self._cluster.free_disks()
            self._follow(loss, others=False)

    def _switchover(self, loss: Loss) -> None:
        self._cluster.switch_over(loss.primary)
        self._follow(loss)
