"""The content of one message, from its first octet until it is committed or discarded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

from pgmta.logs import get
from pgmta.model import CHUNK_SIZE, NewMessage
from pgmta.store.queue.enqueue import chunk_count

log = get("ingest")

_SMALL = 512  # octets of a buffer that is joined with others: an object each would cost more

DoneCallback = Callable[[Exception | None], None]
"""Receives None when something is done, or the error because of which it is not."""


class State(StrEnum):
    """States of a content; docs/states.md has the transitions."""

    MEMORY = "memory"  # all of it is in memory
    WRITING = "writing"  # a part is on its way into the database, ahead of the message
    WRITTEN = "written"  # its full parts so far are in the database, without a message
    FAILED = "failed"  # a part could not be written; some chunks may be in the database
    WAITING = "waiting"  # complete; it waits for its group commit
    COMMITTING = "committing"  # the statement that stores its message is under way
    UNDECIDED = "undecided"  # the same, and the client got 451 meanwhile
    COMMITTED = "committed"  # it belongs to a stored message
    DISCARDED = "discarded"  # no message; its chunks are removed


TRANSITIONS = {
    State.MEMORY: {State.WRITING, State.FAILED, State.WAITING, State.DISCARDED},
    State.WRITING: {State.WRITTEN, State.FAILED, State.WAITING, State.DISCARDED},
    State.WRITTEN: {State.WRITING, State.FAILED, State.WAITING, State.DISCARDED},
    State.FAILED: {State.DISCARDED},
    State.WAITING: {State.COMMITTING, State.DISCARDED},
    State.COMMITTING: {State.UNDECIDED, State.COMMITTED, State.DISCARDED},
    State.UNDECIDED: {State.COMMITTED, State.DISCARDED},
    State.COMMITTED: set[State](),
    State.DISCARDED: set[State](),
}
"""Which states follow each; the tests of smtpd check every change against it."""

_BEFORE_COMMIT = frozenset(
    (State.MEMORY, State.WRITING, State.WRITTEN, State.FAILED, State.WAITING)
)
# quicker than by their enumeration
_MEMORY, _WAITING = State.MEMORY, State.WAITING
_COMMITTING, _COMMITTED = State.COMMITTING, State.COMMITTED
_MAY_BE_STORED = frozenset((State.WRITING, State.WRITTEN, State.FAILED))


class Content:
    """Owns the octets of one message and the chunks of it that are in the database.

    A session collects them in `buffers`. The ChunkWriter stores parts ahead of the message; the
    Committer stores the message. `discard` ends it at any moment before that. `drop_chunks` removes
    the chunks of one that ends so.
    """

    __slots__ = ("_drop_chunks", "begun", "buffers", "chunks", "collected", "done", "gaps", "id",
                 "message", "state")  # fmt: skip

    def __init__(self, drop_chunks: Callable[[Content], None]) -> None:
        self._drop_chunks = drop_chunks
        self.id = 0
        """The message id, 0 as long as there is none."""
        self.state = _MEMORY
        self.buffers: list[bytes | bytearray] = []
        self.collected = 0
        """Octets in `buffers`, or of a part that is being written."""
        self.chunks = 0
        """Chunks in the database."""
        self.message: NewMessage | None = None
        self.gaps: Sequence[str] = ()
        """The text around the values of the message in its line in the log; without any, none."""
        self.done: DoneCallback | None = None
        """Whom to answer; None if no client waits for the message, or no longer."""
        self.begun = 0.0
        """When it was handed to the Committer, by the monotonic clock."""

    @property
    def octets(self) -> int:
        """Octets in memory."""
        return self.collected + (len(self.message.body) if self.message else 0)

    def assign_id(self, number: int) -> None:
        """Give it its message id."""
        self.id = number

    # -- octets --

    def append(self, octets: bytes) -> None:
        """Collect octets off the wire."""
        self.collected += len(octets)
        if len(octets) > _SMALL:
            self.buffers.append(octets)
        elif self.buffers and isinstance(self.buffers[-1], bytearray):
            self.buffers[-1] += octets
        else:
            self.buffers.append(bytearray(octets))

    def join(self) -> bytes | bytearray:
        """Make one buffer of all, and return it."""
        if len(self.buffers) != 1:
            self.buffers = [b"".join(self.buffers)]
        return self.buffers[0]

    def take_octets(self) -> bytes:
        """Return the octets, and forget them; `collected` stays."""
        octets = b"".join(self.buffers)
        self.buffers.clear()
        return octets

    def replace_octets(self, octets: bytes) -> None:
        """Collect these octets in place of all others."""
        self.buffers, self.collected = [octets], len(octets)

    def clear(self) -> None:
        """Forget the octets."""
        self.buffers.clear()
        self.collected = 0

    # -- chunks --

    def begin_write(self) -> None:
        """Note that a part of it is on its way into the database."""
        self.state = State.WRITING

    def end_write(self, octets: int) -> None:
        """Note that a part, whose length is `octets`, is in the database."""
        self.chunks += chunk_count(octets)
        self.state = State.WRITTEN

    def fail(self) -> None:
        """Note that a part can't be written: the message can't be stored any more."""
        self.state = State.FAILED

    # -- the commit --

    def complete(
        self, message: NewMessage, done: DoneCallback, gaps: Sequence[str], since: float
    ) -> None:
        """Take over the message. It waits for its commit, or a body that is too large is written.

        `done` is called once, by `answer`.
        """
        self.message, self.done, self.gaps, self.begun = message, done, gaps, since
        self.collected = 0  # it is in the message
        self.state = State.WRITING if len(message.body) > CHUNK_SIZE else _WAITING

    def end_body(self) -> None:
        """Forget the body of the message, which was written in chunks, or should have been."""
        if message := self.message:
            message.chunks = self.chunks = chunk_count(len(message.body))
            message.body = b""

    def wait(self) -> None:
        """Note that all its chunks are in the database: it waits for its commit."""
        self.state = _WAITING

    def begin_commit(self) -> None:
        """Note that the statement that stores its message is under way."""
        self.state = _COMMITTING

    def end_commit(self) -> None:
        """Note that its message is stored."""
        self.state = _COMMITTED

    def leave_open(self) -> None:
        """Note that it is unknown whether its message is stored."""
        self.state = State.UNDECIDED

    def answer(self, error: Exception | None) -> None:
        """Answer its session, once; a session that fails stops no other."""
        done, self.done = self.done, None
        if done:
            try:
                done(error)
            except Exception as fault:
                log.error("a session failed at its answer", id=self.id, exc_info=fault)

    def discard(self) -> None:
        """Give up a content whose client has gone or was refused.

        A message whose commit is under way may be stored nevertheless.
        """
        self.done = None
        if self.state in _BEFORE_COMMIT:
            self.remove()

    def remove(self) -> None:
        """End a content of which nothing is stored as a message: its chunks go too."""
        stored = bool(self.chunks) or self.state in _MAY_BE_STORED
        self.state = State.DISCARDED
        self.clear()
        if stored:
            self._drop_chunks(self)
