"""From claimed rows to envelopes on lanes, and back to outcomes."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from pgmta.errors import DeliveryError, StoreUnavailable
from pgmta.logs import get
from pgmta.model import CHUNK_SIZE, PART_SIZE, Item, Message, Outcome, Reply
from pgmta.newlines import NewlineGuard
from pgmta.states import Event
from pgmta.store.claim import Contents
from queued.config import QueuedConfig
from queued.delivery.connect import Means
from queued.delivery.envelope import Envelope
from queued.delivery.lane import Lane
from queued.delivery.mx import Resolver
from queued.delivery.reply import NOT_BEGUN, Result, internal
from queued.delivery.route import Destination, Routes
from queued.delivery.wire import (
    address_problem,
    content_problem,
    message_problem,
    needs_utf8,
    plain,
)
from queued.worker.verdict import judge

_MEMORY = 32 << 20  # octets of content that wait for their delivery, so that more comes with claims
_KNOWN = 1000  # domains of a crowded next hop that are left out of claims, at most
_REST = 30.0  # seconds that an unreachable destination is left alone, at most

log = get("worker")


@dataclass(slots=True)
class _Down:
    """A destination that could not be reached a moment ago."""

    until: float
    result: Result
    domains: set[str]


class Dispatch:
    """Keeps a lane, of the kind given, for each destination that has mail or connections."""

    def __init__(
        self,
        config: QueuedConfig,
        contents: Contents,
        guard: Callable[[list[Item]], bool],
        settle: Callable[[Outcome], None],
        lane: type[Lane],
        freed: Callable[[int, int], None],
    ) -> None:
        self._kind = lane
        self._freed = freed
        self._contents = contents
        self._guard = guard
        self._settle = settle
        self._lanes: dict[Destination, Lane] = {}
        self._started: dict[int, datetime] = {}
        self._down: dict[Destination, _Down] = {}
        self._crowded: dict[Destination, set[str]] = {}  # domains of rows that found no room
        self._held = 0  # octets of content in envelopes
        self.configure(config)

    def configure(self, config: QueuedConfig) -> None:
        """Use new routes, limits and intervals from now on."""
        self._routes = Routes(config.routes)
        self._retry = config.retry
        self._rest = min(_REST, config.retry.intervals[0] / 2)
        self._group = config.delivery.recipients
        self._bare_newlines = config.delivery.bare_newlines
        resolver = Resolver(config.delivery.dns, config.delivery.ipv6)
        self._bound = config.urgent.bound
        reserved = config.urgent.connections(config.delivery.connections)
        self._means = Means(config.environment.hostname, config.delivery, resolver, reserved)
        for lane in self._lanes.values():
            lane.means = self._means

    @property
    def room(self) -> int:
        """Octets of content that may come with the next claim; what is over is fetched later."""
        return max(0, _MEMORY - self._held)

    def busy(self, free: int) -> tuple[list[str], int]:
        """Domains that are better left alone for now, and how many rows they hold.

        A lane that holds as many rows as are still free, or more, gets no further ones: however
        many destinations hang, each next one can take at most half of what is left. And what could
        not be reached rests a while.
        """
        loaded = [lane for lane in self._lanes.values() if lane.load >= free]
        domains = {domain for lane in loaded for domain in lane.domains}
        domains.update(*(down.domains for down in self._resting()))
        return sorted(domains), sum(lane.load for lane in loaded)

    def crowded(self, free: int) -> list[str]:
        """Domains that get no reserved place for now, with so many of these free.

        A next hop gets `urgent.bound` of them, and no more than half of what is left.
        """
        most = min(self._bound, free)
        full = {lane.destination: lane for lane in self._lanes.values() if lane.urgent >= most}
        self._crowded = {d: names for d, names in self._crowded.items() if d in full}
        domains = {domain for lane in full.values() for domain in lane.domains}
        domains.update(*self._crowded.values(), *(down.domains for down in self._resting()))
        return sorted(domains)

    def _resting(self) -> Iterable[_Down]:
        now = time.monotonic()
        for destination in [d for d, down in self._down.items() if down.until <= now]:
            del self._down[destination]
        return self._down.values()

    def _no_room(self, destination: Destination, group: list[Item]) -> bool:
        """Whether the next hop has its share of the reserved places; its domains are remembered."""
        lane = self._lanes.get(destination)
        if not lane or lane.urgent < self._bound:
            return False
        known = self._crowded.setdefault(destination, set())
        if len(known) < _KNOWN:
            known.update(item.domain for item in group)
        return True

    def _unreachable(self, lane: Lane, result: Result) -> None:
        """A lane could not connect anywhere: its destination rests."""
        down = self._down.setdefault(lane.destination, _Down(0.0, result, set()))
        down.until = time.monotonic() + self._rest
        down.result = result
        down.domains.update(lane.domains)

    def dispatch(
        self, items: list[Item], messages: dict[int, Message], reserved: bool = False
    ) -> int:
        """Give the rows of one claim to their lanes; return how many found no room.

        One envelope has the rows with the same message, next hop and reverse-path. Rows in
        `reserved` places are handed back where their next hop has its share of these.
        """
        back = 0
        now = datetime.now(UTC)
        groups: dict[tuple[int, Destination, str, bool], list[Item]] = {}
        problems: dict[int, str] = {}
        unfit: list[tuple[Item, str]] = []
        for item in items:
            message_id = item.message_id
            try:
                if message_id not in problems:
                    problems[message_id] = self._message_problem(messages.get(message_id))
                simple = plain(item)
                problem = "" if simple else address_problem(item)
                problem = problem or problems[message_id]
                destination = self._routes.find(item.domain) if not problem else None
            except Exception as error:
                self._fail([item], error)
                continue
            if not destination:
                unfit.append((item, problem))
                self._conclude(item, Result(Reply(0, problem), permanent=True))
                continue
            key = message_id, destination, item.sender, not simple and needs_utf8(item)
            groups.setdefault(key, []).append(item)
        if unfit:
            _held(len(unfit), unfit[0][0].message_id, unfit[0][1])
        for (message_id, destination, *_), group in groups.items():
            message = messages.get(message_id)
            if message is None:  # an operator removed the rows between claim and fetch
                self.hand_back(group)
                continue
            self._started.update((item.id, now) for item in group)
            down = self._down.get(destination)
            if down:  # a domain that was not known to go there
                down.domains.update(item.domain for item in group)
                self._report_all(group, down.result)
                continue
            if reserved and self._no_room(destination, group):
                back += len(group)
                self.hand_back(group)
                continue
            try:
                envelopes = self._envelopes(group, message)
            except Exception as error:
                self._fail(group, error)
                continue
            lane = self._lane(destination)
            for envelope in envelopes:
                self._held += len(message.body or b"")
                lane.put(envelope)
        return back

    def _message_problem(self, message: Message | None) -> str:
        return message_problem(message, self._bare_newlines) if message else ""

    def _fail(self, group: list[Item], error: Exception) -> None:
        """End the attempt of rows that an error of this program stops; the others go on."""
        log.error("no envelope", message=group[0].message_id, rows=[i.id for i in group],
                  exc_info=error)  # fmt: skip
        self._report_all(group, Result.of(internal(error), ""))

    def hand_back(self, items: list[Item]) -> None:
        """Give up leases of rows whose attempt never began."""
        self._report_all(items, NOT_BEGUN)

    def _report_all(self, items: list[Item], result: Result) -> None:
        for item in items:
            self._conclude(item, result)

    def _envelopes(self, group: list[Item], message: Message) -> list[Envelope]:
        urgent = any(item.urgent for item in group)
        batches = (group[n : n + self._group] for n in range(0, len(group), self._group))
        return [
            Envelope(
                items=batch,
                sender=group[0].sender,
                trace=message.trace.encode(),
                size=message.size,
                utf8=message.utf8 or needs_utf8(group[0]),
                content=partial(self._parts, message, len(batch), urgent)
                if message.body is None
                else message.body,
                guard=self._guard,
                urgent=urgent,
            )
            for batch in batches
        ]

    async def _parts(self, message: Message, rows: int, urgent: bool) -> AsyncIterator[bytes]:
        chunks = message.chunks
        # pieces of earlier versions are larger
        step = max(1, PART_SIZE * chunks // max(1, message.size))
        guard = NewlineGuard(self._bare_newlines)
        try:
            for first in range(0, chunks or 1, step):
                if chunks:
                    number = min(step, chunks - first)
                    part = await self._contents.chunks(message.id, first, number, urgent)
                else:
                    part = await self._contents.body(message.id)
                if part is None:
                    raise DeliveryError("content is gone", command="lease")
                guard.see(part)
                if first + step >= chunks:
                    guard.end()
                if guard.problem:  # the connection is dropped without the final dot
                    problem = content_problem(guard.problem)
                    _held(rows, message.id, problem)
                    raise DeliveryError(problem, permanent=True, command="DATA")
                yield part
        except StoreUnavailable as error:
            raise DeliveryError(f"content can't be read: {error}", command="lease") from None

    def _lane(self, destination: Destination) -> Lane:
        lane = self._lanes.get(destination)
        if lane is None:
            lane = self._kind(
                destination, self._means, self._report, self._unreachable, self._lane_closed
            )
            self._lanes[destination] = lane
        return lane

    def _lane_closed(self, lane: Lane) -> None:
        if self._lanes.get(lane.destination) is lane:
            del self._lanes[lane.destination]

    def _report(self, envelope: Envelope, results: list[Result]) -> None:
        self._free(envelope)
        for item, result in zip(envelope.items, results, strict=True):
            self._conclude(item, result)
        if envelope.size > CHUNK_SIZE and any(r.event is Event.DELIVERED for r in results):
            self._freed(envelope.items[0].message_id, envelope.size)

    def _free(self, envelope: Envelope) -> None:
        if isinstance(envelope.content, bytes):
            self._held -= len(envelope.content)

    def _conclude(self, item: Item, result: Result) -> None:
        now = datetime.now(UTC)
        started = self._started.pop(item.id, now)
        chance = random.random()  # noqa: S311 - jitter
        self._settle(judge(item, result, self._retry, started=started, now=now, chance=chance))

    def drain(self) -> None:
        """Begin nothing new, and hand back what waits."""
        for lane in list(self._lanes.values()):
            for envelope in lane.drain():
                self._free(envelope)
                self.hand_back(envelope.items)

    async def wait(self) -> None:
        """Wait for what is under way."""
        for lane in list(self._lanes.values()):
            await lane.wait()

    async def abort(self) -> None:
        """Drop all connections."""
        lanes = list(self._lanes.values())
        for lane in lanes:
            lane.abort()
        for lane in lanes:
            await lane.wait()


def _held(rows: int, message_id: int, problem: str) -> None:
    """Tell of rows that go to HOLD as they can't be sent as they stand; of one claim the first."""
    log.warning("on hold: not fit to be sent", rows=rows, message=message_id, reason=problem)
