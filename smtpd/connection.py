"""One connection: command lines in, replies out, on top of aiosmtpd.

aiosmtpd gives each connection a task, and each command a few turns of the event loop and a timer.
Here commands are worked through as they come, their replies leave in one piece, and only what has
to wait for something else makes the connection busy (docs/decisions/0011).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Self, cast

from aiosmtpd.smtp import SMTP, Session

from queued.logs import get
from smtpd import replies
from smtpd.front import Front

log = get("smtpd")

_LINE = 1 << 16  # octets of a line that are kept; a longer one is skipped up to its end
_AHEAD = 1 << 18  # octets read ahead of a client that does not wait for its replies
_BURST = 100  # replies that leave in one write: then it shows whether the client reads them
_BOGUS = 5  # unknown commands until we hang up


class Connection(SMTP):
    """Reads lines and writes replies; what the commands mean is the Dialogue's.

    One is made by aiosmtpd's constructor for each listener, and `fresh` copies it for every
    connection: the constructor looks for methods and hooks by reflection, which takes longer than
    a message.
    """

    command_size_limit = 2048  # room for parameters (RFC 5321, section 4.5.3.1.4 allows more)

    session: Session
    transport: asyncio.Transport | None

    def __init__(self, front: Front, loop: asyncio.AbstractEventLoop) -> None:
        limits = front.config.limits
        super().__init__(
            _NoHooks,
            hostname=front.config.environment.hostname,
            ident="ESMTP Postern",
            data_size_limit=limits.message_size,
            enable_SMTPUTF8=True,
            timeout=limits.timeout,
            loop=loop,
        )
        self._front = front
        self._input = b""  # read, and not yet worked through from _at on
        self._at = 0
        self._skipping = False  # the rest of an overlong line
        self._busy = False  # a command waits for something; the next ones wait for it
        self._blocked = False  # the client does not read its replies
        self._paused = False  # we do not read from the client
        self._ended = False  # the client has closed its side
        self._bogus = _BOGUS
        self._replies: list[str]
        self._deadline = 0.0

    def fresh(self) -> Self:
        """Return a connection like this one, to be given to a transport."""
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        new._replies = []
        return new

    # -- what the dialogue adds --

    def command(self, word: bytes, argument: str | None) -> bool:
        """Do one command; False if there is none of that name."""
        raise NotImplementedError

    def content(self) -> bool:
        """Take the content that has come after DATA; False where commands are expected."""
        raise NotImplementedError

    def abandon(self) -> None:
        """The connection is gone: forget the transaction under way."""
        raise NotImplementedError

    def end(self) -> None:
        """The process stops: close when no transaction is cut off by it."""
        raise NotImplementedError

    # -- the transport's side --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet, or turn away what is over the limit."""
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if not peer:  # reset before it was accepted: nobody knows what it may relay
            self.transport.abort()
            self.transport = None
            return
        if not self._front.enter(self):
            line = replies.TOO_MANY_CONNECTIONS.format(self.hostname)
            self.transport.write(f"{line}\r\n".encode())
            self.transport.close()
            self.transport = None
            return
        self.session = self._create_session()
        self.session.peer = peer
        self._set_rset_state()  # type: ignore[no-untyped-call]
        self._touch()
        self._timeout_handle = self.loop.call_later(self._timeout_duration, self._tick)
        self.transport.write(f"220 {self.hostname} {self.__ident__}\r\n".encode())

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the session; a commit under way goes on."""
        if self.transport is None:
            return  # was turned away
        self.transport = None
        if self._timeout_handle:
            self._timeout_handle.cancel()
        if self._handler_coroutine:
            self._handler_coroutine.cancel()
        self._front.leave(self)
        self.abandon()

    def data_received(self, data: bytes) -> None:
        """Take what the client sends."""
        self._touch()
        self._input = self._input[self._at :] + data if self._input else data
        self._at = 0
        if not self._busy and not self._blocked:
            self.work()
        elif len(self._input) > _AHEAD and self.transport and not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        """Answer what a client piped in before it closed its side."""
        self._ended = True
        if not self._busy and not self._blocked:
            self.work()
        return True

    def pause_writing(self) -> None:
        """The client does not read: do no more of its commands."""
        self._blocked = True

    def resume_writing(self) -> None:
        """The client reads again."""
        self._blocked = False
        if not self._busy:
            self.work()

    # -- work --

    def work(self) -> None:
        """Do what has been read, until something has to be waited for; send the replies."""
        try:
            while self.transport and not (self._busy or self._blocked):
                if not self._step():
                    break
                if len(self._replies) >= _BURST:
                    self._flush()
        except Exception as error:
            self._fail(error)
            return
        self._flush()
        if self._busy or self._blocked or not self.transport:
            return
        if self._ended:
            self.hang_up()
        elif self._paused:
            self._paused = False
            self.transport.resume_reading()

    def _step(self) -> bool:
        """Do one line or one piece of content; False if there is none."""
        at = self._at
        if at >= len(self._input):
            self._input, self._at = b"", 0
            return False
        if self.content():
            return True
        end = self._input.find(b"\n", at)
        if end < 0:
            if len(self._input) - at > _LINE or self._skipping:
                self._skipping = True
                self._input, self._at = b"", 0
            return False
        self._at = end + 1
        if self._skipping:
            self._skipping = False
            self.say(replies.LINE_TOO_LONG)
        else:
            self._line(self._input[at:end].rstrip(b"\r"))
        return True

    def _line(self, line: bytes) -> None:
        if len(line) > self.command_size_limit:
            self.say(replies.LINE_TOO_LONG)
            return
        word, _, rest = line.partition(b" ")
        argument = rest.strip().decode("utf-8", "surrogateescape")
        if self.command(word.upper(), argument or None):
            return
        self._bogus -= 1
        if self._bogus:
            self.say(replies.UNKNOWN_COMMAND)
        else:
            self.say(replies.TOO_MANY_UNKNOWN)
            self.hang_up()

    def rest(self, data: bytes) -> None:
        """Give back what follows the end of data."""
        self._input, self._at = data, 0

    def take(self) -> bytes:
        """Return all that has been read and not yet worked through."""
        data = self._input[self._at :] if self._at else self._input
        self._input, self._at = b"", 0
        return data

    def say(self, reply: str) -> None:
        """Reply; it leaves with the others as soon as there is nothing else to do."""
        self._replies.append(reply)

    async def push(self, status: Any) -> None:
        """Reply (for commands of aiosmtpd)."""
        self.say(status)

    def aside(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for a coroutine; the commands that follow wait for it."""
        self._busy = True
        self._handler_coroutine = self.loop.create_task(self._aside(work))

    async def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self._fail(error)
        self.resume()

    def wait(self) -> None:
        """Do nothing more until `resume`."""
        self._busy = True

    def resume(self) -> None:
        """What was waited for has come."""
        self._busy = False
        self._touch()
        if self.transport:
            self.work()

    def _flush(self) -> None:
        if self._replies and self.transport:
            self._replies.append("")
            self.transport.write("\r\n".join(self._replies).encode())
        self._replies.clear()

    # -- the end --

    def hang_up(self) -> None:
        """Send what was said and close."""
        self._flush()
        if self.transport:
            self.transport.close()
        self._input, self._at = b"", 0

    def _fail(self, error: Exception) -> None:
        """Hang up after what should not happen: part of a message may have got lost by it."""
        log.error("error in a session", client=self.client, exc_info=error)
        self.say(replies.INTERNAL)
        self.hang_up()

    @property
    def client(self) -> str:
        """The client's address."""
        return str(cast(tuple[Any, ...], self.session.peer)[0])

    def _touch(self) -> None:
        self._deadline = self.loop.time() + self._timeout_duration

    def _tick(self) -> None:
        """One timer for the whole connection: it looks how long the client has been silent."""
        if not self.transport:
            return
        left = self._deadline - self.loop.time()
        closing = self.transport.is_closing()
        if self._busy and not closing:
            left = self._timeout_duration  # it is we who are slow; a commit has its own limit
        if left <= 0:
            if closing or self._blocked:
                self.transport.abort()  # it does not read: close would wait for it for ever
                return
            self.say(replies.TIMEOUT.format(self.hostname))
            self.hang_up()
            left = self._timeout_duration
        self._timeout_handle = self.loop.call_later(left, self._tick)


class _NoHooks:
    """aiosmtpd looks for handler hooks here; the dialogue needs none."""
