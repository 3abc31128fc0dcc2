"""Routes claimed rows to destinations with room, and turns results into outcomes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from pgmta.errors import Stage
from pgmta.logs import get
from pgmta.mail.address import needs_utf8
from pgmta.model import CHUNK_OCTETS, Item, Message, Outcome, Reply
from pgmta.states import Event
from queued.answers.answer_rules import AnswerRules
from queued.config import QueuedConfig
from queued.delivery.destination_queue import DestinationQueue
from queued.delivery.transport.destination import Destination, TlsWish
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.result import CUT_OFF, NOT_BEGUN, Result, internal
from queued.outgoing.outgoing import Outgoing, StoredContent
from queued.outgoing.stage import Means, StageContext
from queued.outgoing.stages import Stages
from queued.process.queued_process import Destinations
from queued.process.vacuum import Reclaimer
from queued.routing.routes import Routed, Routes
from queued.worker.attempt_recorder import AttemptRecorder
from queued.worker.claim_exclusions import ClaimExclusions
from queued.worker.leases import Leases
from queued.worker.settler import Settler
from queued.worker.spans import Spans
from queued.worker.verdict import Judge, settled, success_notice

# of content that waits for its delivery; claims bring more content up to this
_MEMORY_OCTETS = 32 << 20
_MAX_LEFT_OUT_S = 30.0  # in which claims leave out an unreachable destination

_INTERNAL_ERROR = Result(Event.DEFER, Reply(0, "internal error: the log has it"))
_NO_MESSAGE = Result(Event.FAIL, Reply(0, "5.3.0 its message is not in the database"))

log = get("worker")

Key = tuple[int, str, str, bool]
"""Message id, group of the destination, sender, and need of SMTPUTF8."""


class Dispatch:
    """Has a DestinationQueue for each destination with mail or connections, and judges its results.

    There are `spans` only if OpenTelemetry is on.
    """

    def __init__(
        self,
        config: QueuedConfig,
        means: Means,
        leases: Leases,
        settler: Settler,
        space: Reclaimer | None = None,
        recorder: AttemptRecorder | None = None,
        spans: Spans | None = None,
    ) -> None:
        self._means = means
        self._leases = leases
        leases.owners.append(self.rows)
        self._settler = settler
        self._space = space
        self._recorder = recorder or AttemptRecorder()
        self._spans = spans
        self._queues: dict[str, DestinationQueue] = {}  # by the key of the destination
        self._judge = Judge()
        context = StageContext(
            means=means, guard=leases, dispatcher=self, free_octets=_MEMORY_OCTETS
        )
        self.stages = Stages(context, self._put)
        """The stages, and in their context the room for content."""
        self.exclusions = ClaimExclusions(self._queues, self.stages)
        """The mail that the next claim leaves out."""
        self.configure(config)

    def configure(self, config: QueuedConfig) -> None:
        """Use new routes, limits and intervals from now on."""
        self._routes = Routes(config.routes, config.routing)
        self._settler.next_hop = self._routes.next_hop
        self.labelled = self._routes.labelled
        """The mail that claims know by labels, because more than its domain counts."""
        self.route_limits = self._routes.limits
        """The mail with a limit of its route, which claims can leave out by further labels."""
        self._judge.configure(config, self._routes, AnswerRules(config.answering))
        self.exclusions.forget_places()
        self.exclusions.pause = min(_MAX_LEFT_OUT_S, self._judge.shortest / 2)
        self.stages.configure(config, self.exclusions.admit)
        reserved = config.urgent.connections(config.delivery.connections)
        self._limits = config.delivery, reserved
        for queue in self._queues.values():
            queue.configure(*self._limits)

    @property
    def number(self) -> int:
        """Destinations with mail or connections."""
        return len(self._queues)

    def find_destinations(self) -> Destinations:
        """Return the destinations with mail or connections."""
        return Destinations([*self._queues.values()], self._routes, self._limits[0])

    def rows(self) -> list[Item]:
        """Return the rows that the stages and the destinations have."""
        found = [item for queue in self._queues.values() for item in queue.rows()]
        return found + list(self.stages.rows())

    def dispatch(
        self, items: list[Item], messages: dict[int, Message], reserved: bool = False
    ) -> int:
        """Give the rows of one claim to their destinations; return how many found no room.

        One envelope has the rows with the same message, next hop and reverse-path. Rows in
        `reserved` slots are handed back if their next hop has its share of these.
        """
        self.exclusions.returned = 0
        started = self._means.clock.now()
        for key, (routed, group) in self._groups(items, messages).items():
            number, _, sender, utf8 = key
            message = messages.get(number)
            if message is None:  # rows that were inserted by SQL, without a check
                self.end(group, _NO_MESSAGE)
                continue
            try:
                outgoing = Outgoing(
                    items=group,
                    message=message,
                    routed=routed,
                    sender=sender,
                    trace=message.trace.encode(),
                    content=self._stream(message, group) if message.body is None else message.body,
                    size=message.size,
                    utf8=utf8,
                    header_utf8=message.utf8,
                    started=started,
                    labels={self._routes.label(item) for item in group} if self.labelled else None,
                    reserved=reserved,
                )
            except Exception as error:
                self._fail(group, error)
                continue
            self.stages.send(outgoing, self.stages.steps)
        return self.exclusions.returned

    def _stream(self, message: Message, group: list[Item]) -> StoredContent:
        urgent = any(item.urgent for item in group)
        return StoredContent(message.id, message.chunks, self._means.contents, urgent)

    def _groups(
        self, items: list[Item], messages: dict[int, Message]
    ) -> dict[Key, tuple[Routed, list[Item]]]:
        """Return the rows that may share a transaction."""
        groups: dict[Key, tuple[Routed, list[Item]]] = {}
        wishes = {m.id: m for m in messages.values() if m.requiretls or m.tls_optional}
        for item in items:
            number = item.message_id
            try:
                known = self._routes.known.get(item.domain)
                routed = known or self._routes.find(item)
                if wishes and number in wishes:
                    routed = _as_wished(routed, wishes[number], item)
            except Exception as error:
                self._fail([item], error)
                continue
            utf8 = needs_utf8(item.sender, item.recipient)
            key = number, routed.group, item.sender, utf8
            if key in groups:
                groups[key][1].append(item)
            else:
                groups[key] = routed, [item]
        return groups

    def route(self, item: Item, message: Message) -> Routed:
        """Return the route of one row, which a stage has given another recipient."""
        routed = self._routes.find(item)
        wishes = message.requiretls or message.tls_optional
        return _as_wished(routed, message, item) if wishes else routed

    def _put(self, destination: Destination, envelope: Envelope) -> None:
        """Give an envelope to its destination."""
        queue = self._queues.get(destination.key)
        if queue is None:
            transport = self._means.transports.find_transport(destination.transport)
            queue = DestinationQueue(destination, transport, self, *self._limits, self._means.gate)
            self._queues[destination.key] = queue
            self.exclusions.watch(destination)
        queue.put_envelope(envelope)

    def connected(self, destination: Destination) -> bool:
        """Return whether a destination has a connection."""
        queue = self._queues.get(destination.key)
        return queue is not None and queue.connected

    def jammed(self, destination: Destination) -> bool:
        """Return whether more mail waits at a destination than it has connections."""
        queue = self._queues.get(destination.key)
        return queue is not None and queue.jammed

    def _fail(self, group: list[Item], error: Exception) -> None:
        """End the attempt of rows that an error of this program stops; the others go on."""
        log.error("no envelope", message=group[0].message_id, rows=[i.id for i in group],
                  exc_info=error)  # fmt: skip
        self.end_unowned(group, Result.from_error(internal(error), ""))

    def end(self, items: list[Item], result: Result, started: datetime | None = None) -> None:
        """End the attempt of rows with the same result."""
        self._conclude(items, [result] * len(items), started)

    def end_unowned(
        self, items: Iterable[Item], result: Result, started: datetime | None = None
    ) -> None:
        """End the attempts of those of these rows that no part has, because an error dropped them.

        So the place of the error does not matter, nor what became of the other rows there. If the
        next hop may have the mail of a row, its outcome is unknown, whatever the result.
        """
        now = self._means.clock.now()
        for item in self._leases.unowned(items):
            row_result = result
            if self._leases.in_doubt(item):
                row_result = replace(result, event=Event.UNKNOWN, stage=Stage.END_OF_DATA)
                row_result = CUT_OFF if result is NOT_BEGUN else row_result
            try:
                self._conclude_one(item, row_result, started or now, now)
            except Exception as error:
                self._hold(item, row_result, error)

    def _hold(self, item: Item, result: Result, error: Exception) -> None:
        """Put a row on hold that can't be judged: it would fail again and again."""
        log.error("on hold: its outcome can't be judged", row=item.id, message=item.message_id,
                  exc_info=error)  # fmt: skip
        unknown = result.event is Event.UNKNOWN
        event, now = Event.UNKNOWN if unknown else Event.FAIL, self._means.clock.now()
        held = replace(item, once=unknown, on_failed="hold")
        reply = Reply(0, internal(error).line)
        self._settler.put_outcome(Outcome(held, event, reply, started=now, ended=now))

    def end_lost(self, items: list[Item]) -> None:
        """End the attempts of rows that have been without an owner for a while."""
        for item in items:
            log.error("a row is lost in this worker: its attempt ends", row=item.id,
                      message=item.message_id, in_doubt=self._leases.in_doubt(item))  # fmt: skip
        self.end_unowned(items, _INTERNAL_ERROR)

    def _conclude(
        self, items: list[Item], results: list[Result], started: datetime | None = None
    ) -> bool:
        """Judge the results and give the outcomes on; return whether one is a delivery."""
        delivered = False
        now = self._means.clock.now()
        started = started or now
        for item, result in zip(items, results, strict=True):
            delivered = delivered or result.event is Event.DELIVERED
            try:
                self._conclude_one(item, result, started, now)
            except Exception as error:  # the other outcomes have to be settled
                log.error("result lost", row=item.id, message=item.message_id, exc_info=error)
                self.end_unowned([item], Result.from_error(internal(error), ""), started)
        return delivered

    def _conclude_one(self, sent: Item, result: Result, started: datetime, now: datetime) -> None:
        item = sent.original or sent
        if result.event is Event.DELIVERED:  # such an outcome needs neither a class nor a policy
            outcome = settled(item, result.event, result, started, now)
            if item.notify:
                outcome.report = success_notice(item, result)
            if self._recorder.on:
                self._recorder.see(outcome, result)
        else:
            outcome = self._judge.judge(item, result, started, now)
            self._recorder.see(outcome, result)
        self._settler.put_outcome(outcome)
        if item.spans and self._spans:
            self._spans.concluded(outcome, item.spans)

    # -- what the destinations report --

    def report(self, envelope: Envelope, results: list[Result]) -> None:
        """Settle the results of an envelope."""
        self.stages.context.free_octets += envelope.content_octets
        delivered = self._conclude(envelope.items, results, envelope.started)
        if delivered and self._space and envelope.size > CHUNK_OCTETS:
            self._space.freed(envelope.items[0].message_id, envelope.size)

    def dropped(self, envelope: Envelope) -> None:
        """End the attempts of rows whose envelope an error has dropped."""
        self.stages.context.free_octets += envelope.content_octets
        self.end_unowned(envelope.items, _INTERNAL_ERROR, envelope.started)

    def unreachable(self, destination: Destination, domains: set[str], result: Result) -> None:
        """Leave a destination out of claims for a while."""
        self.exclusions.unreachable(destination, domains, result)

    def closed(self, destination: Destination) -> None:
        """Forget a destination without mail and connections."""
        self._queues.pop(destination.key, None)

    def drain(self) -> None:
        """Begin nothing new, and hand back the rows of envelopes that wait."""
        self.stages.drain()
        for queue in list(self._queues.values()):
            for envelope in queue.drain():
                self.stages.context.free_octets += envelope.content_octets
                self.end(envelope.items, NOT_BEGUN)

    async def wait(self) -> None:
        """Wait for the deliveries that are under way."""
        await self.stages.wait()
        for queue in list(self._queues.values()):
            await queue.wait()

    async def abort(self) -> None:
        """Drop all connections."""
        await self.stages.abort()
        for queue in (queues := list(self._queues.values())):
            queue.abort()
        for queue in queues:
            await queue.wait()


def _as_wished(routed: Routed, message: Message, item: Item) -> Routed:
    """Return the destination with the TLS that the sender asks for (RFC 8689).

    REQUIRETLS stops no mail with the null reverse-path (section 5).
    """
    wish = TlsWish.REQUIRED if item.sender else TlsWish.NONE
    if (
        message.tls_optional and not message.requiretls
    ):  # REQUIRETLS counts more (RFC 8689, section 4.1)
        wish = TlsWish.OPTIONAL
    return replace(routed, destination=replace(routed.destination, wish=wish))
