"""One connection: octets in, replies out, and its phase. The commands are the session's.

A connection does the commands of one read at once, and sends their replies in one write. Only a
command that has to wait for something makes the connection busy (docs/decisions/session.md).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, cast

from pgmta.model import CHUNK_SIZE
from smtpd.commands.listener import SmtpListener
from smtpd.hooks.phases import Phases
from smtpd.protocol import replies
from smtpd.server.server import Member, Server
from smtpd.session.closing import Closing
from smtpd.session.opening import Opening
from smtpd.session.phase import Phase, Reading
from smtpd.session.session import LmtpSession, SmtpSession
from smtpd.session.share import BULK, HEAVY, Share

_LINE = 1 << 16  # octets of a line that are kept; a longer one is skipped up to its end
_SKIP = 1 << 18  # octets of a line that are skipped until smtpd hangs up
_AHEAD = 1 << 16  # octets read ahead of a client that does not wait for its replies
_QUANTUM = 96  # commands of a session that are done at a time; then others have their turn
_TURN = 0.001  # seconds that they may take, about
_SMALL = 8192  # octets of input for which the time is only guessed
_COMMAND_COST = 1e-5  # seconds of a command in it
_READ = 3e-10  # seconds that the event loop takes to read an octet, about
_DELAY = 1.0  # seconds of a pause for errors
_OPENING, _IDLE, _CONTENT, _BUSY, _REFUSED, _CLOSING = Phase  # quicker than by the enumeration
_ON = Reading.ON


class Connection(asyncio.Protocol):
    """Reads lines and content, and writes replies; it has a session, which knows the commands."""

    def __init__(self, server: Server, listener: SmtpListener, hooks: Phases | None = None) -> None:
        self.transport: asyncio.Transport | None = None
        self.phase = _OPENING
        self.client = ""
        self.session_id = next(server.session_ids)
        """Its name in the log: each line about the connection has it."""
        self.listener = listener.label  # the name
        self.unidentified = False
        """A proxy has not said who the client is: nothing is trusted because of its address."""
        self.blocked = False
        """The client does not read its replies."""
        self._server = server
        self.share = Share(self, server)
        """Its part of the process's time and memory."""
        self.spent = 0.0
        """Seconds of work since the last accepted mail."""
        self.large = False
        """Input or content may be more than a little."""
        self.last_input = server.loop.time()
        """When the last input was worked through, or a wait ended, by the loop's clock."""
        self._input = b""  # read, and not yet worked through from _at on
        self._at = 0
        self._skipped = 0  # octets so far of a line that is too long; its rest is skipped too
        self._replies: list[str] = []
        self.reply: Callable[[str], None] = self._replies.append
        """Adds a reply; it leaves with the others as soon as there is nothing else to do."""
        self.reading = _ON
        """Whether octets come from the client."""
        self._delayed = False  # the next command waits for a second
        self._task: asyncio.Task[None] | None = None  # that a command waits for
        self.closing = Closing(self, server)
        """How it comes to its end."""
        self.member = Member(self._hold_back, self.closing.stop_if_idle)
        self.opening = Opening(self, server, listener)
        """How it begins, in plain text and in TLS."""
        kind = LmtpSession if listener.protocol == "lmtp" else SmtpSession
        self._make_session = partial(kind, server, listener, hooks or Phases(), self)
        self.session: SmtpSession
        """The meaning of the commands."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet, or turn away a connection over the limit."""
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or self.opening.local
        if peer:
            self.opening.begin_connection(peer)
        else:  # reset before it was accepted: it is unknown what it may relay
            self.turn_away()
            self.transport.abort()
            self.transport = None

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
        self._server.release(self.member)

    def data_received(self, data: bytes) -> None:
        """Take what the client sends."""
        phase, share = self.phase, self.share
        if phase is _OPENING:
            self.opening.received(data)
            return
        if phase is _CLOSING or phase is _REFUSED:
            self.closing.discard(len(data))
            return
        self.spent += len(data) * _READ
        self._input = self._input[self._at :] + data if self._input else data
        self._at = 0
        if len(data) > BULK and share.takes_turns(len(data) * _READ):
            self.spent = max(self.spent, HEAVY)
        if not (phase is _BUSY or self.blocked or share.queued):
            if self.spent < HEAVY:
                self.work()
                return
            if share.use_turn():
                return
            share.queue()
        self.large = True
        share.account()
        if len(self._input) > _AHEAD:
            self.pause_reading()

    def _hold_back(self) -> None:
        """Read the next content in a turn: all content comes too fast."""
        if self.share.hold_back():
            self.spent = max(self.spent, HEAVY)

    def eof_received(self) -> bool:
        """Answer what a client piped in before it closed its side; TLS has only one end."""
        if self.phase is _OPENING or self.phase is _CLOSING:
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
        if self.reading is not Reading.PAUSED or self.phase is _REFUSED:
            return
        if self.transport and not self.transport.is_closing():
            self.reading = _ON
            self.transport.resume_reading()

    def pause_reading(self) -> None:
        """Read no more from the client for a while."""
        if self.transport and self.reading is _ON:
            self.reading = Reading.PAUSED
            self.transport.pause_reading()

    @property
    def takes_input(self) -> bool:
        """Whether input is worked through: nothing is waited for."""
        return self.phase is _IDLE or self.phase is _CONTENT

    @property
    def waits(self) -> bool:
        """Whether no command can be done now."""
        return self.blocked or self.share.queued or not self.takes_input

    def begin_session(self, client: str, peer: Any, *, unidentified: bool) -> SmtpSession:
        """Begin with a client, who is perhaps only a proxy; return the session."""
        self.client, self.unidentified = client, unidentified
        self.session = self._make_session(peer)
        return self.session

    def turn_away(self) -> None:
        """Throw away what the client sends: the connection is one too many."""
        self.phase = _CLOSING

    def begin_opening(self) -> None:
        """Take no commands until `end_opening`."""
        self.phase = _OPENING

    def end_opening(self, early: bytes) -> None:
        """Take commands: those behind XCLIENT, then `early` ones; a task that opens ends before."""
        self.phase = _BUSY if self._task and not self._task.done() else _IDLE
        self.read_on()
        if early or self.unread:
            self.data_received(early)

    def secured(self, transport: asyncio.Transport) -> None:
        """Go on over TLS."""
        self.transport = transport
        self.reading = _ON
        self.closing.expect_hello()

    def begin_content(self) -> None:
        """Take the content of a message, from the next octet on."""
        self.phase = _CONTENT

    def end_content(self) -> None:
        """Take commands again, unless something is waited for."""
        self.large = False
        if self.phase is _CONTENT:
            self.phase = _IDLE

    def begin_wait(self) -> None:
        """Do no more commands until `resume`, or until the next `suspend` has ended."""
        self._task = None
        if self.phase is _IDLE or self.phase is _CONTENT:
            self.phase = _BUSY

    def suspend(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for a coroutine; the commands that follow wait for it."""
        self.begin_wait()
        self._task = task = self._server.loop.create_task(work)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return  # with the connection
        if isinstance(error := task.exception(), Exception):
            self.closing.fail(error)
        if task is self._task:
            self.resume()

    def resume(self, reply: str = "", *, accepted: bool = False) -> None:
        """Go on after a wait, with a reply if there is one; `accepted` mail makes up for work.

        If a coroutine is waited for, its end does that.
        """
        if accepted:
            self.spent, self.large = 0.0, False
        if self.phase is _BUSY:
            if self._task and not self._task.done():
                return
            self.phase = _CONTENT if self.session.reception.incoming else _IDLE
        elif not self.takes_input:
            return  # it opens, or only the end is waited for
        if reply:
            self._replies.append(reply)
        self.last_input = self._server.loop.time()
        share = self.share
        if self.blocked or share.queued or not self.transport:
            return
        if self.spent >= HEAVY:
            share.queue()
        elif self._input or self._delayed or share.held or self.reading is not _ON:
            self.work()
        else:
            self.flush()

    def begin_refusal(self) -> bool:
        """Take nothing more, before the last reply; return False if the end has begun already."""
        if self.phase is _REFUSED or self.phase is _CLOSING:
            return False
        self.pause_reading()
        self.phase = _REFUSED
        self.session.abandon()
        self.forget()
        self.flush()
        return True

    def begin_closing(self) -> bool:
        """Send the replies, and throw away what still comes; return False if that has begun."""
        self.flush()
        self.forget()
        if not self.transport or self.phase is _CLOSING:
            return False
        self.phase = _CLOSING
        self.session.abandon()
        self.share.account()
        return True

    def count_login(self, result: str) -> None:
        """Count a login that ended: ok, failed or unavailable."""
        self._server.figures.count_login(result)

    def delay(self) -> None:
        """Let the next command wait for a second."""
        self._delayed = True

    def work(self) -> None:
        """Do what has been read, until something has to be waited for; send the replies."""
        share, timed = self.share, len(self._input) > _SMALL
        began = time.perf_counter() if timed else 0.0
        left = _QUANTUM
        try:
            while self._at < len(self._input) and not (self.blocked or self._delayed):
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
        if self._delayed and self.transport and self.takes_input and not self.blocked:
            self._delayed = False
            self.suspend(asyncio.sleep(_DELAY))
        if left < _QUANTUM:
            self.last_input = self._server.loop.time()
        if self._replies and not (self.phase is _BUSY and self.session.holds_replies):
            self.flush()
        if self.large or share.held:
            share.account()
        seconds = time.perf_counter() - began if timed else (_QUANTUM - left) * _COMMAND_COST
        self.spent += seconds
        self._server.scheduler.count(seconds, large=timed)
        if self.reading is not _ON or self.large or self.spent >= HEAVY:
            share.next_read()

    def _step(self) -> bool:
        """Do one line or one buffer of content; return False if there is no more to do now."""
        at = self._at
        if self.phase is _CONTENT:
            incoming = self.session.reception.incoming
            assert incoming  # noqa: S101 - the phase says so
            rest = incoming.feed_octets(self._input[at:] if at else self._input)
            self._input, self._at = rest or b"", 0
            if incoming.large:
                self.large = True
            if rest is not None:
                self.session.reception.complete()
            elif incoming.size > CHUNK_SIZE:
                self.session.reception.grown()
            return True
        if self.phase is not _IDLE:
            return False
        end = self._input.find(b"\n", at)
        if end < 0:
            octets = len(self._input) - at
            if octets > _LINE or self._skipped:
                self._skip(octets)
            return False
        self._at = end + 1
        if self._skipped:
            self._skipped = 0
            self.session.skipped_line()
        else:
            self.session.line(self._input[at:end].rstrip(b"\r"))
        return True

    def _skip(self, octets: int) -> None:
        """Throw away the octets that have been read of a line that is too long.

        There is a pause for each 64 KB. One for each read would delay the refusal.
        """
        self.forget()
        before, self._skipped = self._skipped, self._skipped + octets
        if self._skipped > _SKIP:
            self.closing.refuse(replies.LINE_WITHOUT_END)
        elif self._skipped // _LINE > before // _LINE:
            self.suspend(asyncio.sleep(_DELAY))

    @property
    def unread(self) -> bool:
        """Whether there is input that has not been worked through."""
        return self._at < len(self._input)

    def forget(self) -> None:
        """Throw away what has been read."""
        self._input, self._at = b"", 0

    @property
    def log_values(self) -> dict[str, str]:
        """The client, the listener and the session, for the log."""
        return {"client": self.client, "listener": self.listener, "session": self.session_id}

    @property
    def octets(self) -> int:
        """Octets in memory: read ahead, and content of the transaction under way."""
        return len(self._input) - self._at + self.session.reception.octets

    @property
    def pending(self) -> bool:
        """Whether there is something to do as soon as nothing is waited for."""
        return bool(self._input or self._replies) or self.reading is Reading.ENDED

    def flush(self) -> None:
        """Send the replies."""
        if self._replies and self.transport and self.phase is not _CLOSING:
            self._replies.append("")
            self.transport.write("\r\n".join(self._replies).encode())
        self._replies.clear()
