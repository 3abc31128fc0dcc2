"""The stage that rewrites headers and reverse-paths; Bcc fields go in any case."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from dataclasses import dataclass, field

from pgmta.logs import get
from pgmta.mail.address import needs_utf8
from pgmta.mail.header import header_known
from pgmta.model import Item, Message
from queued.config import QueuedConfig
from queued.outgoing.outgoing import Outgoing
from queued.outgoing.stage import OutgoingStage, Prepare, Prepared
from queued.rewriting.rewrite import BCC_ONLY, BCC_OR_END, BEGINS_WITH_BCC, Rewriting

log = get("worker")


@dataclass(slots=True, unsafe_hash=True)
class RewrittenStream:
    """Iterates over the parts of content, of which the first has the rewritten header.

    At most the first MB is kept until the end of the header is seen. The log has the problems of
    the first iteration.
    """

    content: AsyncIterable[bytes]
    rewriting: Rewriting
    message_id: int = field(compare=False)
    warned: bool = field(default=False, compare=False)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the parts. Raises DeliveryError, as the content does."""
        first: bytes | None = b""
        async for part in self.content:
            if first is None:
                yield part
                continue
            first += part
            if header_known(first):
                yield self._rewritten(first)
                first = None
        if first:
            yield self._rewritten(first)

    def _rewritten(self, content: bytes) -> bytes:
        found = self.rewriting.content(content)
        if not self.warned:
            _warn(self.message_id, self.rewriting, found.problems)
        self.warned = True
        return found.content


class RewriteStage(OutgoingStage):
    """Changes mail as its route says."""

    # consecutive groups of one message share the new octets
    _last: tuple[Message, object, Rewriting, bytes, Outgoing] | None = None

    def configured(self, config: QueuedConfig) -> Prepare:
        """Return the step; the message has the rewriting of its route."""
        self._last = None
        return self.prepare

    def prepare(self, outgoing: Outgoing) -> Prepared:
        """Return the message; with VERP one for each row."""
        content, rewriting = outgoing.content, outgoing.routed.rewriting
        if (
            rewriting is None
            and isinstance(content, bytes)
            and b"bcc" not in outgoing.trace.lower()
            and not BEGINS_WITH_BCC(content)
            and not ((found := BCC_OR_END(content)) and found.lastindex)
        ):
            return outgoing
        changed = self._changed(outgoing, rewriting or BCC_ONLY)
        if rewriting is None:
            return changed
        items = outgoing.items
        if rewriting.verp:
            return [_from(changed, rewriting, [item]) for item in items]
        return _from(changed, rewriting, items)

    def _changed(self, outgoing: Outgoing, rewriting: Rewriting) -> Outgoing:
        """Return the message with its header rewritten."""
        message, content, last = outgoing.message, outgoing.content, self._last
        same = last and last[0] is message and last[1] is content and last[2] is rewriting
        # with a redirect each row has another trace field
        if last and same and last[3] == outgoing.trace:
            made = last[4]
            return outgoing._replace(trace=made.trace, content=made.content, size=made.size,
                           header_utf8=made.header_utf8)  # fmt: skip
        by = rewriting if rewriting.in_header else BCC_ONLY
        trace, size = by.content(outgoing.trace).content, outgoing.size
        octets: bytes | AsyncIterable[bytes]
        if isinstance(content, bytes):
            found = by.content(content)
            octets = found.content
            size += len(octets) - len(content)
            if rewriting.in_header:
                _warn(message.id, rewriting, found.problems)
        else:
            octets = RewrittenStream(content, rewriting, message.id)
        wide = outgoing.header_utf8 or (rewriting.in_header and rewriting.adds_utf8)
        made = outgoing._replace(trace=trace, content=octets, size=size, header_utf8=wide)
        self._last = message, content, rewriting, outgoing.trace, made
        return made


def _from(outgoing: Outgoing, rewriting: Rewriting, items: list[Item]) -> Outgoing:
    """Return the message for these rows, with the reverse-path that the route gives them."""
    sender = rewriting.sender(items[0], outgoing.started)
    utf8 = needs_utf8(sender, *(item.recipient for item in items))
    return outgoing._replace(items=items, sender=sender, utf8=utf8)


def _warn(message_id: int, rewriting: Rewriting, problems: Sequence[str]) -> None:
    """Log what could not be rewritten; one line for a message and route."""
    if problems:
        log.warning("not rewritten", message=message_id, route=rewriting.name or None,
                    fields=problems[:5])  # fmt: skip
