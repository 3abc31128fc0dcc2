"""Questions to name servers, and their answers (RFC 1034, RFC 2308, RFC 4035).

TLSABase of dnspython is read here with a private table, as it is in dnspython 2.9.2.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import dns.asyncbackend
import dns.asyncresolver
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.nameserver
import dns.rcode
import dns.rdata
import dns.rdatatype
import dns.resolver
from dns.rdtypes.ANY.TLSA import TLSA
from dns.rdtypes.ANY.TXT import TXT
from dns.rdtypes.tlsabase import TLSABase

from pgmta.errors import DeliveryError, Stage
from pgmta.logs import get
from pgmta.mail.text import printable
from queued.config import Dns
from queued.delivery.dns.name_servers import NameServers
from queued.delivery.dns.query_slots import QuerySlots

_MAX_KEPT_S = 3600.0  # for an answer
_MAX_NEGATIVE_KEPT_S = 300.0  # short, because operators correct their zones
_MIN_KEPT_S = 1.0  # for the mail that comes together
_FAILURE_KEPT_S = 5.0  # RFC 9520, section 3.2, asks for at least one second
_MAX_ANSWERS = 20_000  # in memory
_MAX_OCTETS = 4 << 20  # of all answers in memory, where they take up to 15 times as much
_VALIDATION_CHECK_INTERVAL_S = 60.0  # for the question whether the name servers validate
_ROOT = "."

# dnspython throws a whole answer away if the digest of one TLSA record has a wrong length. Such a
# record is unusable, and the others count (RFC 7672, section 2.1).
TLSABase._cert_length_by_mtype = {}  # noqa: SLF001

log = get("delivery")

type Question = tuple[dns.name.Name, str]


@dataclass(frozen=True, slots=True)
class DnsAnswer:
    """The answer to a question, valid until a time of `time.monotonic`.

    `name` is the one that has the records, after any CNAME. Without records either the name has
    none of the kind, or it does not exist. `secure` says that name servers which we trust have
    validated all of it, any CNAME included (RFC 4035, section 4.9.3).
    """

    records: tuple[dns.rdata.Rdata, ...]
    secure: bool
    until: float
    exists: bool
    name: str


@dataclass(frozen=True, slots=True)
class _Failure:
    """The reason why a question has no answer."""

    reason: str
    until: float


type _Kept = DnsAnswer | _Failure


class Questions:
    """Asks the name servers; keeps answers for their TTL and failures for five seconds.

    One question under way serves all who ask it. At most 500 are under way. If more wait, those
    without an answer after two seconds fail. So name servers that are dead stop no others.
    """

    def __init__(self, config: Dns) -> None:
        self._backend = dns.asyncbackend.get_backend("asyncio")
        self._slots = QuerySlots()
        self._under_way: dict[Question, asyncio.Task[_Kept]] = {}
        self._kept: OrderedDict[Question, tuple[_Kept, int]] = OrderedDict()
        self._octets = 0
        self.configure(config)

    def configure(self, config: Dns) -> None:
        """Ask these name servers from now on; nothing that others have said is kept."""
        self._timeout = config.timeout
        self._probe = config.probe
        self._config = config
        self._servers = NameServers(config)
        self._under_way.clear()  # the callers that wait for these get their answers
        self._kept.clear()
        self._octets = 0
        self._checked = 0.0
        self._validating: bool | None = None

    async def ask(self, name: str, kind: str) -> DnsAnswer:
        """Return the answer for the records of a kind (MX, A, AAAA, TLSA, TXT).

        A name that does not exist, or has none, is an answer too. Raises DeliveryError if there is
        none for now: no name server answers, or validation failed.
        """
        try:
            question = to_name(name), kind
        except ValueError as error:
            raise DeliveryError(f"5.1.2 {error}", stage_of(kind), permanent=True) from None
        found = self._find_kept(question)
        if found is None:
            task = self._under_way.get(question)
            if task is None:
                if self._servers.changed():
                    self.configure(self._config)
                task = asyncio.create_task(self._find(question))
                self._under_way[question] = task
            found = await asyncio.shield(task)
        if isinstance(found, DnsAnswer):
            return found
        raise DeliveryError(f"4.4.3 {kind} of {printable(name)}: {found.reason}", stage_of(kind))

    def _find_kept(self, question: Question) -> _Kept | None:
        """Return the answer or failure that is kept; None if the question has to be asked."""
        entry = self._kept.get(question)
        if entry is None:
            return None
        if entry[0].until <= time.monotonic():
            self._forget(question)
            return None
        self._kept.move_to_end(question)
        return entry[0]

    async def _find(self, question: Question) -> _Kept:
        """Ask, keep the result and return it."""
        servers, octets = self._servers, 0
        found: _Kept
        try:
            async with self._slots.slot(self._timeout):
                found, octets = await self._resolve(question)
        except TimeoutError:
            found = _failure(f"no answer in {self._timeout:g} s")
        except (dns.exception.DNSException, OSError, ValueError) as error:
            found = _failure(_reason(error, self._timeout))
        except Exception as error:
            log.error("can't ask the name servers", question=str(question[0]), exc_info=error)
            found = _failure(f"internal error: {type(error).__name__}")
        finally:
            if servers is self._servers:
                self._under_way.pop(question, None)
        if servers is self._servers:
            self._keep(question, found, octets)
        return found

    async def _resolve(self, question: Question) -> tuple[DnsAnswer, int]:
        """Ask the name servers in turn; return the answer and its octets."""
        name, kind = question
        exists = True
        try:
            found = await self._servers.resolver.resolve(
                name, kind, raise_on_no_answer=False, search=False, backend=self._backend
            )
            response = found.response
        except dns.resolver.NXDOMAIN as error:
            response = error.kwargs["responses"][name]
            exists = False
        chain = response.resolve_chaining()
        records = tuple(chain.answer) if chain.answer else ()
        longest = _MAX_KEPT_S if records else _longest(response)
        answer = DnsAnswer(
            records,
            self._servers.trusted and bool(response.flags & dns.flags.AD),
            time.monotonic() + max(_MIN_KEPT_S, min(chain.minimum_ttl, longest)),
            exists,
            chain.canonical_name.to_text(omit_final_dot=True).lower(),
        )
        return answer, len(response.wire or b"")

    def _keep(self, question: Question, found: _Kept, octets: int) -> None:
        self._forget(question)
        self._kept[question] = found, octets
        self._octets += octets
        while len(self._kept) > _MAX_ANSWERS or self._octets > _MAX_OCTETS:
            self._forget(next(iter(self._kept)))

    def _forget(self, question: Question) -> None:
        entry = self._kept.pop(question, None)
        if entry:
            self._octets -= entry[1]

    async def validating(self) -> bool:
        """Return whether the name servers validate (RFC 4035), so that DANE is of use.

        It asks for signed records, at most once per minute. The log has one line on a change of
        the result. A failure of the question defers no mail. After a start DANE is off until the
        next one. Later it stays on: an attacker who drops one answer would end it for all domains.
        """
        if not self._servers.trusted:
            return self._validated(False, "not on loopback; delivery.dns.trust_ad is off")
        now = time.monotonic()
        if self._validating is not None and now < self._checked + _VALIDATION_CHECK_INTERVAL_S:
            return self._validating
        self._checked = now
        try:
            answer = await self.ask(self._probe, "NS")
        except DeliveryError as error:
            return bool(self._validating) or self._validated(False, error.line)
        return self._validated(answer.secure, f"NS of {self._probe}: no AD bit")

    def _validated(self, result: bool, reason: str) -> bool:
        if self._validating is not result:
            if not result:
                log.warning("no DANE: the name servers do not validate", reason=reason)
            elif self._validating is False:
                log.info("DANE: the name servers validate")
            self._validating = result
        return result


def to_name(text: str) -> dns.name.Name:
    """Return an absolute name. Raises ValueError for text that can't be one.

    A backslash is an octet like others here: dnspython's own parser would read it as an escape.
    """
    try:
        labels = [] if text == _ROOT else text.removesuffix(".").encode("ascii").split(b".")
        return dns.name.Name([*labels, b""])
    except (UnicodeError, dns.exception.DNSException) as error:
        reason = "not ASCII" if isinstance(error, UnicodeError) else str(error)
        raise ValueError(f"{printable(text[:300])} is no domain name: {reason}") from None


def _longest(negative: dns.message.Message) -> float:
    """Return the seconds for which a negative answer is kept, at most (RFC 2308, section 5)."""
    has_soa = any(each.rdtype == dns.rdatatype.SOA for each in negative.authority)
    return _MAX_NEGATIVE_KEPT_S if has_soa else _FAILURE_KEPT_S


def stage_of(kind: str) -> Stage:
    """Return the step of a delivery that asks for records of this kind."""
    return Stage.MX if kind == "MX" else Stage.ADDRESS


def _failure(reason: str) -> _Failure:
    return _Failure(reason, time.monotonic() + _FAILURE_KEPT_S)


def _reason(error: Exception, timeout: float) -> str:
    """Return one line on a failure, without the list of all tries."""
    if isinstance(error, dns.exception.Timeout):
        return f"no answer in {timeout:g} s"
    if isinstance(error, dns.resolver.NoNameservers):
        tries = error.kwargs.get("errors") or [("", False, 0, "no name server", None)]
        server, _, _, problem, response = tries[-1]
        said = dns.rcode.to_text(response.rcode()) if response is not None else str(problem)
        return printable(f"{said} from {server.removeprefix('Do53:')}" if server else said)[:200]
    return printable(str(error) or type(error).__name__)[:200]


def tlsa_records(records: Iterable[Any]) -> tuple[tuple[int, int, int, bytes], ...]:
    """Return the TLSA records: usage, selector, matching type and data (RFC 6698, section 2.1)."""
    return tuple(
        (each.usage, each.selector, each.mtype, bytes(each.cert))
        for each in records
        if isinstance(each, TLSA)
    )


def texts(records: Iterable[Any]) -> list[str]:
    """Return the TXT records of an answer, each with its strings joined."""
    return [
        b"".join(each.strings).decode("ascii", "replace")
        for each in records
        if isinstance(each, TXT)
    ]
