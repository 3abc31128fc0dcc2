"""One connection: command lines in, replies out, on top of aiosmtpd.

aiosmtpd gives each connection a task, and each command a few turns of the event loop and a timer.
Here commands are worked through as they come, their replies leave in one piece, and only what has
to wait for something else makes the connection busy (docs/decisions/0011).
"""

from __future__ import annotations

import asyncio
import fcntl
import termios
import time
from array import array
from collections.abc import Coroutine
from typing import Any, Self, cast

from pgmta.logs import get
from smtpd import replies
from smtpd.ending import Ending
from smtpd.front import Front
from smtpd.tally import HTTP, Tally, Verdict

log = get("smtpd")

_LINE = 1 << 16  # octets of a line that are kept; a longer one is skipped up to its end
_SKIP = 1 << 18  # octets of a line that are skipped until we hang up
_AHEAD = 1 << 16  # octets read ahead of a client that does not wait for its replies
_QUANTUM = 96  # commands of a session that are done at a time; then others have their turn
_TURN = 0.001  # seconds that they may take, about
_SMALL = 8192  # octets of input for which the time is only guessed
_STEP = 1e-5  # seconds of a command in it
_SERVED = 5e-5  # seconds that count for others, where there is much input
_BULK = 1 << 14  # octets of one read, above which it counts as one of many octets
_HEAVY = 0.005  # seconds for a session since its last mail, after which it always takes turns
_DELAY = 1.0  # seconds before the next command once half of the errors are used up
_READ = 3e-10  # seconds that the event loop takes to read an octet, about


