"""The stage that signs by DKIM."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable

import psycopg

from pgmta.errors import DeliveryError, StoreUnavailable
from pgmta.logs import get
from pgmta.mail.telephone import NUMBER_DOMAIN
from pgmta.model import Item, Reply
from pgmta.states import Event
from queued.config import QueuedConfig
from queued.delivery.transport.result import NOT_BEGUN, Result, internal
from queued.outgoing.outgoing import Outgoing
from queued.outgoing.stage import OutgoingStage, Prepare, Prepared, StageContext
from queued.signing.canonical import BodyHash, split_header
from queued.signing.sign import MAX_SIGNED_FIELDS, SignedHeader
from queued.signing.signers import SigningJob
from queued.signing.signing_rules import Rules

_MAX_MESSAGES = 16  # that a thread signs at once: with RSA of 2,048 bits some ms
_MAX_STREAMS = 4  # messages whose content is hashed side by side as it comes
_MAX_STREAMED_HEADER_OCTETS = 1 << 20
_RETRY_PAUSE_S = 0.5  # while the keys can't be read for the first time

log = get("signing")


class SignStage(OutgoingStage):
    """Signs the mail of one worker. Mail that needs no signature waits for no thread.

    Content that streams is read for its signature first, and once more when it is sent.
    """

    def __init__(self, context: StageContext) -> None:
        super().__init__(context)
        self._fresh: dict[object, SigningJob] = {}  # made in this turn of the event loop
        self._open: dict[SigningJob, list[Outgoing]] = {}
        self._urgent: deque[SigningJob] = deque()
        self._waiting: deque[SigningJob] = deque()
        self._late: list[SigningJob] = []  # their keys are looked for in the table
        self._busy = 0  # number of threads that work for this worker
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking = False
        self._streams = asyncio.Semaphore(_MAX_STREAMS)
        self._draining = False

    @property
    def names(self) -> set[str]:
        """The domains, or labels, of the rows that wait for their signature."""
        return {name for group in self._open.values() for each in group for name in each.names}

    def rows(self) -> Iterable[Item]:
        """Return the rows that wait for their signature."""
        return [item for group in self._open.values() for each in group for item in each.items]

    def configured(self, config: QueuedConfig) -> Prepare | None:
        """Return the step, if mail is signed. The daemon configures the signers."""
        if not (signers := self.context.means.signers):
            return None
        self.signers = signers
        """The threads, rules and keys."""
        return self.prepare if signers.on else None

    def prepare(self, outgoing: Outgoing) -> Prepared:
        """Return mail that needs no signature; take the other, and let it go on with one."""
        # a provider of SMS gets only the text, which nobody signs
        if outgoing.items[0].domain == NUMBER_DOMAIN:
            return outgoing
        (rules, rows), *others = self.signers.rules.parts(outgoing.items)
        if not others:
            return self._take(outgoing, rules)
        parts = [(rules, rows), *others]
        ready = [self._take(outgoing._replace(items=rows), rules) for rules, rows in parts]
        return [each for each in ready if each]

    def _take(self, outgoing: Outgoing, rules: Rules) -> Outgoing | None:
        if self._draining:
            self.context.dispatcher.end(outgoing.items, NOT_BEGUN, outgoing.started)
            return None
        if not rules:  # for example for mail of strangers
            return outgoing
        content, trace = outgoing.content, outgoing.trace
        # a job may be shared with the same message for other next hops in this claim
        key = content, trace, self.signers.rules.relevant(outgoing.sender), id(rules)
        if not self._fresh:
            asyncio.get_running_loop().call_soon(self._fresh.clear)
        job = self._fresh.get(key)
        new = job is None
        if job is None:
            job = self._fresh[key] = SigningJob(rules, outgoing.sender, content)
            job.urgent = any(item.urgent for item in outgoing.items)
        self.context.begin_wait(outgoing)
        self._open.setdefault(job, []).append(outgoing)
        try:
            if job.done:
                self._end(job)
            elif new and isinstance(content, bytes):
                self._split(job, trace, content)
            elif new:
                self._task(self._await(job, self._read_header(job, trace)))
        except Exception as error:
            self._fail(job, error)
        return None

    def _split(self, job: SigningJob, trace: bytes, content: bytes) -> None:
        """Find the header, and the keys."""
        header, job.start = split_header(content)
        job.header = SignedHeader(trace + header, self.signers.oversign)
        if (size := job.header.size) > MAX_SIGNED_FIELDS:
            job.refuse(f"the header has {size} fields for a signature, over {MAX_SIGNED_FIELDS}")
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
            # with several From fields, readers may show any of them
            if signers.rules.given:
                job.refuse(f"the header has {fields} fields From")
            self._end(job)
            return
        if not domain and signers.rules.given and not job.problem:
            job.problem = f"{signers.rules.name(rule)} signs by {rule.sign}, which has no domain"
            job.lasting = True
            self._end(job)
            return
        # the table may have keys of a subdomain
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
            self._task(self._await(job, self._read_body(job)))
            return
        if self.signers.quick(job):
            self.signers.sign_here(job)
            self._end(job)
            return
        (self._urgent if job.urgent else self._waiting).append(job)
        if self._busy < self.signers.threads:
            # at the end of this turn, so that the whole claim has come
            self._busy += 1
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        """Give the next group to a thread that is free."""
        waiting = len(self._urgent) + len(self._waiting)
        most = min(_MAX_MESSAGES, max(1, waiting // self.signers.threads))
        group: list[SigningJob] = []
        while len(group) < most and (self._urgent or self._waiting):
            group.append((self._urgent or self._waiting).popleft())
        if not group:
            self._busy -= 1
            return
        try:
            self.signers.sign(group, self._signed)
        except Exception as error:  # raised if no thread can start
            self._busy -= 1
            for job in group:
                self._fail(job, error)

    def _signed(self, group: list[SigningJob]) -> None:
        self._start()
        for job in group:
            self._end(job)

    def _end(self, job: SigningJob) -> None:
        """Let the messages go on, or fail if a key is missing or an error came."""
        group = self._open.pop(job, None)
        if group is None:
            return  # the jobs were given up
        job.done = True
        for outgoing in group:
            try:
                self.context.end_wait(outgoing)
                if result := self._result(job):
                    self.context.dispatcher.end(outgoing.items, result, outgoing.started)
                    continue
                if job.signature:
                    outgoing = outgoing._replace(trace=job.signature + outgoing.trace)
                self.context.go_on(self, outgoing)
            except Exception as error:
                log.error("no envelope", message=outgoing.message.id, exc_info=error)
                result = Result.from_error(internal(error), "")
                self.context.dispatcher.end_unowned(outgoing.items, result, outgoing.started)

    def _result(self, job: SigningJob) -> Result | None:
        """Return the result of a job that failed."""
        if job.error:
            if not isinstance(job.error, DeliveryError):
                log.error("can't sign", exc_info=job.error)
                return Result.from_error(internal(job.error), "")
            return Result.from_error(job.error, "")
        if not job.problem:
            return None
        self.signers.name(job.problem)
        if ((job.rule and job.rule.missing) or self.signers.missing) == "send":
            return None
        if job.lasting:
            return Result(Event.FAIL, Reply(0, f"5.6.0 not signed: {job.problem}"))
        return Result(Event.DEFER, Reply(0, f"4.3.5 not signed: {job.problem}"))

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
                await keyring.read_table()
            except StoreUnavailable:
                if not keyring.ready:
                    self._late[:0] = late
                    await asyncio.sleep(_RETRY_PAUSE_S)
                    continue
            except psycopg.Error:
                pass  # `unreadable` names the reason
            except Exception as error:  # whatever it is: mail must not wait for ever
                log.error("can't read the keys", exc_info=error)
            for job in late:
                try:
                    if not job.done:
                        self._choose(job, again=True)
                except Exception as error:
                    self._fail(job, error)
        self._looking = False

    def _fail(self, job: SigningJob, error: Exception) -> None:
        """End a job after an error."""
        job.error = error
        self._end(job)

    async def _await(self, job: SigningJob, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except Exception as error:
            self._fail(job, error)

    async def _read_header(self, job: SigningJob, trace: bytes) -> None:
        """Read the header of content that streams, and choose the keys."""
        read = b""
        async for part in job.content:  # type: ignore[union-attr]
            read += part
            if read.startswith(b"\r\n") or b"\r\n\r\n" in read:
                break
            if len(read) > _MAX_STREAMED_HEADER_OCTETS:
                job.refuse("the header is over 1 MB")
                break
        self._split(job, trace, read)

    async def _read_body(self, job: SigningJob) -> None:
        """Read content that streams, and hash its body."""
        body, skip = BodyHash(), job.start
        async with self._streams:
            async for part in job.content:  # type: ignore[union-attr]
                await self.signers.hashed(body, part[skip:] if skip else part)
                skip = max(0, skip - len(part))
        job.body_hash = body.digest()
        self._enter(job)

    def drain(self) -> list[Outgoing]:
        """Sign nothing more; return the messages that wait for their signature."""
        self._draining = True
        for task in self._tasks:
            task.cancel()
        left = [outgoing for group in self._open.values() for outgoing in group]
        for job in self._open:
            job.done = True
        self._open.clear()
        self._urgent.clear()
        self._waiting.clear()
        self._late.clear()
        for outgoing in left:
            self.context.end_wait(outgoing)
        return left
