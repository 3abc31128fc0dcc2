"""One connection: octets in, replies out, and its phase. The commands are the session's.

A connection does the commands of one read at once, and sends their replies in one write. Only a
command that has to wait for something makes the connection busy (docs/decisions/session.md).
"""

from __future__ import annotations

import asyncio
import fcntl
import termios
import time
from array import array
from collections.abc import Callable, Coroutine
from typing import Any, cast

from pgmta.accounts.mechanisms import MAX_LINE_OCTETS
from pgmta.logs import get
from pgmta.model import CHUNK_OCTETS
from smtpd.message.incoming import IncomingMessage
from smtpd.protocol import replies
from smtpd.server.server import Member, Server
from smtpd.session.closing import Closing
from smtpd.session.phase import Phase, Reading
from smtpd.session.share import Share

MAX_KEPT_LINE_OCTETS = 1 << 16  # a longer line is skipped up to its end
MAX_SKIPPED_LINE_OCTETS = 1 << 18  # a longer line makes smtpd hang up
MAX_READ_AHEAD_OCTETS = 1 << 16  # of a client that does not wait for its replies
BULK_OCTETS = 1 << 14  # a larger read may be part of a flood
MAX_UNTIMED_OCTETS = 8192  # the work for so little input is estimated, not measured
MAX_HOOK_OCTETS = 1 << 16  # a hook gets a message of this size even if memory is used up
TURN_COMMANDS = 96  # done in a row; then other sessions have their turn
TURN_S = 0.001  # the longest turn
HEAVY_S = 0.005  # after more work since its last accepted mail a connection takes turns
COUNTED_S = 1e-4  # the scheduler hears at once of so much work
ESTIMATED_COMMAND_S = 1e-5
ESTIMATED_OCTET_S = 3e-10  # for the event loop to read an octet
ERROR_PAUSE_S = 1.0
REFUSAL_DELAY_S = 1.0
# names of the module are found quicker than members of an enumeration
_OPENING, _IDLE, _CONTENT, _BUSY, _REFUSED, _CLOSING = Phase
_ON, _PAUSED, _ENDED = Reading

log = get("smtpd")

type LineReader = Callable[[bytes | None], None]
"""Takes a line without its line end; None is one that is too long."""