class Connection(Ending):
    """Reads lines and writes replies; what the commands mean is the Dialogue's.

    One is made by aiosmtpd's constructor for each listener, and `fresh` copies it for every
    connection: the constructor looks for methods and hooks by reflection, which takes longer than
    a message.
    """

    def __init__(self, front: Front, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(front, loop)
        self._front = front
        self._memory = front.memory
        self._scheduler = front.scheduler(loop)
        self._skipped = 0  # octets of an overlong line whose rest is skipped
        self._queued = False  # others have their turn before the next command
        self._spent = 0.0  # seconds of work since the last accepted mail
        self._large = False  # input or content may be more than a little
        self._reads = False  # the next read belongs to a turn
        self._delayed = False  # the next command is to wait for a while
        self._tally: Tally
        self.held = 0

    def fresh(self) -> Self:
        """Return a connection like this one, to be given to a transport."""
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        new._replies = []
        new._tally = Tally(self._limits)
        return new

    # -- the transport's side --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet, or turn away what is over the limit."""
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if not peer:  # reset before it was accepted: nobody knows what it may relay
            self.transport.abort()
            self.transport = None
            return
        self.client = str(peer[0])
        refusal = self._front.enter(self)
        if refusal:
            self._closing = True  # what it says meanwhile is thrown away
            self._front.turn_away(self.transport, f"{refusal.format(self.hostname)}\r\n".encode())
            return
        self.session = self._create_session()
        self.session.peer = peer
        self._set_rset_state()  # type: ignore[no-untyped-call]
        self._touch()
        self._rearm(min(self._timeout_duration, self._limits.data_time))
        self.transport.write(f"220 {self.hostname} {self.__ident__}\r\n".encode())

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the session; a commit under way goes on."""
        if self.transport is None:
            return  # was aborted at once
        self.transport = None
        if self._timeout_handle:
            self._timeout_handle.cancel()
        if self._handler_coroutine:
            self._handler_coroutine.cancel()
        self._input, self._at = b"", 0
        self.abandon()
        self._account()
        self._front.leave(self)

    def data_received(self, data: bytes) -> None:
        """Take what the client sends."""
        if self._closing:
            self._discard(len(data))
            return
        self._spent += len(data) * _READ
        self._input = self._input[self._at :] + data if self._input else data
        self._at = 0
        if len(data) > _BULK and self._scheduler.flooded(len(data) * _READ):
            self._take_turns()
        if not (self._busy or self._blocked or self._queued):
            if self._spent < _HEAVY:
                self.work()
                return
            if self._reads:
                self._reads = False
                self._scheduler.during(self.work)
                return
            self._queue()
        self._large = True
        self._account()
        if len(self._input) > _AHEAD:
            self._pause()

    def eof_received(self) -> bool:
        """Answer what a client piped in before it closed its side."""
        if self._closing:
            return False
        self._ended = True
        if not self._waits:
            self.work()
        return True

    def pause_writing(self) -> None:
        """The client does not read: do no more of its commands."""
        self._blocked = True

    def resume_writing(self) -> None:
        """The client reads again."""
        self._blocked = False
        if not self._waits:
            self.work()

    @property
    def _waits(self) -> bool:
        """Whether no command can be done now."""
        return self._busy or self._blocked or self._queued

    def _queue(self) -> None:
        """Let others have their turn; who waits for something lets them anyway."""
        if not (self._busy or self._queued or self._closing):
            self._queued = True
            self._scheduler.add(self, content=self.wanted())

    def hold_back(self) -> None:
        """Read the next content in a turn, if there is much: others wait for that of all."""
        if self.wanted() and not self._waits and self._unread() > _BULK:
            self._spent = max(self._spent, _HEAVY)
            self._pause()
            self._queue()

    def _unread(self) -> int:
        """Octets that the kernel has for us."""
        if not self.transport or self.transport.is_closing():
            return 0
        count = array("i", [0])
        fcntl.ioctl(self.transport.get_extra_info("socket"), termios.FIONREAD, count)
        return count[0]

    def _take_turns(self) -> None:
        """The content of this session is part of a flood: read it in turns from now on."""
        if self.wanted():
            if self._scheduler.sweep():
                self._front.hold_back(self)
            self._spent = max(self._spent, _HEAVY)
            self._reads = True

    def work(self) -> None:
        """Do what has been read, until something has to be waited for; send the replies."""
        timed = len(self._input) > _SMALL
        began = time.perf_counter() if timed else 0.0
        left = _QUANTUM
        try:
            while self.transport and not (self._busy or self._blocked):
                if self._delayed:
                    self._delayed = False
                    self.aside(asyncio.sleep(_DELAY))
                    break
                if not self._step():
                    break
                left -= 1
                if not left or (timed and not left & 7 and time.perf_counter() > began + _TURN):
                    self._queue()
                    break
        except Exception as error:
            self._fail(error)
            return
        if left < _QUANTUM:
            self._touch()
        if self._replies:
            self._flush()
        if self._large or self.held:
            self._account()
        spent = time.perf_counter() - began if timed else (_QUANTUM - left) * _STEP
        self._spent += spent
        if timed:
            self._scheduler.bulk += spent
            spent = _SERVED
        self._scheduler.spent += spent
        if self._waits or self._closing or not self.transport:
            return
        if self._ended:
            self.hang_up()
        elif self.wanted() and (self._spent >= _HEAVY or (self._memory.scarce and self._large)):
            self._pause()  # one read in each turn
            self._queue()
        elif self._paused:
            self._read_on()

    def turn(self) -> None:
        """Do some more commands, or let the next content come."""
        self._queued = False
        if (self._input or self._ended or self._replies) and not (self._busy or self._blocked):
            self.work()
        elif self.held:
            self._account()
        if not self._waits:
            self._reads = self.wanted()
            self._read_on()

    def relieve(self) -> bool:
        """Read no more from the client until its content stands in the database.

        False where there is too little of it.
        """
        if self._closing or not (self._busy or (self.held and self.write_ahead())):
            return False
        self._pause()
        return True

    def _account(self) -> None:
        held = len(self._input) - self._at + self.octets()
        if held != self.held:
            change, self.held = held - self.held, held
            self._memory.change(change)

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
            if len(self._input) - at > _LINE or self._skipped:
                self._skipped += len(self._input) - at
                self._input, self._at = b"", 0
                if self._skipped > _SKIP:
                    self.refuse(replies.LINE_WITHOUT_END)
                else:
                    self.aside(asyncio.sleep(_DELAY))
            return False
        self._at = end + 1
        if self._skipped:
            self._skipped = 0
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
        if word.upper() in HTTP:
            self.refuse(replies.NOT_HTTP)
        elif self._tally.unknown() is Verdict.END:
            self.refuse(replies.TOO_MANY_UNKNOWN)
        else:
            self.say(replies.UNKNOWN_COMMAND)

    def say(self, reply: str) -> None:
        """Reply; it leaves with the others as soon as there is nothing else to do."""
        self._replies.append(reply)
        if reply[0] == "5":
            self.judge(self._tally.error())

    def judge(self, verdict: Verdict) -> None:
        """Do what follows from an error."""
        if verdict is Verdict.END:
            self.refuse(replies.TOO_MANY_ERRORS)
        elif verdict is Verdict.DELAY:
            self._delayed = True

    def aside(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for a coroutine; the commands that follow wait for it."""
        self._busy = True
        self._handler_coroutine = task = self.loop.create_task(work)
        task.add_done_callback(self._came)

    def _came(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return  # with the connection
        error = task.exception()
        if isinstance(error, Exception):
            self._fail(error)
        self.resume()

    def resume(self) -> None:
        """What `aside` or a commit was waiting for has come."""
        if self._refused:
            return  # only the end is waited for
        self._busy = False
        self._touch()
        if self._waits or not self.transport:
            return
        if self._spent < _HEAVY:
            self.work()
        else:
            self._queue()
