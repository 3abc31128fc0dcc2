"""The content of one message, from its first octet until it is committed or discarded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

from pgmta.model import NewMessage

DoneCallback = Callable[[Exception | None], None]
"""Receives None when something is done, or the error because of which it is not."""


class State(StrEnum):
    """States of a content; docs/develop/states.md has the transitions."""

    MEMORY = "memory"  # all of it is in memory
    WRITING = "writing"  # a part is on its way into the database, ahead of the message
    WRITTEN = "written"  # its full parts so far are in the database, without a message
    FAILED = "failed"  # a part could not be written; some of its chunks may be in the database
    WAITING = "waiting"  # complete; it waits for its group commit
    COMMITTING = "committing"  # the statement that stores its message is under way
    UNDECIDED = "undecided"  # that statement is under way, and the client got 451 meanwhile
    COMMITTED = "committed"  # it belongs to a stored message
    DISCARDED = "discarded"  # no message; its chunks are removed


TRANSITIONS = {
    State.MEMORY: {State.WRITING, State.FAILED, State.WAITING, State.DISCARDED},
    State.WRITING: {State.WRITTEN, State.FAILED, State.WAITING, State.DISCARDED},
    State.WRITTEN: {State.WRITING, State.FAILED, State.WAITING, State.DISCARDED},
    State.FAILED: {State.DISCARDED},
    State.WAITING: {State.COMMITTING, State.DISCARDED},
    State.COMMITTING: {State.WAITING, State.UNDECIDED, State.COMMITTED, State.DISCARDED},
    State.UNDECIDED: {State.COMMITTED, State.DISCARDED},
    State.COMMITTED: set[State](),
    State.DISCARDED: set[State](),
}
"""Which states follow each; the tests of smtpd check every change against it."""

_STATES_BEFORE_COMMIT = frozenset(
    (State.MEMORY, State.WRITING, State.WRITTEN, State.FAILED, State.WAITING)
)
_MEMORY = State.MEMORY  # a name of the module is found quicker than a member of the enumeration
_STATES_WITH_CHUNKS = frozenset((State.WRITING, State.WRITTEN, State.FAILED))


class Content:
    """Owns the octets of one message and the chunks of it that are in the database.

    A session collects them in `buffers`. The ChunkWriter stores parts ahead of the message; the
    Committer stores the message. `discard` ends it at any moment before that. `drop_chunks` removes
    the chunks of one that ends so.
    """

    __slots__ = ("_drop_chunks", "buffers", "chunks", "collected", "done", "id",
                 "log_template", "message", "since", "state")  # fmt: skip

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
        self.log_template: Sequence[str] = ()
        """The text around the values of the message in its line in the log; without any, none."""
        self.done: DoneCallback | None = None
        """Whom to answer; None if no client waits for the message, or no longer."""
        self.since = 0.0
        """When it was handed to the Committer, by the monotonic clock."""

    @property
    def octets(self) -> int:
        """Octets in memory."""
        return self.collected + (len(self.message.body) if self.message else 0)

    def join(self) -> bytes:
        """Return the buffers as one, and forget them; `collected` stays."""
        octets = b"".join(self.buffers)
        self.buffers.clear()
        return octets

    def discard(self) -> None:
        """Give up a content whose client has gone or was refused.

        A message whose commit is under way may be stored nevertheless.
        """
        self.done = None
        if self.state in _STATES_BEFORE_COMMIT:
            self.remove()

    def remove(self) -> None:
        """End a content of which nothing is stored as a message: its chunks go too."""
        self.done = None
        stored = bool(self.chunks) or self.state in _STATES_WITH_CHUNKS
        self.state = State.DISCARDED
        self.buffers.clear()
        self.collected = 0
        if stored:
            self._drop_chunks(self)
