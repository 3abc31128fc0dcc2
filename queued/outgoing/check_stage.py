"""The stage that refuses what can't go over the wire, as it is after all changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass, field

from pgmta.errors import DeliveryError, Stage
from pgmta.logs import get
from pgmta.mail.newlines import Mode, NewlineGuard
from pgmta.model import Item, Reply
from queued.config import QueuedConfig
from queued.delivery.smtp.wire import PLAIN, address_problem, content_problem, message_problem
from queued.delivery.transport.result import Result
from queued.outgoing.outgoing import Outgoing
from queued.outgoing.stage import OutgoingStage, Prepare, Prepared, StageContext

log = get("worker")


@dataclass(frozen=True, slots=True)
class CheckedStream:
    """Iterates over the parts of content, as long as they are fit to be sent.

    `rows` and `message_id` are for the log.
    """

    content: AsyncIterable[bytes]
    mode: Mode
    rows: int = field(compare=False)
    message_id: int = field(compare=False)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the parts. Raises DeliveryError: the session sends no final dot then."""
        guard = NewlineGuard(self.mode)
        async for part in self.content:
            guard.see(part)
            self._look(guard)
            yield part
        guard.end()
        self._look(guard)

    def _look(self, guard: NewlineGuard) -> None:
        if guard.problem:
            problem = content_problem(guard.problem)
            _warn(self.rows, self.message_id, problem)
            raise DeliveryError(problem, Stage.DATA, permanent=True)


class CheckStage(OutgoingStage):
    """Checks the addresses of rows, and trace and content. Streams are checked while they go.

    smtpd checks the mail that it takes. Rows and messages may come by SQL as well.
    """

    def __init__(self, context: StageContext) -> None:
        super().__init__(context)
        self._seen: tuple[bytes, bytes | AsyncIterable[bytes], str] | None = None
        self._unfit: list[tuple[int, str]] = []  # messages of rows in this claim, and the reasons

    def configured(self, config: QueuedConfig) -> Prepare:
        """Return the step; `delivery.bare_newlines` says how strict it is."""
        self._mode: Mode = config.delivery.bare_newlines
        self._seen = None
        return self.prepare

    def prepare(self, outgoing: Outgoing) -> Prepared:
        """Return the message with the rows that can be sent."""
        items = outgoing.items
        for item in items:
            # mostly nothing in the addresses has to be looked at
            if not (
                PLAIN.fullmatch(item.sender + item.recipient)
                and item.recipient
                and item.domain.isascii()
            ):
                items = self._fit(outgoing)
                if not items:
                    return None
                break
        content, seen = outgoing.content, self._seen
        # rows of one message have the same octets mostly
        if seen is None or seen[1] is not content or seen[0] != outgoing.trace:
            body = content if isinstance(content, bytes) else None
            problem = message_problem(outgoing.trace, body, self._mode)
            seen = self._seen = outgoing.trace, content, problem
        if problem := seen[2]:
            for item in items:
                self._refuse(item, problem, outgoing)
            return None
        if not isinstance(content, bytes):
            content = CheckedStream(content, self._mode, len(items), outgoing.message.id)
            return outgoing._replace(items=items, content=content)
        return outgoing if items is outgoing.items else outgoing._replace(items=items)

    def _fit(self, outgoing: Outgoing) -> list[Item]:
        """Return the rows whose addresses can be arguments; the same list if all are fit."""
        fit: list[Item] = []
        for item in outgoing.items:
            if problem := address_problem(item):
                self._refuse(item, problem, outgoing)
            else:
                fit.append(item)
        return outgoing.items if len(fit) == len(outgoing.items) else fit

    def _refuse(self, item: Item, problem: str, outgoing: Outgoing) -> None:
        if not self._unfit:
            asyncio.get_running_loop().call_soon(self._warn)  # when the claim is through
        self._unfit.append((item.message_id, problem))
        result = Result(Reply(0, problem), permanent=True)
        self.context.conclude([item], [result], outgoing.started)

    def _warn(self) -> None:
        unfit, self._unfit = self._unfit, []
        _warn(len(unfit), *unfit[0])


def _warn(rows: int, message_id: int, problem: str) -> None:
    """Log that rows go to HOLD because they can't be sent as they are; per claim the first."""
    log.warning("on hold: not fit to be sent", rows=rows, message=message_id, reason=problem)
