"""The stage that reads complaints of providers: a signed one suppresses, and all mail goes on."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg

from pgmta.compose.token import KeyRings, LinkNumbers, Purpose
from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.mail.address import domain_of, mailbox_key
from pgmta.model import Reply
from pgmta.postgres import faults
from pgmta.states import Event
from pgmta.store.queries import feature_queries
from pgmta.store.queue.returned import ReturnedRow
from queued.config import QueuedConfig
from queued.delivery.transport.result import Result
from queued.outgoing import returned
from queued.outgoing.outgoing import Outgoing
from queued.outgoing.returned_stage import first_octets
from queued.outgoing.stage import Prepare, Prepared, QueueStage, Waiting
from queued.routing.routes import return_addresses

from .config import Suppressions

_SENDER = re.compile(
    rb"^(?:Original-Mail-From|Return-Path)[ \t]*:[ \t]*<?([^\s<>]{3,254})>?", re.I | re.MULTILINE
)
_TOKEN = re.compile(rb"/unsubscribe\?token=([A-Za-z0-9_-]{67})(?![A-Za-z0-9_-])")
_MAX_NAMES = 20  # of one report that are looked at

log = get("worker")

_SQL = feature_queries("suppressions")


class ComplaintStage(QueueStage[Waiting]):
    """Reads the mail to `suppressions.complaints`: feedback reports of providers (RFC 5965).

    A report has the mail that it is about. A link or a VERP address in it that we signed names the
    recipient who complained. Reports without one change nothing.
    """

    def configured(self, config: QueuedConfig) -> Prepare | None:
        """Return the step, if there are such addresses, and there is a log."""
        self._mailboxes = frozenset(config.section(Suppressions).complaints)
        self._addresses = return_addresses(config.routing)
        self._ring = KeyRings.of(config.tokens).rings[Purpose.UNSUBSCRIBE]
        return self.prepare if self._mailboxes and self.context.means.returned else None

    def prepare(self, outgoing: Outgoing) -> Prepared:
        """Take mail to one of the addresses, until it is read."""
        if not any(mailbox_key(item.recipient) in self._mailboxes for item in outgoing.items):
            return outgoing
        self._take(Waiting(outgoing))
        return None

    async def _do(self, batch: list[Waiting]) -> None:
        for each in batch:
            outgoing = each.outgoing
            if result := await self._read(outgoing):
                self.context.dispatcher.end(outgoing.items, result, outgoing.started)
            else:
                self.context.go_on(self, outgoing)

    async def _read(self, outgoing: Outgoing) -> Result | None:
        """Suppress who complained; return why the mail has to be read again, None if not."""
        try:
            contents = self.context.means.contents
            content = (await first_octets(contents, outgoing.message))[: returned.MAX_READ_OCTETS]
            if returned.read(content, outgoing.sender).kind == "complaint":
                await self._record(content, outgoing)
        except (StoreUnavailable, psycopg.Error) as error:
            problem = f"4.3.0 a complaint can't be written: {faults.one_line(error)}"
            return Result(Event.DEFER, Reply(0, problem))
        return None

    async def _record(self, content: bytes, outgoing: Outgoing) -> None:
        attempts = self.context.means.returned
        assert attempts  # noqa: S101 - for the type checker
        suppressed = 0
        if rows := list(self._rows(content, outgoing)):
            suppressed += sum(found is not None for found in await attempts.record(rows))
        for token in _tokens(content):
            if octets := self._ring.verify(token):
                numbers = LinkNumbers.read(octets)
                params = {"list": numbers.list, "number": numbers.number, "date": numbers.date}
                ((known,),) = await attempts.link.run(_SQL["complain"], params)
                suppressed += bool(known)
        log.info("complaint", message=outgoing.message.id, signed=suppressed)

    def _rows(self, content: bytes, outgoing: Outgoing) -> Iterator[ReturnedRow]:
        """Yield the rows that VERP addresses of ours name."""
        for text in dict.fromkeys(_SENDER.findall(content)[:_MAX_NAMES]):
            address = text.decode("ascii", "replace")
            named = self._addresses.named(address, domain_of(address), outgoing.started)
            if named and not named.problem:
                yield ReturnedRow(named.message_id, named.row_id, named.day, "", "", complaint=True)


def _tokens(content: bytes) -> list[str]:
    """Return the tokens of links, in fields that are folded and texts in quoted-printable too."""
    plain = re.sub(rb"=?\r?\n[ \t]?", b"", content).replace(b"=3D", b"=")
    return [each.decode() for each in dict.fromkeys(_TOKEN.findall(plain)[:_MAX_NAMES])]
