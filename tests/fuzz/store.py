"""The way into a queue that is a dictionary: what smtpd takes for PostgreSQL."""

from __future__ import annotations

import asyncio
import ipaddress
from collections import deque
from collections.abc import Collection, Sequence
from enum import Enum

from pgmta.config.types import Network
from pgmta.errors import StoreUnavailable
from pgmta.intake.content import Content, DoneCallback, State
from pgmta.model import CHUNK_OCTETS, NewMessage
from pgmta.store.accounts.logins import Levels, Verifier
from tests.support.waiting import let_others_run, take_time_async

USER, PASSWORD = "ann@example.org", b"secret"


class Mood(Enum):
    """How the store answers."""

    GOOD = "0"
    AWAY = "1"
    SLOW = "2"


class Ids:
    """Ids from 1 on; a hundred at once, and others have to be waited for."""

    def __init__(self) -> None:
        self.available = deque(range(1, 100))
        self._next = 100

    async def take_id(self) -> int:
        await let_others_run()
        self._next += 1
        return self._next


class Store:
    """Has the interface of a Committer, and of its ChunkWriter."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.chunks = self
        self.refuses = False
        self.lag = 0.0
        self.begin()

    def begin(self) -> None:
        """Forget everything."""
        self.mood = Mood.GOOD
        self.ids = Ids()
        self.take_id = self.ids.take_id
        self.stored: dict[int, tuple[NewMessage, bytes]] = {}
        """Messages with their content."""
        self.parts: dict[int, bytearray] = {}
        """Content without a message."""
        self.contents: list[Content] = []

    async def write_part(self, content: Content, octets: bytes) -> None:
        """Store a part, as ChunkWriter.write_part does."""
        content.state = State.WRITING
        try:
            await take_time_async(5.0 if self.mood is Mood.SLOW else 0.0)
            if self.mood is Mood.AWAY:
                raise StoreUnavailable("away")
            self.parts.setdefault(content.id, bytearray()).extend(octets)
            content.chunks += -(-len(octets) // CHUNK_OCTETS)
            content.state = State.WRITTEN
        finally:
            if content.state is State.WRITING:
                content.state = State.FAILED

    def drop_chunks(self, content: Content) -> None:
        """Remove the parts of a content."""
        self.parts.pop(content.id, None)

    def commit(
        self, content: Content, message: NewMessage, done: DoneCallback, _: Sequence[str] = ()
    ) -> None:
        """Store a message, as Committer.commit does."""
        content.message, content.done, content.collected = message, done, 0
        content.state = State.WAITING
        self.contents.append(content)
        self.loop.call_later(5.0 if self.mood is Mood.SLOW else 0.0, self._begin, content)

    def _begin(self, content: Content) -> None:
        if content.state is State.WAITING:  # else its session has gone
            content.state = State.COMMITTING
            self.loop.call_soon(self._end, content)

    def _end(self, content: Content) -> None:
        error, message = None, content.message
        assert message
        if self.mood is Mood.AWAY:
            error, done = StoreUnavailable("away"), content.done
            content.remove()
            content.done = done
        else:
            assert message.id not in self.stored
            assert message.recipients
            octets = bytes(self.parts.pop(message.id, b"")) + bytes(message.body)
            self.stored[message.id] = message, octets
            content.state = State.COMMITTED
        done, content.done = content.done, None
        if done:
            done(error)


class Accounts:
    """Has the interface of a LoginStore, with one user."""

    async def find_user(self, name: str, units: Collection[str]) -> tuple[Verifier, Levels]:
        """Return the user of this name."""
        found = name == USER
        verifier = Verifier(
            name, 1, 1 if found else None, PASSWORD.decode() if found else "", None, False, None,
            None, "", {}, (3, 7), frozenset((ipaddress.ip_network("127.0.0.0/24"),)),
        )  # fmt: skip
        return verifier, {}

    async def changes(self) -> tuple[int, bytes]:
        """Return the version of all users, and the secret for names."""
        return 1, b"s" * 32

    async def add_failures(self, failures: Sequence[tuple[str, int, float]], most: float) -> Levels:
        """Forget failures."""
        return {}

    async def forget_failures(self) -> int:
        """Do nothing."""
        return 0

    async def add_networks(self, logins: Collection[tuple[str, Network]]) -> None:
        """Do nothing."""


class Passwords:
    """Compares passwords as they are, without a thread."""

    async def match(self, known: str, password: bytes, address: str, *, first: bool) -> bool:
        """Return whether a password is right."""
        await take_time_async(0.025)
        return known == password.decode("utf-8", "replace")
