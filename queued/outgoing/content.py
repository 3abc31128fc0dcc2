"""Content that did not come with its claim, read from the store while it is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pgmta.errors import DeliveryError, Stage, StoreUnavailable
from pgmta.logs import get
from pgmta.mail.newlines import Mode, NewlineGuard
from pgmta.model import PART_SIZE, Message
from pgmta.store.queue.contents import Contents
from queued.delivery.smtp.wire import content_problem

_GONE = "5.3.0 its content is not in the database"

log = get("worker")


class StoredContent:
    """Iterates over the parts of a message's content; `rows` says how many rows it is sent for."""

    def __init__(
        self, contents: Contents, message: Message, rows: int, *, urgent: bool, mode: Mode
    ) -> None:
        self.same = "stored", message.id
        """Equal for the content of the same message."""
        self._contents = contents
        self._message = message
        self._rows = rows
        self._urgent = urgent
        self._mode: Mode = mode

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the parts. Raises DeliveryError if content is missing or can't be read or sent."""
        message, chunks = self._message, self._message.chunks
        # chunks of earlier versions are larger
        step = max(1, PART_SIZE * chunks // max(1, message.size))
        guard = NewlineGuard(self._mode)
        try:
            if chunks < 0:  # else an empty message would go out
                raise DeliveryError(_GONE, Stage.CONTENT, permanent=True)
            for first in range(0, chunks or 1, step):
                if chunks:
                    number = min(step, chunks - first)
                    part = await self._contents.chunks(message.id, first, number, self._urgent)
                else:
                    part = await self._contents.body(message.id)
                if part is None:
                    raise DeliveryError(_GONE, Stage.CONTENT, permanent=True)
                guard.see(part)
                if first + step >= chunks:
                    guard.end()
                if guard.problem:  # the connection is dropped without the final dot
                    problem = content_problem(guard.problem)
                    warn_unfit(self._rows, message.id, problem)
                    raise DeliveryError(problem, Stage.DATA, permanent=True)
                yield part
        except StoreUnavailable as error:
            raise DeliveryError(f"content can't be read: {error}", Stage.CONTENT) from None


def warn_unfit(rows: int, message_id: int, problem: str) -> None:
    """Log that rows go to HOLD because they can't be sent as they are; per claim the first."""
    log.warning("on hold: not fit to be sent", rows=rows, message=message_id, reason=problem)
