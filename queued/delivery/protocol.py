"""An SMTP connection below its commands: octets, lines, replies and time limits."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from fcntl import ioctl
from termios import FIONREAD, TIOCOUTQ
from typing import cast

from pgmta.errors import DeliveryError
from pgmta.model import Reply
from queued.config import Timeouts
from queued.delivery.reply import stored

_LINE = 4096  # octets of a reply line, at most (RFC 5321, section 4.5.3.1.5, asks for 512)
_OCTETS = 32768  # octets of a reply, all its lines together, at most
_LINES = 256  # lines of a reply, at most
_QUOTED = 200  # characters of a reply that an error message repeats
_CODES = {str(code): code for code in range(200, 600)}  # RFC 5321, section 4.2
_GRACE = 0.001  # seconds for a TCP that passes data on before it counts the acknowledgement


class ClientProtocol(asyncio.Protocol):
    """Counts the replies that the server owes: one for the greeting, one for each command.

    What comes while none is owed is no answer to anything, and ends the connection. So nothing
    that the server sends before the final dot can be taken for the reply to it.
    """

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        self._owed = 1  # the greeting
        self._rest = b""  # an incomplete line
        self._lines: list[str] = []  # of an incomplete reply
        self._code = 0  # of an incomplete reply
        self._octets = 0  # of an incomplete reply
        self._replies: deque[Reply] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._reason = ""
        self.lines: list[str] = []
        """Texts of the lines of the reply that came last."""
        self.closed = False
        self.violated = False
        """Whether the server broke the protocol: no reply to the transaction counts."""
        self.past_dot = False
        """Whether a final dot has been written whose reply has not been taken."""
        self._premature = False  # a reply came while the final dot was still on its way

    # -- asyncio.Protocol --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sys.platform == "linux":
            self._descriptor = sock.fileno()

    def data_received(self, data: bytes) -> None:
        """Collect lines into replies (RFC 5321, section 4.2.1)."""
        if self.closed:
            return
        if self.past_dot and self._unsent():
            self._premature = True
        if self._rest:
            data = self._rest + data
            self._rest = b""
        start = 0
        while self._owed and (end := data.find(b"\n", start)) >= 0:
            if not self._line(data[start:end]):
                return
            start = end + 1
        if start == len(data):
            return
        if not self._owed:
            self._unasked(data[start : start + _LINE])
        elif len(data) - start > _LINE:
            self.violate("reply is too long")
        else:
            self._rest = data[start:]

    def _line(self, raw: bytes) -> bool:
        """Take a line; False: it is none of a reply, and the connection is closed."""
        self._octets += len(raw) + 1
        if len(raw) > _LINE or self._octets > _OCTETS or len(self._lines) >= _LINES:
            self.violate("reply is too long")
            return False
        line = raw.rstrip(b"\r").decode("utf-8", "replace")
        code, more = _CODES.get(line[:3]), line[3:4]
        if code is None or more not in ("", " ", "-"):
            self.violate(f"not an SMTP reply: {line[:100]!r}")
            return False
        if self._lines and code != self._code:
            # some would go by the first code, some by the last
            self.violate(f"reply with two codes: {self._code} {line[:100]!r}")
            return False
        self._code = code
        self._lines.append(line[4:])
        if more != "-":
            self.lines, self._lines = self._lines, []
            self._octets = 0
            self._owed -= 1
            self._replies.append(Reply(code, stored(" ".join(self.lines))))
            self._wake()
        return True

    def _unasked(self, data: bytes) -> None:
        """End the connection: the server says what no command has asked for.

        Only 421, with which a server may close at any time (RFC 5321, section 3.8), and empty
        lines leave the replies before them valid.
        """
        line = data.lstrip(b"\r\n").partition(b"\n")[0].rstrip(b"\r")
        reason = f"reply without a command: {line.decode('utf-8', 'replace')[:_QUOTED]}"
        if b"421".startswith(line[:3]):
            self._break(reason)
        else:
            self.violate(reason)

    def connection_lost(self, error: Exception | None) -> None:
        """Note the end and wake whoever waits."""
        self.closed = True
        self._reason = self._reason or (str(error) if error else "connection closed by peer")
        self._can_write.set()
        self._wake()

    def eof_received(self) -> bool:
        """A server that says no more is of no use: close."""
        return False

    def pause_writing(self) -> None:
        """The socket is full."""
        self._can_write.clear()

    def resume_writing(self) -> None:
        """The socket has room."""
        self._can_write.set()

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    def violate(self, reason: str) -> None:
        """Drop the connection of a server that breaks the protocol, and what it has said."""
        self.violated = True
        self._replies.clear()
        self._break(reason)

    def _break(self, reason: str) -> None:
        self._reason = reason
        self.abort()
        self._can_write.set()
        self._wake()

    def abort(self) -> None:
        """Drop the connection at once, without QUIT."""
        self.closed = True
        if self._transport:
            self._transport.abort()

    # -- for the transaction --

    def quit(self) -> None:
        """Say goodbye and close; the answer to QUIT is not waited for."""
        if self._transport and not self.closed:
            self._transport.write(b"QUIT\r\n")
            self._transport.close()
        self.closed = True

    def _write(self, data: bytes, replies: int = 0) -> None:
        """Send octets for which the server owes so many replies."""
        if self._transport and not self.closed:
            self._owed += replies
            self._transport.write(data)

    def _full(self) -> bool:
        """Whether `_drain` has to be waited for."""
        return self.closed or not self._can_write.is_set()

    async def _drain(self) -> None:
        if not self._can_write.is_set():
            try:
                async with asyncio.timeout(self._timeouts.block):
                    await self._can_write.wait()
            except TimeoutError:
                self._break("timeout while sending content")
        if self.closed and not self._replies:
            raise DeliveryError(self._reason, command="DATA")

    async def _listen(self) -> None:
        """Take in what the server has sent and nobody has read. Raises DeliveryError if closed.

        Nothing is owed before the final dot, so that whatever has come ends the connection.
        """
        if not self.closed:
            await asyncio.sleep(0)
        if self.closed:
            raise DeliveryError(self._reason, command="DATA")

    def _unread(self) -> bool:
        """Whether there may be something to `_listen` to."""
        return self.closed or (self._descriptor >= 0 and _waiting(self._descriptor, FIONREAD))

    def _unsent(self) -> bool:
        """Whether anything written has not been acknowledged by the peer's host."""
        return self._descriptor >= 0 and (
            _waiting(self._descriptor, TIOCOUTQ)
            or (self._transport is not None and self._transport.get_write_buffer_size() > 0)
        )

    async def _too_early(self) -> bool:
        """Whether a premature reply came before the final dot can have arrived at the server.

        A segment with the reply to the dot acknowledges the dot as well, so that Linux has
        counted that before it passes the reply on.
        """
        self._premature = False
        await asyncio.sleep(_GRACE)
        return self.closed or self._unsent()

    def _next(self) -> Reply | None:
        """The next reply, if it is there."""
        return self._replies.popleft() if self._replies else None

    async def _reply(self, command: str, timeout: float) -> Reply:
        if not self._replies and not self.closed:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(timeout, self._break, f"timeout, no reply to {command}")
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        if self._replies:
            return self._replies.popleft()
        raise DeliveryError(self._reason, command=command)


_answer = bytearray(4)


def _waiting(descriptor: int, question: int) -> bool:
    """Ask the kernel whether octets wait in a socket (tcp(7): SIOCINQ, SIOCOUTQ)."""
    try:
        ioctl(descriptor, question, _answer)
    except OSError:
        return False
    return any(_answer)
