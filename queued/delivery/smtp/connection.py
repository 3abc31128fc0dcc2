"""A connection to a next hop, with TLS or without, and the replies of its server.

It knows lines, how many replies the server owes, and time limits. It knows no commands.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections import deque
from contextlib import suppress
from fcntl import ioctl
from termios import TIOCOUTQ
from time import monotonic
from typing import cast

from pgmta.errors import DeliveryError, Stage
from pgmta.model import Reply
from queued.config import Timeouts
from queued.delivery.transport.result import MAX_SHORT_CHARACTERS, stored
from queued.delivery.transport.transcript import CONTENT, MAX_ENTRIES, NOTE, RECEIVED, SENT, Entry

_MAX_LINE_OCTETS = 4096  # of a reply (RFC 5321, section 4.5.3.1.5, asks for 512)
_MAX_REPLY_OCTETS = 32768  # all its lines together
_MAX_REPLY_LINES = 256
_QUOTED_CHARACTERS = 200  # of a reply, in an error message
_CODES = {str(code): code for code in range(200, 600)}  # RFC 5321, section 4.2
_KEPT_OCTETS = 8192  # of one read, in the dialogue
_TOO_LONG = "timeout, the transaction took too long"
_CLOSE_NOTIFY_TIMEOUT_S = 2.0  # for the server's close_notify (RFC 8446, section 6.1)
_CLOSE_MARGIN_S = 0.1  # for the end of a transport after the timer that closes it
_ACKNOWLEDGEMENT_S = 0.001  # for a TCP that hands data over before it counts the acknowledgement


_answer = bytearray(4)


def waiting(descriptor: int, question: int) -> bool:
    """Return whether octets wait in a socket, by the ioctl FIONREAD or TIOCOUTQ (tcp(7)).

    Without a descriptor (-1) the answer is no.
    """
    if descriptor < 0:
        return False
    try:
        ioctl(descriptor, question, _answer)
    except OSError:
        return False
    return any(_answer)


class ClientProtocol(asyncio.Protocol):
    """Counts the replies that the server owes: one for the greeting, one for each command.

    A reply that is not owed answers no command, and ends the connection. So no reply that the
    server sends before the final dot can be taken for the reply to it.
    """

    def __init__(self, timeouts: Timeouts) -> None:
        self.timeouts = timeouts
        self._transport: asyncio.Transport | None = None
        self.descriptor = -1
        self.tls: ssl.SSLObject | None = None
        self.can_write = asyncio.Event()
        self.can_write.set()
        self.reason = ""
        """Why the connection has ended."""
        self.closed = False
        """Whether no command may be sent and no reply counts."""
        self._ended = asyncio.Event()  # set when the transport is closed, too
        self._leaving: asyncio.TimerHandle | None = None  # limits the wait for the reply to QUIT
        self._owed = 1  # number of replies that are due: at first the greeting
        self._partial = b""  # an incomplete line
        # Of an incomplete reply:
        self._lines: list[str] = []
        self._code = 0
        self._octets = 0
        self.replies: deque[Reply] = deque()
        """Replies that have come and were not taken."""
        self._waiter: asyncio.Future[None] | None = None
        self.lines: list[str] = []
        """Texts of the lines of the reply that came last."""
        self.deadline = 0.0
        """When a transaction ends that has not come to its final dot, by the loop; 0: never."""
        self.violated = False
        """Whether the server broke the protocol; no reply to the transaction counts then."""
        self.past_dot = False
        """Whether a final dot has been written whose reply has not been taken."""
        self.premature = False
        """Whether a reply came while the final dot was still on its way."""
        self.said: deque[Entry] = deque(maxlen=MAX_ENTRIES)
        """The dialogue of the set-up or of the transaction."""
        self.content = 0
        """Octets of content sent since the last command."""
        self.phase: str = Stage.CONNECT
        """The step for whose end it waited last."""
        self.phase_since = monotonic()
        self.ended_by_operator = False

    # -- asyncio.Protocol --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sys.platform == "linux":
            self.descriptor = sock.fileno()

    def pause_writing(self) -> None:
        """Make writers wait, because the socket is full."""
        self.can_write.clear()

    def resume_writing(self) -> None:
        """Let writers go on, because the socket has room."""
        self.can_write.set()

    def data_received(self, data: bytes) -> None:
        """Collect lines into replies (RFC 5321, section 4.2.1)."""
        if self.closed:
            if self._leaving and self._transport and b"\n" in data:
                self._transport.close()  # whatever came, it is the answer to QUIT
            return
        self.said.append((monotonic(), RECEIVED, data[:_KEPT_OCTETS]))
        if self.past_dot and (
            waiting(self.descriptor, TIOCOUTQ)
            or (
                self._transport
                and self.descriptor >= 0
                and self._transport.get_write_buffer_size() > 0
            )
        ):
            self.premature = True
        if self._partial:
            data = self._partial + data
            self._partial = b""
        start = 0
        while self._owed and (end := data.find(b"\n", start)) >= 0:
            if not self._line(data[start:end]):
                return
            start = end + 1
        if start == len(data):
            return
        if not self._owed:
            self._unasked(data[start : start + _MAX_LINE_OCTETS])
        elif len(data) - start > _MAX_LINE_OCTETS:
            self.violate("reply is too long")
        else:
            self._partial = data[start:]

    def _line(self, raw: bytes) -> bool:
        """Take a line of a reply; return False if it is none, and the connection is closed."""
        self._octets += len(raw) + 1
        if (
            len(raw) > _MAX_LINE_OCTETS
            or self._octets > _MAX_REPLY_OCTETS
            or len(self._lines) >= _MAX_REPLY_LINES
        ):
            self.violate("reply is too long")
            return False
        line = raw.rstrip(b"\r").decode("utf-8", "replace")
        code, more = _CODES.get(line[:3]), line[3:4]
        if code is None or more not in ("", " ", "-"):
            self.violate(f"not an SMTP reply: {line[:100]!r}")
            return False
        if self._lines and code != self._code:
            # some clients would go by the first code, some by the last
            self.violate(f"reply with two codes: {self._code} {line[:100]!r}")
            return False
        self._code = code
        self._lines.append(line[4:])
        if more != "-":
            self.lines, self._lines = self._lines, []
            self._octets = 0
            self._owed -= 1
            text = " ".join(self.lines)
            if len(text) >= MAX_SHORT_CHARACTERS or not (text.isascii() and text.isprintable()):
                text = stored(text)
            self.replies.append(Reply(code, text))
            if self._waiter and not self._waiter.done():
                self._waiter.set_result(None)
        return True

    def _unasked(self, data: bytes) -> None:
        """End the connection of a server that sends a reply to no command.

        Only 421, with which a server may close at any time (RFC 5321, section 3.8), and empty
        lines leave the replies before them valid.
        """
        line = data.lstrip(b"\r\n").partition(b"\n")[0].rstrip(b"\r")
        reason = f"reply without a command: {line.decode('utf-8', 'replace')[:_QUOTED_CHARACTERS]}"
        if b"421".startswith(line[:3]):
            self._break(reason)
        else:
            self.violate(reason)

    def connection_lost(self, error: Exception | None) -> None:
        """Note the end, and wake the tasks that wait."""
        self.reason = self.reason or (str(error) if error else "connection closed by peer")
        if not self.closed:
            self.said.append((monotonic(), NOTE, self.reason))
        self.closed = True
        self._ended.set()
        if self._leaving:
            self._leaving.cancel()
        self.can_write.set()
        self._wake()

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    def violate(self, reason: str) -> None:
        """Drop the connection of a server that breaks the protocol, and the replies it has sent."""
        self.violated = True
        self.replies.clear()
        self._break(reason)

    async def start_tls(self, context: ssl.SSLContext, hostname: str) -> ssl.SSLObject:
        """Do the TLS handshake, and return the TLS session.

        Plain text that comes before it is an error, because it could be taken for a reply under TLS
        (RFC 3207, section 4.2). Raises DeliveryError for that, and if the connection has ended;
        OSError, of which SSLError is one, and ValueError for a failed handshake.
        """
        if self._partial or self._lines or self.replies:
            self.violate("plain text before the TLS handshake")
        if self.closed or self._transport is None:
            raise DeliveryError(self.reason, Stage.TLS)
        self.phase, self.phase_since = Stage.TLS, monotonic()
        loop = asyncio.get_running_loop()
        try:
            transport = await loop.start_tls(
                self._transport,
                self,
                context,
                server_hostname=hostname,
                ssl_handshake_timeout=self.timeouts.tls,
                ssl_shutdown_timeout=_CLOSE_NOTIFY_TIMEOUT_S,
            )
        except BaseException:
            self.abort()
            raise
        if transport is None or self.closed:
            raise ConnectionResetError(self.reason or "connection closed by peer")
        self._transport = transport
        self.tls = cast(ssl.SSLObject, transport.get_extra_info("ssl_object"))
        return self.tls

    @property
    def made(self) -> bool:
        """Whether there is a connection, or was one."""
        return self._transport is not None

    @property
    def gone(self) -> bool:
        """Whether the connection has ended, also for the server."""
        return self._ended.is_set() or (self.closed and self._leaving is None)

    def end_by_operator(self, reason: str) -> None:
        """Drop the connection as one that broke."""
        self.ended_by_operator = True
        self._break(reason)

    def _break(self, reason: str) -> None:
        self.reason = reason
        self.said.append((monotonic(), NOTE, reason))
        self.abort()
        self.can_write.set()
        self._wake()

    # -- for the transaction --

    def quit(self) -> None:
        """Say QUIT, and close when the answer comes or after `timeouts.quit` seconds."""
        if not self.closed:
            self.said.append((monotonic(), SENT, b"QUIT"))
            if self._transport:
                self._transport.write(b"QUIT\r\n")
                loop = asyncio.get_running_loop()
                self._leaving = loop.call_later(self.timeouts.quit, self._transport.abort)
                self.phase, self.phase_since = "QUIT", monotonic()
        self.closed = True

    def abort(self) -> None:
        """Drop the connection at once, without QUIT."""
        self.closed = True
        if self._transport:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait for the end of a connection after `quit`, for about `timeouts.quit` seconds."""
        if self._transport and not self._ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self.timeouts.quit + _CLOSE_MARGIN_S):
                    await self._ended.wait()

    def write(self, data: bytes, replies: int = 0) -> None:
        """Send octets for which the server owes `replies` replies."""
        if self._transport and not self.closed:
            self._owed += replies
            self._transport.write(data)
            if replies and not self.past_dot:
                self.said.append((monotonic(), SENT, data))
            elif replies:
                self.said.append((monotonic(), CONTENT, self.content + len(data)))
                self.content = 0
            else:
                self.content += len(data)

    async def drain(self) -> None:
        """Wait until the socket has room. Raises DeliveryError if the connection has ended."""
        if not self.can_write.is_set():
            wait, reason = self.timeouts.block, "timeout while sending content"
            left = self.deadline - asyncio.get_running_loop().time()
            if self.deadline and not self.past_dot and left < wait:
                wait, reason = left, _TOO_LONG
            try:
                async with asyncio.timeout(wait):
                    await self.can_write.wait()
            except TimeoutError:
                self._break(reason)
        if self.closed and not self.replies:
            raise DeliveryError(self.reason, Stage.DATA, retry_elsewhere=True)

    async def listen(self) -> None:
        """Read the octets that have come and were not read. Raises DeliveryError if it is closed.

        The server owes nothing before the final dot, so any octets end the connection.
        """
        if not self.closed:
            await asyncio.sleep(0)
        if self.closed:
            raise DeliveryError(self.reason, Stage.DATA, retry_elsewhere=True)

    async def too_early(self) -> bool:
        """Return whether a premature reply came before the final dot can have reached the server.

        The segment with the reply to the dot acknowledges the dot as well. Linux has counted that
        before it hands the reply over.
        """
        self.premature = False
        await asyncio.sleep(_ACKNOWLEDGEMENT_S)
        if self.closed or waiting(self.descriptor, TIOCOUTQ):
            return True
        if self._transport is None or self.descriptor < 0:
            return False
        return self._transport.get_write_buffer_size() > 0

    async def reply(self, stage: Stage, timeout: float) -> Reply:
        """Return the next reply. Raises DeliveryError if the connection ends or the time is over.

        `replies` may have it already, which takes no task switch to see.
        """
        if not self.replies and not self.closed:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            self.phase, self.phase_since = stage, monotonic()
            reason = f"timeout, no reply to {stage}"
            if self.deadline and not self.past_dot and self.deadline - loop.time() < timeout:
                timeout, reason = max(0.0, self.deadline - loop.time()), _TOO_LONG
            timer = loop.call_later(timeout, self._break, reason)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        if self.replies:
            return self.replies.popleft()
        # after the final dot nobody knows whether the server has the message
        unknown = stage is Stage.END_OF_DATA
        raise DeliveryError(self.reason, stage, retry_elsewhere=True, unknown=unknown)
