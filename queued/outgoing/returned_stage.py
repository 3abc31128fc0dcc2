"""The stage that takes mail to VERP addresses: it notes in the log why the mail came back."""

from __future__ import annotations

from dataclasses import dataclass, replace

import psycopg

from pgmta.errors import AddressError, Stage, StoreUnavailable
from pgmta.logs import get
from pgmta.mail.address import parse_mailbox
from pgmta.model import PART_OCTETS, Item, Message, Reply
from pgmta.postgres import faults
from pgmta.states import Event
from pgmta.store.queue.contents import Contents
from pgmta.store.queue.returned import LoggedAttempt, ReturnedRow
from queued.answers.answer_rules import AnswerRules
from queued.config import QueuedConfig
from queued.config.answer_text import parse_reply
from queued.delivery.transport.result import NOT_BEGUN, Result, stored
from queued.outgoing import returned
from queued.outgoing.outgoing import Outgoing
from queued.outgoing.stage import Prepare, Prepared, QueueStage, StageContext, Waiting
from queued.rewriting.verp import VerpRow
from queued.routing.routes import return_addresses

_MAX_REFUSED = 3  # rows of a batch; then the rest is tried later
_UNWRITTEN = "4.3.0 the log can't be written: "
_MAX_HOPS = 10  # VERP addresses that mail is forwarded from, one to the other

log = get("worker")


@dataclass(slots=True, eq=False)
class _Taken(Waiting):
    named: VerpRow
    hops: int = 0  # number of times that the mail was forwarded
    answer_class: str = ""
    words: str = ""
    complaint: bool = False

    @property
    def item(self) -> Item:
        return self.outgoing.items[0]

    @property
    def message(self) -> Message:
        return self.outgoing.message

    @property
    def row(self) -> ReturnedRow:
        named = self.named
        return ReturnedRow(
            named.message_id, named.row_id, named.day, self.answer_class, self.words, self.complaint
        )


