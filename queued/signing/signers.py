"""The threads that sign, and the rules and keys that they use: shared by the workers of a process.

A signature of RSA takes some hundred microseconds, in which the event loop goes on: cryptography
lets other threads run meanwhile. Messages come in groups, because each hand-over costs too. That
is more than a signature of Ed25519 takes: the event loop makes it itself if the content is small.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgmta.logs import get
from queued.config import Signing, SigningRule
from queued.signing.canonical import BodyHash
from queued.signing.key_problem import KeyProblem
from queued.signing.keyring import Keyring
from queued.signing.sign import SignedHeader, sign
from queued.signing.signing_rules import Rules, SigningRules

if TYPE_CHECKING:
    from queued.signing.signing_key import SigningKey

# A thread that has signed waits for its turn up to this long (sys.setswitchinterval). With Python's
# usual 5 ms a busy event loop would leave 200 signatures per second.
THREADS = 2  # that sign
_SWITCH_INTERVAL_S = 0.0005
_USUAL_SWITCH_INTERVAL_S = sys.getswitchinterval()
_SMALL_OCTETS = 32_768  # a smaller content is hashed at once, in the thread of the event loop
_MAX_LOGGED_PROBLEMS = 1000

log = get("signing")


@dataclass(slots=True, eq=False)
class SigningJob:
    """One message of a claim with its rules.

    The body of `content` begins at `start`. Of content that streams, `body_hash` is known.
    """

    rules: Rules
    sender: str
    content: bytes | AsyncIterable[bytes]
    urgent: bool = False
    header: SignedHeader | None = None
    start: int = 0
    rule: SigningRule | None = None
    keys: tuple[SigningKey, ...] = ()
    body_hash: bytes | None = None
    signature: bytes = b""
    problem: str = ""
    """Why a key did not sign."""
    lasting: bool = False
    """Whether no later attempt can mend the problem."""
    error: Exception | None = None
    done: bool = False
    """Whether its rows have gone on, or were given up."""

    def refuse(self, problem: str) -> None:
        """Note why no attempt can sign this header, if it has to be signed."""
        self.problem, self.lasting = self.problem or problem, True

    def sign(self, now: float, expire: float | None) -> None:
        """Make the signatures; runs in a thread."""
        if self.body_hash is None:
            assert isinstance(self.content, bytes)  # noqa: S101 - for the type checker
            body = BodyHash()
            body.feed(self.content[self.start :])
            self.body_hash = body.digest()
        assert self.header  # noqa: S101
        for key in self.keys:
            try:
                self.signature += sign(key, self.header, self.body_hash, now=now, expire=expire)
            except KeyProblem as error:
                self.problem = f"key {key.name}: {error}"


class Signers:
    """Signs groups of messages in threads; `keyring` has the keys."""

    def __init__(self, keyring: Keyring, config: Signing) -> None:
        self.keyring = keyring
        """The keys."""
        self._pool: ThreadPoolExecutor | None = None
        self.threads = THREADS
        """Threads that sign."""
        self.configure(config)

    def configure(self, config: Signing) -> None:
        """Use other rules from now on, and read the keys again."""
        self.on = config.on
        """Whether mail is signed."""
        self.rules = SigningRules(config)
        """The rules that say who signs."""
        self.missing = config.missing
        """Mail whose keys are missing is tried again later (defer) or sent unsigned (send)."""
        self.oversign = frozenset(name.lower().encode() for name in ("From", *config.oversign))
        """The fields that a signature lists once more than they are there."""
        self._expire = config.expire
        self._named: set[str] = set()
        self.keyring.configure(config)
        if not self._pool:
            self._pool = ThreadPoolExecutor(self.threads, "signing")
        sys.setswitchinterval(_SWITCH_INTERVAL_S if self.on else _USUAL_SWITCH_INTERVAL_S)

    def sign(self, group: list[SigningJob], done: Callable[[list[SigningJob]], None]) -> None:
        """Have a thread sign the group; `done` gets it in the event loop."""
        loop = asyncio.get_running_loop()
        expire = self._expire

        def work() -> None:
            now = time.time()
            for job in group:
                if not job.done:
                    try:
                        job.sign(now, expire)
                    except Exception as error:
                        job.error = error
            with suppress(RuntimeError):  # raised if the loop has ended
                loop.call_soon_threadsafe(done, group)

        assert self._pool  # noqa: S101
        self._pool.submit(work)

    def quick(self, job: SigningJob) -> bool:
        """Return whether the signature takes less time than the way to a thread and back."""
        content = job.content
        small = isinstance(content, bytes) and len(content) <= _SMALL_OCTETS
        return small and {key.type for key in job.keys} == {"ed25519"}

    def sign_here(self, job: SigningJob) -> None:
        """Sign in this thread."""
        try:
            job.sign(time.time(), self._expire)
        except Exception as error:
            job.error = error

    async def hashed(self, body: BodyHash, part: bytes) -> None:
        """Have a thread take a part of a body."""
        await asyncio.get_running_loop().run_in_executor(self._pool, body.feed, part)

    def name(self, problem: str) -> None:
        """Log a problem, once until the configuration is read again."""
        if problem not in self._named and len(self._named) < _MAX_LOGGED_PROBLEMS:
            self._named.add(problem)
            log.warning("mail is not signed", reason=problem)

    def close(self) -> None:
        """End the threads when they have done their work."""
        if self._pool:
            self._pool.shutdown(wait=False)
