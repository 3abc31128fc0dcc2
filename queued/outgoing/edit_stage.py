"""The stage in which editors change content at delivery."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass

from pgmta.errors import DeliveryError, Stage
from pgmta.model import Item, Reply
from pgmta.states import Event
from queued.config import QueuedConfig
from queued.delivery.transport.result import Result
from queued.outgoing.outgoing import Outgoing
from queued.outgoing.stage import OutgoingStage, Prepare, Prepared
from queued.rewriting.edited import EDITORS, edited, edited_parts


@dataclass(frozen=True, slots=True)
class EditedStream:
    """Iterates over the parts of edited content."""

    content: AsyncIterable[bytes]
    metadata: str | None

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Return an iterator over the parts. It raises DeliveryError, as the content does."""
        return edited_parts(self.content, self._edited)

    def _edited(self, content: bytes) -> bytes:
        try:
            return edited(content, self.metadata)
        except ValueError as error:
            raise DeliveryError(_words(error), Stage.CONTENT, permanent=True) from None


class EditStage(OutgoingStage):
    """Has each row get the content that its metadata make; without editors there is none."""

    def configured(self, config: QueuedConfig) -> Prepare | None:
        """Return the step, if there are editors."""
        return self._prepare if EDITORS else None

    def _prepare(self, outgoing: Outgoing) -> Prepared:
        groups: dict[str | None, list[Item]] = {}
        for item in outgoing.items:
            groups.setdefault(item.metadata, []).append(item)
        parts: list[Outgoing] = []
        same: list[Item] = []  # rows whose content stays
        for metadata, rows in groups.items():
            content = outgoing.content
            if not isinstance(content, bytes):
                stream = EditedStream(content, metadata)
                parts.append(outgoing._replace(items=rows, content=stream))
                continue
            try:
                made = edited(content, metadata)
            except ValueError as error:
                result = Result(Event.FAIL, Reply(0, _words(error)))
                self.context.end(rows, result, outgoing.started)
                continue
            if made is content:
                same += rows
                continue
            size = outgoing.size + len(made) - len(content)
            parts.append(outgoing._replace(items=rows, content=made, size=size, header_utf8=True))
        if len(same) == len(outgoing.items):
            return outgoing
        return [outgoing._replace(items=same), *parts] if same else parts


def _words(error: ValueError) -> str:
    return f"5.6.0 content can't be edited: {error}"