class ReturnedStage(QueueStage[_Taken]):
    """Takes rows whose recipients are VERP addresses of this configuration."""

    most = 50

    def __init__(self, context: StageContext) -> None:
        super().__init__(context)
        self._draining = False
        self._hops = 0  # hops of the row that is being forwarded

    def configured(self, config: QueuedConfig) -> Prepare | None:
        """Return the step, if the configuration has such addresses, and there is a log."""
        self._addresses = return_addresses(config.routing)
        self._to = config.routing.verp.forward
        self._rules = AnswerRules(config.answering)
        return self.prepare if self._addresses and self.context.means.returned else None

    def prepare(self, outgoing: Outgoing) -> Prepared:
        """Take the rows that are for VERP addresses; the others go on.

        Rows of bad or old addresses, and of loops, are gone without a DSN.
        """
        rest: list[Item] = []
        for item in outgoing.items:
            named = self._addresses.named(item.recipient, item.domain, outgoing.started)
            if named is None:
                rest.append(item)
                continue
            problem = (
                named.problem if self._hops <= _MAX_HOPS else "5.4.6 its VERP addresses are a loop"
            )
            if problem:
                gone = replace(item.original or item, on_failed="remove")
                self.context.dispatcher.end([gone], Result(Event.FAIL, Reply(0, problem)), None)
            else:
                self._take(_Taken(outgoing._replace(items=[item]), named, self._hops))
        if len(rest) == len(outgoing.items):
            return outgoing
        return outgoing._replace(items=rest) if rest else None

    async def _do(self, batch: list[_Taken]) -> None:
        try:
            for taken in batch:
                self._read(taken, await first_octets(self.context.means.contents, taken.message))
            attempts = await self._record(batch)
        except (StoreUnavailable, psycopg.Error) as error:
            self._later(batch, f"{_UNWRITTEN}{faults.one_line(error)}")
            return
        while batch:  # the rest is tried again if a row fails
            self._finish(batch[0], attempts.pop(0))
            del batch[0]

    async def _record(self, batch: list[_Taken]) -> list[LoggedAttempt | None]:
        """Note a batch in the log. Raises StoreUnavailable, psycopg.Error.

        If PostgreSQL refuses it, each row is tried by itself. Those that it refuses again leave
        the batch, and are tried later; after some of them, so does the rest.
        """
        attempts_log = self.context.means.returned
        assert attempts_log  # noqa: S101 - for the type checker
        try:
            return await attempts_log.record([taken.row for taken in batch])
        except psycopg.Error:
            if len(batch) == 1:
                raise
        attempts: list[LoggedAttempt | None] = []
        refused = 0
        while len(attempts) < len(batch):
            taken = batch[len(attempts)]
            try:
                attempts += await attempts_log.record([taken.row])
            except psycopg.Error as error:
                refused += 1
                left = [taken] if refused < _MAX_REFUSED else batch[len(attempts) :]
                del batch[len(attempts) : len(attempts) + len(left)]
                self._later(left, f"{_UNWRITTEN}{faults.one_line(error)}")
        return attempts

    def _read(self, taken: _Taken, content: bytes) -> None:
        """Find the answer class and the words of a failure that the content reports."""
        found = returned.read(content, taken.item.sender)
        taken.complaint = found.kind == "complaint"
        if found.kind != "failed":
            return
        reply = parse_reply(found.words)
        if not reply.code:
            reply = Reply(450 if found.status.startswith("4") else 550, reply.text)
        if found.status and not reply.enhanced:
            reply = Reply(reply.code, f"{found.status} {reply.text}".rstrip())
        answer = self._rules.read_reply(reply, found.host, Stage.RCPT)
        taken.answer_class = str(answer.answer_class)
        taken.words = stored(str(reply))

    def _finish(self, taken: _Taken, attempt: LoggedAttempt | None) -> None:
        item, named = taken.item, taken.named
        if attempt is None and item.attempts == 1:
            # the outcome of that attempt may not be written yet
            self._later([taken], f"4.3.0 the log has no delivery of message {named.message_id} yet")
            return
        recipient = attempt.sender if attempt and self._to == "sender" else self._to
        if recipient and recipient != "sender":
            try:
                address, domain = parse_mailbox(recipient, utf8=True)
            except AddressError as error:
                log.warning("returned mail is not forwarded", row=item.id, reason=str(error))
            else:
                if self._draining:  # no destination takes the mail any more
                    self._end([taken], NOT_BEGUN)
                    return
                original = item.original or item
                item = replace(item, recipient=address, domain=domain, original=original)
                self._hops = taken.hops + 1  # the new address may be a VERP address, too
                try:
                    self.context.dispatcher.dispatch([item], {item.message_id: taken.message})
                finally:
                    self._hops = 0
                return
        if attempt is None:
            words = f"the log has no delivery of message {named.message_id} any more"
        elif taken.complaint:
            words = f"recorded for message {named.message_id}: its recipient complained"
        elif taken.answer_class:
            words = f"recorded for message {named.message_id}: {taken.answer_class}"
        else:
            words = f"no failure of message {named.message_id}"
        self.context.dispatcher.end(
            [item], Result(Event.DELIVERED, Reply(0, f"2.0.0 {words}")), None
        )

    def _later(self, batch: list[_Taken], why: str) -> None:
        self._end(batch, Result(Event.DEFER, Reply(0, why)))

    def _end(self, batch: list[_Taken], result: Result) -> None:
        if batch:
            self.context.dispatcher.end([taken.item for taken in batch], result, None)

    def drain(self) -> list[Outgoing]:
        """Return the messages that wait, and forward no more."""
        self._draining = True
        return super().drain()


async def first_octets(contents: Contents, message: Message) -> bytes:
    """Return the first octets of content; none if it is gone. Raises StoreUnavailable."""
    if message.body is not None:
        return message.body
    if message.chunks < 0:
        return b""
    if not message.chunks:
        return await contents.body(message.id) or b""
    number = max(1, min(message.chunks, PART_OCTETS * message.chunks // max(1, message.size)))
    return await contents.chunks(message.id, 0, number) or b""
