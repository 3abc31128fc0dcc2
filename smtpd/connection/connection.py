"""One connection: octets in, replies out. The commands are the session's.

A connection does the commands of one read at once, and sends their replies in one write. Only a
command that has to wait for something makes the connection busy (docs/decisions/0011).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, cast

from pgmta.model import CHUNK_SIZE
from smtpd.connection.long_line import LINE, LongLine
from smtpd.connection.opening import Opening
from smtpd.fairness.closing import Closing, Phase, Reading
from smtpd.fairness.share import BULK, HEAVY, Share
from smtpd.protocol import replies
from smtpd.server.server import Server
from smtpd.session.listener import SmtpListener
from smtpd.session.session import SmtpSession

_AHEAD = 1 << 16  # octets read ahead of a client that does not wait for its replies
_QUANTUM = 96  # commands of a session that are done at a time; then others have their turn
_TURN = 0.001  # seconds that they may take, about
_SMALL = 8192  # octets of input for which the time is only guessed
_STEP = 1e-5  # seconds of a command in it
_SERVED = 5e-5  # seconds that count for others, if there is much input
_DELAY = 1.0  # seconds before the next command once half of the errors are used up
_READ = 3e-10  # seconds that the event loop takes to read an octet, about
_OPEN, _CLOSING, _ON = Phase.OPEN, Phase.CLOSING, Reading.ON  # quicker than by their enumerations


class Connection(asyncio.Protocol):
    """Reads lines and content, and writes replies; it has a session, which knows the commands."""

    def __init__(self, server: Server, listener: SmtpListener) -> None:
        self.transport: asyncio.Transport | None = None
        self.client = ""
        self.session_id = next(server.session_ids)
        """Its name in the log: each line about the connection has it."""
        self.listener = listener.label
        """The name of its listener."""
        self.unidentified = False
        """A proxy has not said who the client is: nothing is trusted because of its address."""
        self.busy = False
        """A command waits for something; the next ones wait for it."""
        self.blocked = False
        """The client does not read its replies."""
        self._server = server
        self.share = Share(self, server.scheduler, server.memory)
        """Its part of the process's time and memory."""
        self._input = b""  # read, and not yet worked through from _at on
        self._at = 0
        self._replies: list[str] = []
        self.reply: Callable[[str], None] = self._replies.append
        """Adds a reply; it leaves with the others as soon as there is nothing else to do."""
        self.reading = Reading.ON
        """Whether octets come from the client."""
        self._long = LongLine(self)
        self.delayed = False
        """The next command waits for a second."""
        self._task: asyncio.Task[None] | None = None  # that a command waits for
        self.session: SmtpSession
        """The meaning of the commands."""
        self.closing = Closing(self, server.config, server.loop)
        """How it comes to its end."""
        self.opening = Opening(self, server, listener)
        """How it begins, in plain text and in TLS."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet, or turn away a connection over the limit."""
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or self.opening.local
        if not peer:  # reset before it was accepted: it is unknown what it may relay
            self.closing.phase = Phase.CLOSING
            self.transport.abort()
            self.transport = None
            return
        self.opening.begin(peer)

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the session; a commit under way goes on."""
        if self.transport is None:
            return  # was aborted at once
        self.transport = None
        self.closing.cancel()
        self.opening.cancel(error)
        if self._task:
            self._task.cancel()
        self.forget()
        self.session.abandon()
        self.share.account()
        self._server.release(self)

    def data_received(self, data: bytes) -> None:
        """Take what the client sends."""
        if self.closing.phase is not _OPEN:
            if self.closing.phase is Phase.OPENING:
                self.opening.received(data)
            else:
                self.closing.discard(len(data))
            return
        share = self.share
        share.spent += len(data) * _READ
        self._input = self._input[self._at :] + data if self._input else data
        self._at = 0
        if len(data) > BULK and share.scheduler.flooded(len(data) * _READ):
            share.take_turns(self._server)
        if not (self.busy or self.blocked or share.queued):
            if share.spent < HEAVY:
                self.work()
                return
            if share.in_turn:
                share.in_turn = False
                share.scheduler.during(self.work)
                return
            share.queue()
        share.large = True
        share.account()
        if len(self._input) > _AHEAD:
            self.pause_reading()

    def eof_received(self) -> bool:
        """Answer what a client piped in before it closed its side; TLS has only one end."""
        if self.closing.phase in (Phase.OPENING, Phase.CLOSING):
            return False
        self.reading = Reading.ENDED
        if not self.waits:
            self.work()
        return self.transport is not None and self.transport.can_write_eof()

    def pause_writing(self) -> None:
        """Do no more commands: the client does not read."""
        self.blocked = True

    def resume_writing(self) -> None:
        """Go on: the client reads again."""
        self.blocked = False
        if not self.waits:
            self.work()

    def read_on(self) -> None:
        """Read from the client again."""
        if self.reading is not Reading.PAUSED or self.closing.phase is Phase.REFUSED:
            return
        if self.transport and not self.transport.is_closing():
            self.reading = Reading.ON
            self.transport.resume_reading()

    def pause_reading(self) -> None:
        """Read no more from the client for a while."""
        if self.transport and self.reading is Reading.ON:
            self.reading = Reading.PAUSED
            self.transport.pause_reading()

    @property
    def waits(self) -> bool:
        """Whether no command can be done now."""
        return self.busy or self.blocked or self.share.queued

    @property
    def octets(self) -> int:
        """Octets in memory: read ahead, and content of the transaction under way."""
        return len(self._input) - self._at + self.session.octets

    @property
    def pending(self) -> bool:
        """Whether there is something to do as soon as nothing is waited for."""
        return bool(self._input or self._replies) or self.reading is Reading.ENDED

    def work(self) -> None:
        """Do what has been read, until something has to be waited for; send the replies."""
        share, timed = self.share, len(self._input) > _SMALL
        began = time.perf_counter() if timed else 0.0
        left = _QUANTUM
        try:
            while self._at < len(self._input) and not (self.busy or self.blocked or self.delayed):
                if not (self.transport and self._step()):
                    break
                left -= 1
                if not left or (timed and not left & 7 and time.perf_counter() > began + _TURN):
                    share.queue()
                    break
        except Exception as error:
            self.closing.fail(error)
            return
        if self._at >= len(self._input):
            self._input, self._at = b"", 0
        if self.delayed and self.transport and not (self.busy or self.blocked):
            self.delayed = False
            self.suspend(asyncio.sleep(_DELAY))
        if left < _QUANTUM and self.closing.phase is _OPEN:
            self.closing.deadline = self._server.loop.time() + self.closing.timeout
        if self._replies and not (self.busy and self.session.holds_replies):
            self.flush()
        if share.large or share.held:
            share.account()
        spent = time.perf_counter() - began if timed else (_QUANTUM - left) * _STEP
        share.spent += spent
        if timed:
            share.scheduler.bulk += spent
            spent = _SERVED
        share.scheduler.spent += spent
        if self.reading is not _ON or share.spent >= HEAVY or share.large:
            self._next_read()

    def _next_read(self) -> None:
        """Let the client send on, at once or in a turn, if nothing is left to do."""
        if self.waits or self.closing.phase is not Phase.OPEN or not self.transport:
            return
        if self.reading is Reading.ENDED:
            self.closing.hang_up()
        elif self.session.collecting and self.share.heavy:
            self.pause_reading()  # one read in each turn
            self.share.queue()
        else:
            self.read_on()

    def _step(self) -> bool:
        """Do one line or one buffer of content; return False if the line has no end yet."""
        at, session = self._at, self.session
        if incoming := session.incoming:
            data = self._input[at:] if at else self._input
            rest = incoming.feed(data)
            self._at = 0
            if rest is None:
                self._input = b""
                if incoming.size > CHUNK_SIZE:
                    session.grown()
            else:
                self._input = rest
                session.acknowledgement.complete()
            return True
        end = self._input.find(b"\n", at)
        if end < 0:
            if len(self._input) - at > LINE or self._long.skipped:
                self._long.skip(len(self._input) - at)
            return False
        self._at = end + 1
        if self._long.skipped:
            self._long.skipped = 0
            session.reply(replies.LINE_TOO_LONG)
        else:
            session.line(self._input[at:end].rstrip(b"\r"))
        return True

    @property
    def unread(self) -> bool:
        """Whether there is input that has not been worked through."""
        return self._at < len(self._input)

    def forget(self) -> None:
        """Throw away what has been read."""
        self._input, self._at = b"", 0

    def secured(self, transport: asyncio.Transport) -> None:
        """Go on over TLS."""
        self.transport = transport
        self.reading = Reading.ON

    def suspend(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for a coroutine; the commands that follow wait for it."""
        self.busy = True
        self._task = task = self._server.loop.create_task(work)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return  # with the connection
        if isinstance(error := task.exception(), Exception):
            self.closing.fail(error)
        if task is self._task and not self.session.committing:
            self.resume()

    def resume(self, reply: str = "") -> None:
        """Go on after what a command has waited for, with its reply if there is one yet."""
        if self.closing.phase is not _OPEN:
            return  # only the end is waited for
        self.busy = False
        if reply:
            self._replies.append(reply)
        self.closing.deadline = self._server.loop.time() + self.closing.timeout
        share = self.share
        if self.blocked or share.queued or not self.transport:
            return
        if share.spent >= HEAVY:
            share.queue()
        elif self._input or self.delayed or share.held or self.reading is not _ON:
            self.work()
        else:
            self.flush()

    def flush(self) -> None:
        """Send the replies."""
        if self._replies and self.transport and self.closing.phase is not _CLOSING:
            self._replies.append("")
            self.transport.write("\r\n".join(self._replies).encode())
        self._replies.clear()
