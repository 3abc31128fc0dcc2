"""From claimed rows to envelopes of destinations, and back to outcomes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from pgmta.logs import get
from pgmta.mail.metadata import KEY as DEADLINE
from pgmta.model import CHUNK_SIZE, Item, Message, Reply
from pgmta.states import Event
from pgmta.store.queue.contents import Contents
from pgmta.store.queue.returned import ReturnedLog
from queued.answers.rules import AnswerRules
from queued.config import QueuedConfig
from queued.delivery.connect.connector import Connector, DeliveryContext, Opener
from queued.delivery.destination_queue import DestinationQueue
from queued.delivery.smtp.wire import PLAIN, address_problem, message_problem, needs_utf8
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.envelope import Envelope, LeaseGuard
from queued.delivery.transport.result import DEADLINE_OVER, NOT_BEGUN, Result, event_of, internal
from queued.outgoing.content import warn_unfit
from queued.outgoing.deadline import Deadlines
from queued.outgoing.envelopes import Envelopes
from queued.outgoing.returned_mail import ReturnedMail
from queued.outgoing.signing import SigningQueue
from queued.routing.routes import Routes
from queued.signing.signers import Signers
from queued.upkeep.space import Reclaimer
from queued.worker.judge import Judge
from queued.worker.left_out import LeftOut
from queued.worker.observer import Observer
from queued.worker.settler import Settler
from queued.worker.verdict import settled, success_notice

_MEMORY = 32 << 20  # octets of content that wait for their delivery, so that more comes with claims
_LEFT_OUT = 30.0  # seconds for which claims leave out an unreachable destination, at most

_NO_MESSAGE = Result(Reply(0, "5.3.0 its message is not in the database"), permanent=True)

log = get("worker")

Key = tuple[int, str, str, bool, datetime | None]
"""Message id, group of the destination, sender, need of SMTPUTF8, and deadline."""


class Dispatch:
    """Has a DestinationQueue for each destination with mail or connections, and judges its results.

    `opener` opens the sessions, by SMTP unless another one is given. `signers` sign mail.
    """

    def __init__(
        self,
        config: QueuedConfig,
        contents: Contents,
        guard: LeaseGuard,
        settler: Settler,
        space: Reclaimer | None = None,
        opener: Opener | None = None,
        observer: Observer | None = None,
        signers: Signers | None = None,
        attempts: ReturnedLog | None = None,
    ) -> None:
        self.room = _MEMORY
        """Octets of content that may come with the next claim; negative if there are too many."""
        self._contents = contents
        self._guard = guard
        self._settler = settler
        self._space = space
        self._connector = None  # the daemon configures the one that it gives
        if opener is None:
            opener = self._connector = Connector(config.environment.hostname, config.delivery)
        self._opener = opener
        self._observer = observer or Observer()
        self._mail = ReturnedMail(contents, attempts, self._conclude, self.dispatch)
        self._queues: dict[str, DestinationQueue] = {}  # by the key of the destination
        self._judge = Judge()
        self._deadlines = Deadlines()
        self.left_out = LeftOut(self._queues)
        """The mail that the next claim leaves out."""
        self._signer = SigningQueue(signers, self._put, self.report) if signers else None
        self.left_out.before = self._signer
        self.configure(config)

    def configure(self, config: QueuedConfig) -> None:
        """Use new routes, limits and intervals from now on."""
        self._routes = Routes(config.routes, config.routing)
        self.selectors = self._routes.selectors
        """The mail that claims know by labels, because more than its domain counts."""
        self._judge.configure(config, self._routes, answers := AnswerRules(config.answering))
        self._signing = self._signer if self._signer and self._signer.signers.on else None
        self.left_out.forget()
        self.left_out.pause = min(_LEFT_OUT, self._judge.shortest / 2)
        self.left_out.bound = config.urgent.bound
        self._mode = config.delivery.bare_newlines
        self._envelopes = Envelopes(config.delivery, self._contents, self._guard)
        self._returned = self._mail.configured(config, answers)
        if self._connector:
            self._connector.configure(config.delivery)
        reserved = config.urgent.connections(config.delivery.connections)
        self._context = DeliveryContext(config.delivery, self._opener, reserved)
        for queue in self._queues.values():
            queue.configure(self._context)

    def dispatch(
        self, items: list[Item], messages: dict[int, Message], reserved: bool = False
    ) -> int:
        """Give the rows of one claim to their destinations; return how many found no room.

        One envelope has the rows with the same message, next hop and reverse-path. Rows in
        `reserved` slots are handed back if their next hop has its share of these.
        """
        if self._returned:
            items = self._returned.take(items, messages)
        back = 0
        for key, (destination, group) in self._groups(items, messages).items():
            message = messages.get(key[0])
            if message is None:  # rows by SQL that no check has seen
                self._conclude(group, [_NO_MESSAGE] * len(group))
                continue
            # its domain was not known to go there
            if down := self.left_out.down.get(destination.key):
                if not destination.wished:
                    down.domains.update(self._names(group))
                self._conclude(group, [down.result] * len(group))
                continue
            if reserved and self.left_out.full(destination.key):
                self.left_out.crowd(destination.key, self._names(group))
                back += len(group)
                self.hand_back(group)
                continue
            stalled = not reserved and destination.key in self.left_out.stalled
            if stalled and self.left_out.stall(destination.key, self._names(group)):
                self.hand_back(group)
                continue
            try:
                labels = self._labels(group) if self.selectors else None
                envelopes = self._envelopes.of(group, message, labels, destination, utf8=key[3])
            except Exception as error:
                self._fail(group, error)
                continue
            if key[4]:
                for envelope in envelopes:
                    envelope.deadline = key[4]
            if self._signing:
                for envelope in envelopes:
                    self.room -= envelope.room
                    self._signing.take(destination, envelope)
                continue
            queue = self._queues.get(destination.key) or self._new_queue(destination)
            for envelope in envelopes:
                self.room -= envelope.room
                queue.put(envelope)
        return back

    def _new_queue(self, destination: Destination) -> DestinationQueue:
        queue = DestinationQueue(destination, self._context, self)
        self._queues[destination.key] = queue
        self.left_out.watch(destination)
        return queue

    def _put(self, destination: Destination, envelope: Envelope) -> None:
        """Give a signed envelope to its destination."""
        (self._queues.get(destination.key) or self._new_queue(destination)).put(envelope)

    def _groups(
        self, items: list[Item], messages: dict[int, Message]
    ) -> dict[Key, tuple[Destination, list[Item]]]:
        """Return the rows that may share a transaction, and settle those that can't be sent."""
        groups: dict[Key, tuple[Destination, list[Item]]] = {}
        problems: dict[int, str] = {}
        wishes = {m.id: m for m in messages.values() if m.requiretls or m.tls_optional}
        unfit: list[tuple[int, str]] = []
        for item in items:
            number = item.message_id
            deadline = None
            try:
                if item.metadata and DEADLINE in item.metadata:
                    deadline = self._deadlines.read(item)
                    if deadline and deadline <= datetime.now(UTC):
                        self._conclude([item], [DEADLINE_OVER])
                        continue
                if number not in problems:
                    message = messages.get(number)
                    problems[number] = message_problem(message, self._mode) if message else ""
                # mostly nothing in the addresses has to be looked at
                plain = bool(PLAIN.fullmatch(item.sender + item.recipient)) and item.recipient != ""
                plain = plain and item.domain.isascii()
                problem = ("" if plain else address_problem(item)) or problems[number]
                if problem:
                    unfit.append((number, problem))
                    self._conclude([item], [Result(Reply(0, problem), permanent=True)])
                    continue
                known = self._routes.known.get(item.domain)
                destination = known or self._routes.find(
                    item.domain, item.sender, item.metadata, item.tenant
                )
                if wishes and number in wishes:
                    destination = _as_wished(destination, wishes[number], item)
            except Exception as error:
                self._fail([item], error)
                continue
            utf8 = not plain and needs_utf8(item)
            key = number, destination.group, item.sender, utf8, deadline
            if key in groups:
                groups[key][1].append(item)
            else:
                groups[key] = destination, [item]
        if unfit:
            warn_unfit(len(unfit), *unfit[0])
        if self._deadlines.bad:
            self._deadlines.warn()
        return groups

    def _labels(self, group: list[Item]) -> set[str] | None:
        """Return the labels by which claims can leave out these rows; None if domains will do."""
        if not self.selectors:
            return None
        label = self._routes.label
        return {label(each.domain, each.sender, each.metadata, each.tenant) for each in group}

    def _names(self, group: list[Item]) -> set[str]:
        return self._labels(group) or {item.domain for item in group}

    def _fail(self, group: list[Item], error: Exception) -> None:
        """End the attempt of rows that an error of this program stops; the others go on."""
        log.error("no envelope", message=group[0].message_id, rows=[i.id for i in group],
                  exc_info=error)  # fmt: skip
        self._conclude(group, [Result.of(internal(error), "")] * len(group))

    def hand_back(self, items: list[Item]) -> None:
        """Give up leases of rows whose attempt never began."""
        self._conclude(items, [NOT_BEGUN] * len(items))

    def _conclude(
        self, items: list[Item], results: list[Result], started: datetime | None = None
    ) -> bool:
        """Judge the results and give the outcomes on; return whether one is a delivery."""
        delivered = False
        now = datetime.now(UTC)
        started = started or now
        for item, result in zip(items, results, strict=True):
            event = event_of(result)
            if event is Event.DELIVERED:  # needs neither a class nor a policy
                delivered = True
                outcome = settled(item, event, result, started, now)
                if item.notify:
                    outcome.report = success_notice(item, result)
                if self._observer.on:
                    self._observer.see(outcome, result)
            else:
                outcome = self._judge.judge(item, result, started, now)
                self._observer.see(outcome, result)
            self._settler.put(outcome)
        return delivered

    # -- what the destinations report --

    def report(self, envelope: Envelope, results: list[Result]) -> None:
        """Settle the results of an envelope."""
        self.room += envelope.room
        delivered = self._conclude(envelope.items, results, envelope.started)
        if delivered and self._space and envelope.size > CHUNK_SIZE:
            self._space.freed(envelope.items[0].message_id, envelope.size)

    def unreachable(self, destination: Destination, domains: set[str], result: Result) -> None:
        """Leave a destination out of claims for a while."""
        # other mail of the domain may find a host that is no good for REQUIRETLS
        names = set() if destination.wished else domains
        self.left_out.unreachable(destination.key, names, result)

    def closed(self, destination: Destination) -> None:
        """Forget a destination without mail and connections."""
        self._queues.pop(destination.key, None)

    def drain(self) -> None:
        """Begin nothing new, and hand back the rows of envelopes that wait."""
        self._mail.drain()
        waiting = self._signer.drain() if self._signer else []
        for queue in list(self._queues.values()):
            waiting += queue.drain()
        for envelope in waiting:
            self.room += envelope.room
            self.hand_back(envelope.items)

    async def wait(self) -> None:
        """Wait for the deliveries that are under way."""
        await self._mail.wait()
        for queue in list(self._queues.values()):
            await queue.wait()

    async def abort(self) -> None:
        """Drop all connections."""
        await self._mail.abort()
        for queue in (queues := list(self._queues.values())):
            queue.abort()
        for queue in queues:
            await queue.wait()


def _as_wished(destination: Destination, message: Message, item: Item) -> Destination:
    """Return the destination with the TLS that the sender asks for (RFC 8689).

    REQUIRETLS stops no mail with the null reverse-path (section 5).
    """
    if message.tls_optional:
        return replace(destination, tls_optional=True)
    return replace(destination, requiretls=True) if item.sender else destination