class Connection(asyncio.Protocol):
    """Owns the phase, the input and the replies; the parts above it only call its methods.

    Three functions serve it before there is a session and after: `begin` gets the address of the
    peer, `receive` the octets that come while the phase is OPENING, and `lost` the error with which
    the connection ended, if there is one.
    """

    # with more than 30 fields CPython gives each object a dictionary of its own, which is slower
    __slots__ = (
        "_abandon", "_at", "_begin", "_closing", "_command", "_complete", "_delayed", "_holds",
        "_in_content", "_input", "_large", "_longest", "_loop", "_lost", "_reader", "_receive",
        "_replies", "_server", "_share", "_skipped", "_spent", "_task", "_uncounted", "blocked",
        "client", "last_input", "listener", "member", "message", "phase", "reading", "reply",
        "session_id", "transport",
    )  # fmt: skip

    def __init__(
        self,
        server: Server,
        listener: str,
        *,
        begin: Callable[[Any], None],
        receive: Callable[[bytes], None],
        lost: Callable[[Exception | None], None],
    ) -> None:
        self.transport: asyncio.Transport | None = None
        self.phase = _OPENING
        self.reading = _ON
        """Whether octets come from the client."""
        self.blocked = False
        """The client does not read its replies."""
        self.client = ""
        """The client's address; nothing until a proxy has named it."""
        self.listener = listener
        """The name of the listener."""
        self.session_id = next(server.session_ids)
        """Its name in the log: each line about the connection has it."""
        self.message: IncomingMessage | None = None
        """The message under way, from DATA or its first chunk to the reply to its end."""
        self.last_input = server.loop.time()
        """When the last input was worked through, or a wait ended, by the loop's clock."""
        self.member = Member(self._hold_back, self.stop_if_idle)
        """What the server can ask of it."""
        self._server = server
        self._loop = server.loop
        self._begin, self._receive, self._lost = begin, receive, lost
        self._share = Share(server, self._take_turn, self._relieve)
        self._spent = 0.0  # seconds of work since the last accepted mail
        self._uncounted = 0.0  # seconds of work that the scheduler does not know yet
        self._large = False  # input or content may be large
        self._input = b""  # what was read; the octets from _at on are still to be worked through
        self._at = 0
        self._skipped = 0  # octets so far of a line that is too long, and is skipped up to its end
        self._in_content = False  # the client sends the content of the message, or of its chunk
        self._replies: list[str] = []
        self.reply: Callable[[str], None] = self._replies.append
        """Adds a reply; it leaves with the others as soon as there is nothing else to do."""
        self._delayed = False  # the next command waits for a pause
        self._task: asyncio.Task[None] | None = None  # the task for which a command waits
        self._closing: Closing | None = None
        self._command: LineReader
        self._reader: LineReader  # receives the next lines, of at most _longest octets
        self._longest = MAX_KEPT_LINE_OCTETS
        self._complete: Callable[[], None]
        self._abandon: Callable[[], None]
        self._holds: Callable[[float], bool] | None = None

    def begin_session(
        self,
        client: str,
        *,
        command: LineReader,
        complete: Callable[[], None],
        abandon: Callable[[], None],
        holds: Callable[[float], bool] | None,
    ) -> None:
        """Begin with a client, who is perhaps only a proxy.

        `command` gets each line, `complete` is called at the end of a content or a chunk, `abandon`
        at the end of the session. `holds` says, by the loop's clock, whether the replies so far
        leave together with one that is waited for.
        """
        self.client = client
        self._complete, self._abandon, self._holds = complete, abandon, holds
        self._command = command
        self.read_commands()

    def read_lines(self, reader: LineReader, longest: int = MAX_LINE_OCTETS) -> None:
        """Give the next lines to a reader, such as AUTH (RFC 4954), until `read_commands`."""
        self._reader, self._longest = reader, longest

    def read_commands(self) -> None:
        """Take the next lines for commands again."""
        self._reader, self._longest = self._command, MAX_KEPT_LINE_OCTETS

    # -- what the event loop calls --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet, or turn away a connection over the limit."""
        self.transport = cast(asyncio.Transport, transport)
        self._begin(transport.get_extra_info("peername"))

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the session; a commit under way goes on."""
        if self.transport is None:
            return  # the connection was aborted at once
        self.transport = None
        if self._closing:
            self._closing.cancel()
        self._lost(error)
        if self._task:
            self._task.cancel()
        self.forget()
        self._abandon()
        self._account()
        self._server.scheduler.count(self._uncounted, large=False)
        self._server.release(self.member)

    def data_received(self, data: bytes) -> None:
        """Take what the client sends."""
        phase, share = self.phase, self._share
        if phase is _OPENING:
            self._receive(data)
            return
        if phase is _CLOSING or phase is _REFUSED:
            if self._closing:
                self._closing.discard(len(data))
            return
        seconds = len(data) * ESTIMATED_OCTET_S
        self._spent += seconds
        self._input = self._input[self._at :] + data if self._input else data
        self._at = 0
        if len(data) > BULK_OCTETS and share.takes_turns(
            seconds, self.member, content=self._collecting
        ):
            self._spent = max(self._spent, HEAVY_S)
        if not (phase is _BUSY or self.blocked or share.queued):
            if self._spent < HEAVY_S:
                self.work()
                return
            if share.use_turn(self.work):
                return
            self._queue()
        self._large = True
        self._account()
        if len(self._input) > MAX_READ_AHEAD_OCTETS:
            self.pause_reading()

    def eof_received(self) -> bool:
        """Answer what a client piped in before it closed its side; TLS has only one end."""
        if self.phase is _OPENING or self.phase is _CLOSING:
            return False
        self.reading = _ENDED
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

    # -- input --

    def work(self) -> None:
        """Do what has been read, until something has to be waited for; send the replies."""
        share, timed = self._share, len(self._input) > MAX_UNTIMED_OCTETS
        began = time.perf_counter() if timed else 0.0
        left = TURN_COMMANDS
        try:
            while self._at < len(self._input) and not (self.blocked or self._delayed):
                if not (self.transport and self._step()):
                    break
                left -= 1
                if not left or (timed and not left & 7 and time.perf_counter() > began + TURN_S):
                    self._queue()
                    break
        except Exception as error:
            self.fail(error)
            return
        if self._at >= len(self._input):
            self._input, self._at = b"", 0
        if self._delayed and self.transport and self.takes_input and not self.blocked:
            self._delayed = False
            self.suspend(asyncio.sleep(ERROR_PAUSE_S))
        if left < TURN_COMMANDS:
            self.last_input = self._loop.time()
        if self._replies and not (
            self.phase is _BUSY and self._holds and self._holds(self._loop.time())
        ):
            self.flush()
        if self._large or share.held:
            self._account()
        if timed:
            seconds = time.perf_counter() - began
            self._server.scheduler.count(seconds, large=True)
        else:
            seconds = (TURN_COMMANDS - left) * ESTIMATED_COMMAND_S
            self._uncounted += seconds
            if self._uncounted > COUNTED_S:
                self._server.scheduler.count(self._uncounted, large=False)
                self._uncounted = 0.0
        self._spent += seconds
        if self.reading is not _ON or self._large or self._spent >= HEAVY_S:
            self._next_read()

    def _step(self) -> bool:
        """Do one line or one buffer of content; return False if there is no more to do now."""
        at = self._at
        if self.phase is _CONTENT:
            message = self.message
            assert message  # noqa: S101 - the phase says so
            rest = message.feed_octets(self._input[at:] if at else self._input)
            self._input, self._at = rest or b"", 0
            if message.large:
                self._large = True
            if rest is not None:
                self._complete()
            elif message.size > CHUNK_OCTETS:
                self._look_after(message)
            return True
        if self.phase is not _IDLE:
            return False
        end = self._input.find(b"\n", at)
        if end < 0:
            octets = len(self._input) - at
            if octets > MAX_KEPT_LINE_OCTETS or self._skipped:
                self._skip(octets)
            return False
        self._at = end + 1
        line = self._input[at:end].rstrip(b"\r")
        if self._skipped or len(line) > self._longest:
            self._skipped = 0
            self._reader(None)
        else:
            self._reader(line)
        return True

    def _skip(self, octets: int) -> None:
        """Throw away the octets that have been read of a line that is too long.

        There is a pause for each 64 KB. One for each read would delay the refusal.
        """
        self.forget()
        before, self._skipped = self._skipped, self._skipped + octets
        if self._skipped > MAX_SKIPPED_LINE_OCTETS:
            self.refuse(replies.LINE_WITHOUT_END)
        elif self._skipped // MAX_KEPT_LINE_OCTETS > before // MAX_KEPT_LINE_OCTETS:
            self.suspend(asyncio.sleep(ERROR_PAUSE_S))

    def delay(self) -> None:
        """Let the next command wait for a second."""
        self._delayed = True

    @property
    def unread(self) -> bool:
        """Whether there is input that has not been worked through."""
        return self._at < len(self._input)

    def kernel_octets(self) -> int:
        """Return the octets that the kernel has for this connection."""
        transport = self.transport
        socket = transport.get_extra_info("socket") if transport else None
        if not transport or not socket or transport.is_closing():
            return 0
        count = array("i", [0])
        fcntl.ioctl(socket, termios.FIONREAD, count)
        return count[0]

    def forget(self) -> None:
        """Throw away what has been read."""
        self._input, self._at = b"", 0

    def pause_reading(self) -> None:
        """Read no more from the client for a while."""
        if self.transport and self.reading is _ON:
            self.reading = _PAUSED
            self.transport.pause_reading()

    def read_on(self) -> None:
        """Read from the client again."""
        if self.reading is not _PAUSED or self.phase is _REFUSED:
            return
        if self.transport and not self.transport.is_closing():
            self.reading = _ON
            self.transport.resume_reading()

    # -- its share of the process's time and memory --

    def _queue(self) -> None:
        """Queue the next turn, unless something is waited for."""
        if self.takes_input:
            self._share.queue(content=self._collecting)

    def _take_turn(self) -> None:
        """Do some more commands, or let the next content come."""
        if self._pending and self.takes_input and not self.blocked:
            self.work()
        elif self._share.held:
            self._account()
        if not self.waits:
            self._share.lead_read(content=self._collecting)
            self.read_on()

    def _hold_back(self) -> None:
        """Read the next content in a turn, if there is much: all content comes too fast."""
        if self._collecting and not self.waits and self.kernel_octets() > BULK_OCTETS:
            self.pause_reading()
            self._queue()
            self._spent = max(self._spent, HEAVY_S)

    def _next_read(self) -> None:
        """Let the client send on, at once or in a turn, if nothing is left to do."""
        if self.waits or not self.transport:
            return
        if self.reading is _ENDED:
            self.hang_up()
        elif self._collecting and (
            self._spent >= HEAVY_S or (self._server.memory.scarce and self._large)
        ):
            self.pause_reading()  # until the next turn, which is one read
            self._queue()
        else:
            self.read_on()

    def _account(self) -> None:
        """Count the octets in memory: read ahead, and content of the message under way."""
        octets = self.message.octets if self.message else 0
        self._share.hold(len(self._input) - self._at + octets)

    def _relieve(self) -> bool:
        """Read no more from the client until its content is in the database.

        False if there is too little of it.
        """
        if self.takes_input and not self._write_ahead():
            return False
        self.pause_reading()
        return True

    def _write_ahead(self) -> bool:
        """Begin to write content in memory into the database; False if there is too little.

        Content for a hook stays in memory, because the hook gets all of it (`_look_after` refuses
        it).
        """
        message = self.message
        if not message or message.whole or message.content.collected < CHUNK_OCTETS:
            return False
        if not message.header_ended:
            return False
        self.suspend(message.store(CHUNK_OCTETS))
        return True

    @property
    def _collecting(self) -> bool:
        """Whether the client sends content that may still become a message."""
        return self._in_content and self.message is not None and not self.message.refused

    @property
    def _pending(self) -> bool:
        """Whether there is something to do as soon as nothing is waited for."""
        return bool(self._input or self._replies) or self.reading is _ENDED

    @property
    def waits_for_client(self) -> bool:
        """Whether smtpd has done all that the client has sent."""
        if not self.takes_input or self._share.queued:
            return False
        return not (self._pending or self.kernel_octets())

    # -- phases --

    @property
    def takes_input(self) -> bool:
        """Whether input is worked through: nothing is waited for."""
        return self.phase is _IDLE or self.phase is _CONTENT

    @property
    def waits(self) -> bool:
        """Whether no command can be done now."""
        return self.blocked or self._share.queued or not self.takes_input

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

    def begin_content(self, message: IncomingMessage) -> None:
        """Take content of this message, from the next octet on."""
        self.message, self._in_content = message, True
        self.phase = _CONTENT

    def replace_content(self, message: IncomingMessage) -> None:
        """Go on with a message that has other content."""
        self.message = message

    def end_chunk(self) -> None:
        """Take commands again; the content of the message goes on with the next chunk."""
        if self.message:
            self._look_after(self.message)
        message = self.message
        self.end_content()
        self.message = message

    def end_content(self) -> None:
        """Take commands again, unless something is waited for; the message is over."""
        self.message = None
        self._in_content = self._large = False
        if self.phase is _CONTENT:
            self.phase = _IDLE

    def _look_after(self, message: IncomingMessage) -> None:
        """Look after content that has grown, and whose end has not come."""
        if message.full:
            self.suspend(message.store())
        elif message.whole and self._server.memory.over and message.size > MAX_HOOK_OCTETS:
            message.give_up()
        elif message.octets_left < 0:
            self.refuse(replies.TOO_LARGE.format(self._server.config.limits.message_size))

    @property
    def content_size(self) -> int | None:
        """Octets of the content that the client sends, None if it sends none."""
        return self.message.size if self._in_content and self.message else None

    def begin_wait(self) -> None:
        """Do no more commands until `resume`, or until the next `suspend` has ended."""
        self._task = None
        if self.phase is _IDLE or self.phase is _CONTENT:
            self.phase = _BUSY

    def suspend(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for a coroutine; the commands that follow wait for it."""
        self.begin_wait()
        self._task = task = self._loop.create_task(work)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return  # the connection ended meanwhile
        if isinstance(error := task.exception(), Exception):
            self.fail(error)
        if task is self._task:
            self.resume()

    def resume(self, reply: str = "", *, accepted: bool = False) -> None:
        """Go on after a wait, with a reply if there is one; `accepted` mail makes up for work.

        If a coroutine is waited for, its end does that.
        """
        if accepted:
            self._spent, self._large = 0.0, False
        if self.phase is _BUSY:
            if self._task and not self._task.done():
                return
            self.phase = _CONTENT if self._in_content else _IDLE
        elif not self.takes_input:
            return  # the session is opening, or only its end is waited for
        if reply:
            self._replies.append(reply)
        self.last_input = self._loop.time()
        share = self._share
        if self.blocked or share.queued or not self.transport:
            return
        if self._spent >= HEAVY_S:
            self._queue()
        elif self._input or self._delayed or share.held or self.reading is not _ON:
            self.work()
        else:
            self.flush()

    # -- replies and the end --

    def flush(self) -> None:
        """Send the replies."""
        if self._replies and self.transport and self.phase is not _CLOSING:
            self._replies.append("")
            self.transport.write("\r\n".join(self._replies).encode())
        self._replies.clear()

    @property
    def log_values(self) -> dict[str, str]:
        """The client, the listener and the session, for the log."""
        return {"client": self.client, "listener": self.listener, "session": self.session_id}

    def refuse(self, reply: str) -> None:
        """Hang up on a client that is over a limit.

        It waits a second for that, because most clients connect again at once.
        """
        if self.phase is _REFUSED or self.phase is _CLOSING:
            return
        self.pause_reading()
        self.phase = _REFUSED
        self._abandon()
        self.forget()
        self.flush()
        self.suspend(self._refuse(reply))

    async def _refuse(self, reply: str) -> None:
        await asyncio.sleep(REFUSAL_DELAY_S)
        self.end(reply, linger=True)

    def end(self, reply: str, *, linger: bool) -> None:
        """Hang up with the last reply because of a limit; log it."""
        text = reply.format(self._server.hostname)
        log.info("session ended by a limit", **self.log_values, reply=text)
        self.reply(text)
        self.hang_up(linger=linger)

    def fail(self, error: Exception) -> None:
        """Hang up after an error of this program: part of a message may have got lost by it."""
        log.error("error in a session", **self.log_values, exc_info=error)
        self.reply(replies.INTERNAL)
        self.hang_up()

    def stop_if_idle(self) -> None:
        """Hang up if no transaction is cut off by it: the process stops."""
        if self.phase is _OPENING:
            self.hang_up()
        elif (
            self.phase is not _REFUSED
            and self.phase is not _CLOSING
            and (self.transport and not self.message)
        ):
            self.reply(replies.SHUTTING_DOWN.format(self._server.hostname))
            self.hang_up(linger=self.unread)

    def drop(self) -> None:
        """Break the connection off before it has begun."""
        transport, self.transport = self.transport, None
        self.phase = _CLOSING
        if transport:
            transport.abort()

    def turn_away(self) -> None:
        """Throw away what the client sends: the connection is one too many."""
        self.phase = _CLOSING
        if self.transport:
            self._closing = Closing(self._loop, self.transport)

    def hang_up(self, *, linger: bool = True) -> None:
        """Send the replies and close the socket.

        The kernel resets a socket that is closed while octets are unread, and the client may lose
        the last reply. So only our side is closed, and reading goes on until the client closes too.
        `linger` says that there may be such octets. TLS reads on by itself until the client has
        confirmed the end. While TLS begins, nothing can be said.
        """
        transport = self.transport
        if self.phase is _OPENING and transport:
            transport.abort()
            return
        self.flush()
        self.forget()
        if not transport or self.phase is _CLOSING:
            return
        self.phase = _CLOSING
        self._abandon()
        self._account()
        self._closing = Closing(self._loop, transport)
        self._closing.begin(self._server.config.limits.timeout)
        if linger and self.reading is not _ENDED and transport.can_write_eof():
            transport.write_eof()
            self.read_on()
        else:
            transport.close()
