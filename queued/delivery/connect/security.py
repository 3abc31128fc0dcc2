"""Which TLS a host needs, by what its domain promises, and the way there."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from pgmta.config.types import is_address
from pgmta.errors import DeliveryError, Stage
from pgmta.model import TlsResult
from queued.config import Tls
from queued.delivery.dns.hosts import Host
from queued.delivery.dns.questions import Questions, tlsa_records
from queued.delivery.smtp.session import Session
from queued.delivery.tls import dane
from queued.delivery.tls.handshake import BrokenTls, server_name, shake_hands
from queued.delivery.tls.mtasts import mx_matches
from queued.delivery.tls.sts_domains import StsDomains
from queued.delivery.tls.sts_fetch import FindAddresses, PolicyFetcher
from queued.delivery.tls.tls_contexts import TlsContexts
from queued.delivery.tls.tls_memory import Memory
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.tls_policy import HostPolicy, TlsMode

_REASON = 120  # characters of a reason in the reports
_AUTHENTICATED = (TlsMode.VERIFY, TlsMode.DANE)


class Security:
    """Finds the TLS policy of hosts, and secures sessions with them.

    `addresses` are those of web servers of policies.
    """

    def __init__(
        self, config: Tls, questions: Questions, addresses: FindAddresses, memory: Memory
    ) -> None:
        self._mode = TlsMode(config.mode)
        self._questions = questions
        self._memory = memory.broken
        self._results = memory.results
        self._contexts = contexts = TlsContexts(config)
        self._domains: StsDomains | None = None
        self.fetcher: PolicyFetcher | None = None
        """Fetches MTA-STS policies; None if they are off."""
        if config.sts:
            self.fetcher = PolicyFetcher(lambda: contexts.pkix, addresses, config.sts_port)
            self._domains = StsDomains(questions, self.fetcher, memory.policies, memory.results)

    # -- the policy of a host --

    async def policy(self, destination: Destination, host: Host) -> HostPolicy:
        """Return the policy of a host.

        Raises DeliveryError if the host must not have the mail: no name server answers for its TLSA
        records, an MTA-STS policy does not name it, or nothing can authenticate it. With
        TLS-Required: No in the mail, no promise of the domain stops it (RFC 8689, section 4.2.2).
        """
        mode = destination.tls or self._mode
        if not destination.tls_optional or mode is not TlsMode.BEST or destination.login:
            return await self._policy(destination, host)
        if not destination.implicit:
            try:
                return replace(await self._policy(destination, host), testing=True)
            except DeliveryError:
                pass  # counted where it was raised
        # implicit TLS has no plain text to return to
        least = TlsMode.ENCRYPT if destination.implicit else TlsMode.OPPORTUNISTIC
        return HostPolicy(least, (host.name,), report=("no-policy-found", destination.domain, ""))

    async def _policy(self, destination: Destination, host: Host) -> HostPolicy:
        mode = destination.tls or self._mode
        source = "route" if destination.tls else "default"
        strict = destination.requiretls
        if strict and mode is not TlsMode.DANE and not (mode is TlsMode.VERIFY and host.listed):
            # the sender's wish goes before the route, and MX have to be validated (RFC 8689, 4.2.1)
            mode = TlsMode.BEST
        elif destination.login and not destination.tls and mode not in _AUTHENTICATED:
            mode = TlsMode.BEST  # which verifies hosts that get a password
        report = "no-policy-found", destination.domain, ""
        if destination.implicit and mode in (TlsMode.NONE, TlsMode.OPPORTUNISTIC):
            mode = TlsMode.ENCRYPT
        if mode not in (TlsMode.BEST, TlsMode.DANE):
            return HostPolicy(mode, (host.name,), source=source, requiretls=strict, report=report)
        by_dns = await self._by_tlsa(destination, host)
        if by_dns and by_dns.mode is TlsMode.DANE:
            return by_dns
        if mode is TlsMode.DANE:
            why = by_dns.evidence if by_dns else "no TLSA records that DNSSEC secures"
            self._count(("tlsa", host.name, ""), "dane-required", host.name, "", why)
            raise DeliveryError(f"4.7.5 DANE of {host.name}: {why}", Stage.TLS)
        if by_policy := await self._by_sts(destination, host):
            return by_policy
        if strict and not (host.secure or host.listed):
            raise DeliveryError(
                f"5.7.10 REQUIRETLS: nothing authenticates {host.name}", Stage.TLS, permanent=True
            )
        if strict:
            return HostPolicy(TlsMode.VERIFY, (host.name,), requiretls=True, report=report)
        if destination.login:
            evidence = "it has a login"
            return HostPolicy(TlsMode.VERIFY, (host.name,), (), "route", evidence, report=report)
        if by_dns:
            return by_dns
        # implicit TLS has no plain text to return to
        least = TlsMode.ENCRYPT if destination.implicit else TlsMode.OPPORTUNISTIC
        return HostPolicy(least, (host.name,), source=source, report=report)

    async def _by_tlsa(self, destination: Destination, host: Host) -> HostPolicy | None:
        """Return the policy by TLSA records (RFC 7672, section 2.2); None if there are none.

        Raises DeliveryError if no name server answers: no downgrade (section 2.1.2).
        """
        if is_address(host.name):
            return None
        # a validated MX answer proves that the name servers validate; without one the log says so
        if not host.secure and not (await self._questions.validating() and host.listed):
            return None
        for base in await self._bases(host):
            try:
                answer = await self._questions.ask(f"_{host.port}._tcp.{base}", "TLSA")
            except DeliveryError as error:
                self._count(("tlsa", base, ""), "dnssec-invalid", host.name, "", error.line)
                line = error.line.partition(" ")[2]
                raise DeliveryError(f"4.7.5 DANE of {base}: {line}", Stage.TLS) from None
            records = tlsa_records(answer.records) if answer.secure else ()
            if not records:
                continue
            shown = ", ".join(dane.shown(each) for each in records[:5])
            report = "tlsa", base, shown
            if good := dane.usable(records):
                names = tuple(dict.fromkeys(filter(None, (base, host.name, destination.domain))))
                return HostPolicy(TlsMode.DANE, names, good, "dane", shown,
                                  requiretls=destination.requiretls, report=report)  # fmt: skip
            evidence = f"only unusable TLSA records: {shown}"
            return HostPolicy(TlsMode.ENCRYPT, (base,), (), "dane", evidence, report=report)
        return None

    async def _bases(self, host: Host) -> list[str]:
        """Return the names below which TLSA records may be (RFC 7672, section 2.2.2).

        Without a validated address there is none: name servers of such zones often fail for TLSA.
        Raises DeliveryError for a host from MX records if its addresses can't be had. Else an
        attacker could hold them back now, and let them pass when queued connects (section 2.1.2).
        """
        failure: DeliveryError | None = None
        for kind in ("A", "AAAA"):
            try:
                answer = await self._questions.ask(host.name, kind)
            except DeliveryError as error:
                failure = error
                continue
            if not answer.secure:
                return []
            if answer.records:
                return list(dict.fromkeys((answer.name, host.name.lower())))
        if failure and host.secure:
            raise failure
        return []

    async def _by_sts(self, destination: Destination, host: Host) -> HostPolicy | None:
        """Return the policy by MTA-STS (RFC 8461, section 5); None if the domain has none."""
        domain = destination.domain
        if self._domains is None or not domain or domain.startswith("[") or host.listed:
            return None
        policy = await self._domains.policy(domain)
        if policy is None or policy.mode == "none":
            return None
        testing = policy.mode == "testing"
        report = "sts", domain, policy.id
        evidence = f"MTA-STS {policy.mode}, id {policy.id}, mx {', '.join(policy.mx[:5])}"
        if mx_matches(policy.mx, host.name):
            return HostPolicy(TlsMode.VERIFY, (host.name,), (), "sts", evidence, testing=testing,
                              requiretls=destination.requiretls, report=report)  # fmt: skip
        why = f"MTA-STS policy of {domain} does not name the host"
        self._count(report, "validation-failure", host.name, "", why)
        if testing and not destination.requiretls:
            return HostPolicy(TlsMode.OPPORTUNISTIC, (host.name,), (), "sts", evidence,
                              report=report)  # fmt: skip
        raise DeliveryError(f"4.7.5 {host.name}: {why}", Stage.TLS)

    # -- a session --

    async def session(
        self, policy: HostPolicy, host: Host, connect: Callable[[HostPolicy], Awaitable[Session]]
    ) -> Session:
        """Return the session that `connect` opens under the policy, or under a weaker one.

        The weaker one is for a host whose TLS is broken, if the policy allows it. A host whose TLS
        failed twice gets plain text for a while, without another try. Raises DeliveryError.
        """
        begun = time.monotonic()
        while True:
            try:
                return await connect(policy)
            except BrokenTls as error:
                weaker = policy.weaker()
                if weaker is None:
                    raise
                policy = weaker
                if policy.mode is TlsMode.NONE:
                    await self._memory.failed(str(host.place), error.line, begun)

    async def secure(self, session: Session, policy: HostPolicy, hostname: str) -> None:
        """Start TLS as the policy asks, and greet the server again (RFC 3207).

        Under TLS already, only the extensions are checked. Raises DeliveryError. After BrokenTls
        another connection may do.
        """
        host = session.host
        if policy.mode is TlsMode.NONE:
            return
        if session.facts.tls_version:
            self._accept(session, policy)
            return
        if "STARTTLS" not in session.extensions:
            self._missing(session, policy, "the host does not offer STARTTLS")
            return
        if self._is_opportunistic(policy) and await self._memory.known(str(host.place)):
            session.remark("no STARTTLS: TLS with the host failed a while ago")
            return
        connection = session.connection
        connection.write(b"STARTTLS\r\n", 1)
        try:
            reply = await connection.reply(Stage.TLS, connection.timeouts.command)
        except DeliveryError as error:
            raise self._broken(session, policy, error) from None
        if reply.code != 220:
            self._missing(session, policy, f"STARTTLS was refused: {reply}")
            if reply.code == 421 or connection.closed:
                raise DeliveryError(reply.text, Stage.TLS, code=reply.code)
            return
        await self.shake_hands(session, policy)
        try:
            await session.greet(hostname)
        except DeliveryError as error:
            raise self._broken(session, policy, error) from None
        self._memory.worked(str(host.place))
        self._accept(session, policy)

    def _broken(self, session: Session, policy: HostPolicy, error: DeliveryError) -> DeliveryError:
        """Return the error of a host that closes or hangs on the way to TLS.

        A reply is another matter, and so is a server that breaks the protocol.
        """
        if error.code or session.connection.violated:
            return error
        host = session.host.name
        self._count(policy.report, "validation-failure", host, session.facts.address, error.line)
        return BrokenTls(f"4.7.5 TLS with {host}: {error.line}{policy.demand}")

    def _accept(self, session: Session, policy: HostPolicy) -> None:
        """Keep the TLS session for the next connection.

        Raises DeliveryError if a sender's REQUIRETLS would end here (RFC 8689, section 4.2.1).
        """
        # a resumed session has no certificates, and TLSA records may have changed since
        if session.connection.tls and policy.mode is not TlsMode.DANE:
            name = server_name(policy, session.host.name)
            self._contexts.of(policy.mode).keep(name, session.connection.tls)
        if policy.requiretls and "REQUIRETLS" not in session.extensions:
            session.connection.quit()
            raise DeliveryError(
                f"5.7.30 {session.host.name} does not know REQUIRETLS", Stage.TLS, permanent=True
            )

    async def shake_hands(self, session: Session, policy: HostPolicy) -> None:
        """Do the handshake, and note its facts. Raises BrokenTls, DeliveryError."""
        began = time.monotonic()
        facts = session.facts
        try:
            found = await shake_hands(session.connection, self._contexts, policy, session.host.name)
        except BrokenTls as error:
            why = error.line.partition(": ")[2]
            self._count(policy.report, error.result, session.host.name, facts.address, why)
            if policy.weaker():
                session.remark(error.line)  # otherwise it is the error of the attempt
            raise BrokenTls(error.line + policy.demand, error.result) from None
        facts.tls_version, facts.tls_cipher = found
        facts.tls_verified = policy.verified
        facts.tls_seconds = time.monotonic() - began
        session.remark(f"{facts.tls_version} {facts.tls_cipher}, verified: {facts.tls_verified}")
        self._count(policy.report)

    def _missing(self, session: Session, policy: HostPolicy, why: str) -> None:
        """Count a host without STARTTLS. Raises DeliveryError if the policy asks for it."""
        host = session.host.name
        self._count(policy.report, "starttls-not-supported", host, session.facts.address, why)
        if policy.required or policy.requiretls:
            session.connection.quit()
            raise DeliveryError(f"4.7.4 {host}: {why}{policy.demand}", Stage.TLS)

    def _is_opportunistic(self, policy: HostPolicy) -> bool:
        return policy.mode is TlsMode.OPPORTUNISTIC and not policy.requiretls

    def _count(
        self,
        report: tuple[str, str, str],
        result: str = "successful",
        host: str = "",
        address: str = "",
        why: str = "",
    ) -> None:
        policy_type, domain, policy = report
        if domain:
            text = why[:_REASON]
            self._results.count(TlsResult(domain, policy_type, policy, result, host, address, text))
