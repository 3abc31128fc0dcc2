"""Signs envelopes between dispatch and the queue of their destination."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial

import psycopg

from pgmta.errors import DeliveryError, StoreUnavailable
from pgmta.logs import get
from pgmta.model import Reply
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.result import NOT_BEGUN, Result, internal
from queued.signing.canonical import BodyHash, split_header
from queued.signing.sign import MOST, SignedHeader
from queued.signing.signers import Signers, SigningJob
from queued.signing.signing_rules import Rules

_GROUP = 16  # messages that a thread signs at once: with RSA of 2,048 bits some ms
_STREAMS = 4  # messages whose content is hashed side by side as it comes
_HEADER = 1 << 20  # octets of a header that streams
_RETRY = 0.5  # seconds, while the keys can't be read for the first time

log = get("signing")


class SigningQueue:
    """Takes the envelopes of one worker; `put` gets those that may go to their destination.

    `fail` gets the others with their results. Mail that needs no signature waits for no thread.
    Content that streams is read for its signature first, and once more when it is sent.
    """

    def __init__(
        self,
        signers: Signers,
        put: Callable[[Destination, Envelope], None],
        fail: Callable[[Envelope, list[Result]], None],
    ) -> None:
        self.load = 0
        """Rows that wait for their signature."""
        self.signers = signers
        """The threads, rules and keys."""
        self._put = put
        self._fail = fail
        self._fresh: dict[object, SigningJob] = {}  # of this turn of the event loop
        self._open: set[SigningJob] = set()
        self._urgent: deque[SigningJob] = deque()
        self._waiting: deque[SigningJob] = deque()
        self._late: list[SigningJob] = []  # whose keys are looked for in the table
        self._busy = 0  # threads that work for this worker
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking = False
        self._streams = asyncio.Semaphore(_STREAMS)
        self._draining = False

    @property
    def domains(self) -> set[str]:
        """The domains, or labels, of the rows that wait for their signature."""
        return {name for job in self._open for _, each in job.envelopes for name in each.domains}

    def take(self, destination: Destination, envelope: Envelope) -> None:
        """Sign the envelope and put it on, or put it on at once."""
        try:
            (rules, _), *others = self.signers.rules.parts(envelope.items)
            for other, rows in others:
                moved = {item.id for item in rows}
                places = [n for n, item in enumerate(envelope.items) if item.id in moved]
                self._sort(destination, envelope.split(places), other)
            self._sort(destination, envelope, rules)
        except Exception as error:
            log.error("can't sign", message=envelope.items[0].message_id, exc_info=error)
            self._fail(envelope, [Result.of(internal(error), "")] * len(envelope.items))

    def _sort(self, destination: Destination, envelope: Envelope, rules: Rules) -> None:
        if self._draining:
            self._fail(envelope, [NOT_BEGUN] * len(envelope.items))
            return
        if not rules:  # as all mail of strangers
            self._put(destination, envelope)
            return
        content = envelope.content
        # the same message for other next hops, in the same claim
        same = content if isinstance(content, bytes) else getattr(content, "same", content)
        sender = self.signers.rules.relevant(envelope.sender)
        key = same, envelope.trace, sender, id(rules)
        if not self._fresh:
            asyncio.get_running_loop().call_soon(self._fresh.clear)
        job = self._fresh.get(key)
        new = job is None
        if job is None:
            job = self._fresh[key] = SigningJob(rules, envelope.sender, content)
        job.envelopes.append((destination, envelope))
        self.load += len(envelope.items)
        self._open.add(job)
        if job.done:
            self._end(job)
        elif new and isinstance(content, bytes):
            self._guarded(job, partial(self._split, job, envelope.trace, content))
        elif new:
            self._task(self._read_header(job, envelope.trace))

    def _split(self, job: SigningJob, trace: bytes, content: bytes) -> None:
        """Find the header, and the keys."""
        header, job.start = split_header(content)
        job.header = SignedHeader(trace + header, self.signers.oversign)
        if (size := job.header.size) > MOST:
            job.refuse(f"the header has {size} fields for a signature, over {MOST}")
        self._choose(job)

    def _choose(self, job: SigningJob, *, again: bool = False) -> None:
        """Find the keys; `again` says that the table was looked at for this message."""
        signers, keyring = self.signers, self.signers.keyring
        assert job.header  # noqa: S101 - for the type checker
        job.rule, domain = signers.rules.find(job.rules, job.sender, job.header.fields)
        rule = job.rule
        if rule is None:
            self._unsigned(job)
            return
        if (fields := len(job.header.fields.get(b"from", ()))) > 1:
            # readers show any of them
            if signers.rules.given:
                job.refuse(f"the header has {fields} fields From")
            self._end(job)
            return
        if not domain and signers.rules.given and not job.problem:
            job.problem = f"{signers.rules.name(rule)} signs by {rule.sign}, which has no domain"
            job.lasting = True
            self._end(job)
            return
        # of a domain below, the table may have the keys
        parents = keyring.ready and rule.parents and rule.sign in ("from", "sender")
        choice = keyring.choose(domain, parents=parents, selectors=rule.selectors)
        usable = keyring.ready or keyring.unreadable
        if usable and choice.keys and not job.problem:
            job.keys = choice.keys
            self._enter(job)
        elif keyring.ready and not choice.known and not signers.rules.given:
            self._unsigned(job)
        elif keyring.uses_table and not (again or keyring.unreadable):
            self._late.append(job)
            if not self._looking:
                self._looking = True
                self._task(self._look())
        else:
            job.problem = job.problem or keyring.unreadable or choice.problem
            self._end(job)

    def _unsigned(self, job: SigningJob) -> None:
        """Let mail go on that needs no signature, whatever would have prevented one."""
        job.problem = ""
        self._end(job)

    def _enter(self, job: SigningJob) -> None:
        """Let the job wait for a thread; content that streams is read before."""
        if job.body_hash is None and not isinstance(job.content, bytes):
            self._task(self._read_body(job))
            return
        if self.signers.quick(job):
            self.signers.sign_here(job)
            self._end(job)
            return
        urgent = job.envelopes[0][1].urgent
        (self._urgent if urgent else self._waiting).append(job)
        if self._busy < self.signers.threads:
            # when the whole claim is there
            self._busy += 1
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        """Give the next group to a thread that is free."""
        waiting = len(self._urgent) + len(self._waiting)
        most = min(_GROUP, max(1, waiting // self.signers.threads))
        group: list[SigningJob] = []
        while len(group) < most and (self._urgent or self._waiting):
            group.append((self._urgent or self._waiting).popleft())
        if group:
            self.signers.sign(group, self._signed)
        else:
            self._busy -= 1

    def _signed(self, group: list[SigningJob]) -> None:
        self._start()
        for job in group:
            self._end(job)

    def _end(self, job: SigningJob) -> None:
        """Let the envelopes go on, or fail if a key is missing or an error came."""
        if job.done and job not in self._open:
            return  # given up
        job.done = True
        self._open.discard(job)
        envelopes, job.envelopes = job.envelopes, []
        result = self._result(job)
        for destination, envelope in envelopes:
            self.load -= len(envelope.items)
            try:
                if result:
                    self._fail(envelope, [result] * len(envelope.items))
                    continue
                if job.signature:
                    envelope.trace = job.signature + envelope.trace
                self._put(destination, envelope)
            except Exception as error:
                log.error("envelope lost", message=envelope.items[0].message_id, exc_info=error)

    def _result(self, job: SigningJob) -> Result | None:
        """Return the result of a job that failed."""
        if job.error:
            if not isinstance(job.error, DeliveryError):
                log.error("can't sign", exc_info=job.error)
                return Result.of(internal(job.error), "")
            return Result.of(job.error, "")
        if not job.problem:
            return None
        self.signers.name(job.problem)
        if ((job.rule and job.rule.missing) or self.signers.missing) == "send":
            return None
        if job.lasting:
            return Result(Reply(0, f"5.6.0 not signed: {job.problem}"), permanent=True)
        return Result(Reply(0, f"4.3.5 not signed: {job.problem}"))

    # -- what takes time --

    def _task(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look(self) -> None:
        """Look into the table, and choose again."""
        keyring = self.signers.keyring
        while self._late:
            late, self._late = self._late, []
            try:
                await keyring.look()
            except StoreUnavailable:
                if not keyring.ready:
                    self._late[:0] = late
                    await asyncio.sleep(_RETRY)
                    continue
            except psycopg.Error:
                pass  # `unreadable` has the reason
            except Exception as error:  # mail must not wait for ever
                log.error("can't read the keys", exc_info=error)
            for job in late:
                if not job.done:
                    self._guarded(job, partial(self._choose, job, again=True))
        self._looking = False

    def _guarded(self, job: SigningJob, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            job.error = error
            self._end(job)

    async def _read_header(self, job: SigningJob, trace: bytes) -> None:
        """Read the header of content that streams, and choose the keys."""
        read = b""
        try:
            async for part in job.content:  # type: ignore[union-attr]
                read += part
                if read.startswith(b"\r\n") or b"\r\n\r\n" in read:
                    break
                if len(read) > _HEADER:
                    job.refuse("the header is over 1 MB")
                    break
            self._split(job, trace, read)
        except Exception as error:
            job.error = error
            self._end(job)

    async def _read_body(self, job: SigningJob) -> None:
        """Read content that streams, and hash its body."""
        body, skip = BodyHash(), job.start
        try:
            async with self._streams:
                async for part in job.content:  # type: ignore[union-attr]
                    await self.signers.hashed(body, part[skip:] if skip else part)
                    skip = max(0, skip - len(part))
            job.body_hash = body.digest()
            self._enter(job)
        except Exception as error:
            job.error = error
            self._end(job)

    def drain(self) -> list[Envelope]:
        """Sign nothing more; return the envelopes that wait for their signature."""
        self._draining = True
        for task in self._tasks:
            task.cancel()
        left = [envelope for job in self._open for _, envelope in job.envelopes]
        for job in self._open:
            job.done = True
            job.envelopes.clear()
        self._open.clear()
        self._urgent.clear()
        self._waiting.clear()
        self._late.clear()
        self.load = 0
        return left
