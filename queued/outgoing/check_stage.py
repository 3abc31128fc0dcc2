"""The stage that refuses what can't go over the wire, as it is after all changes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass, field

from stringzilla import find

from pgmta.errors import DeliveryError, Stage
from pgmta.logs import get
from pgmta.mail.newlines import Mode, NewlineGuard, check
from pgmta.mail.telephone import NUMBER_DOMAIN
from pgmta.model import Item, Reply
from pgmta.states import Event
from queued.config import SMTP_TRANSPORTS, QueuedConfig
from queued.delivery.transport.result import Result
from queued.outgoing.outgoing import Outgoing
from queued.outgoing.stage import OutgoingStage, Prepare, Prepared, StageContext

log = get("worker")

NO_ROUTE_FOR_NUMBERS = "5.1.2 no route takes telephone numbers: none has `domain: sms`"
"""The reason why a telephone number gets no mail that a route by SMTP would take."""

# Whole fields (RFC 5322, section 2.2) without an empty line, a bare CR or LF, or NUL.
_FIELDS = re.compile(
    rb"(?:[!-9;-~]++[ \t]*+:[^\r\n\0]*+\r\n(?:[ \t]++[^ \t\r\n\0][^\r\n\0]*+\r\n)*+)*+"
)


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
        guard.check_end()
        self._look(guard)

    def _look(self, guard: NewlineGuard) -> None:
        if guard.problem:
            problem = _content_problem(guard.problem)
            _warn(self.rows, self.message_id, problem)
            raise DeliveryError(problem, Stage.DATA, permanent=True)


class CheckStage(OutgoingStage):
    """Checks the addresses of rows, and trace and content. Streams are checked while they go.

    smtpd checks the mail that it takes. Rows and messages may come by SQL as well.
    """

    def __init__(self, context: StageContext) -> None:
        super().__init__(context)
        self._seen: tuple[bytes, bytes | AsyncIterable[bytes], str] | None = None
        # ids of unfit messages in this claim, and the reasons
        self._unfit: list[tuple[int, str]] = []

    def configured(self, config: QueuedConfig) -> Prepare:
        """Return the step; `delivery.bare_newlines` says how strict it is."""
        self._mode: Mode = config.delivery.bare_newlines
        self._seen = None
        return self.prepare

    def prepare(self, outgoing: Outgoing) -> Prepared:
        """Return the message with the rows that can be sent."""
        name = outgoing.routed.destination.transport
        transport = self.context.means.transports.find_transport(name)
        items = outgoing.items
        unfit = transport.find_unfit(items)
        if name in SMTP_TRANSPORTS:
            unfit |= {
                item.id: NO_ROUTE_FOR_NUMBERS for item in items if item.domain == NUMBER_DOMAIN
            }
        if unfit:
            for item in items:
                if item.id in unfit:
                    self._refuse(item, unfit[item.id], outgoing)
            items = [item for item in items if item.id not in unfit]
            if not items:
                return None
            outgoing = outgoing._replace(items=items)
        if not transport.sends_lines:
            return outgoing
        content, seen = outgoing.content, self._seen
        # rows of one message mostly have the same octets
        if seen is None or seen[1] is not content or seen[0] != outgoing.trace:
            body = content if isinstance(content, bytes) else None
            problem = message_problem(outgoing.trace, body, self._mode)
            seen = self._seen = outgoing.trace, content, problem
        if problem := seen[2]:
            for item in items:
                self._refuse(item, problem, outgoing)
            return None
        if isinstance(content, bytes):
            return outgoing
        content = CheckedStream(content, self._mode, len(items), outgoing.message.id)
        return outgoing._replace(content=content)

    def _refuse(self, item: Item, problem: str, outgoing: Outgoing) -> None:
        if not self._unfit:
            asyncio.get_running_loop().call_soon(self._warn)  # after the whole claim
        self._unfit.append((item.message_id, problem))
        self.context.dispatcher.end([item], Result(Event.FAIL, Reply(0, problem)), outgoing.started)

    def _warn(self) -> None:
        unfit, self._unfit = self._unfit, []
        _warn(len(unfit), *unfit[0])


def _warn(rows: int, message_id: int, problem: str) -> None:
    """Log that rows fail because they can't be sent as they are; per claim the first."""
    log.warning("mail is not fit to be sent", rows=rows, message=message_id, reason=problem)


def message_problem(trace: bytes, body: bytes | None, mode: Mode) -> str:
    """Return why a message can't be sent; '' if it can. Without a body only the trace counts.

    The text begins with an enhanced status code.
    """
    if not _FIELDS.fullmatch(trace):
        return "5.6.0 trace is not whole header fields with CRLF at their ends"
    if body is None or (
        # quick: mostly no line begins with a dot
        mode == "guard"
        and find(body, b"\n.") < 0
        and find(body, b"\r.") < 0
        and find(body, b"\0.") < 0
    ):
        return ""
    problem = check(body, mode)
    return _content_problem(problem) if problem else ""


def _content_problem(problem: str) -> str:
    """Return the reason for content that a NewlineGuard refuses."""
    return f"5.6.0 content can't be sent: {problem}"
