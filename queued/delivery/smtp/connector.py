"""From a host to a session with it: connect, greet, STARTTLS, AUTH, as its TLS policy asks."""

from __future__ import annotations

import asyncio
import time

from pgmta.errors import DeliveryError, Stage, system_reason
from queued.config import Delivery
from queued.delivery.dns.hosts import Host
from queued.delivery.smtp.client_session import ClientSession
from queued.delivery.smtp.connection import ClientProtocol
from queued.delivery.smtp.sasl import authenticate
from queued.delivery.smtp.smtp_parameters import SmtpParameters
from queued.delivery.tls.handshake import BrokenTls, server_name, shake_hands
from queued.delivery.tls.policy_finder import PolicyFinder
from queued.delivery.tls.tls_policy import HostPolicy, TlsMode
from queued.delivery.transport.connection_facts import ConnectionFacts


class Connector:
    """Opens sessions with hosts, each under its TLS policy."""

    def __init__(self, hostname: str, delivery: Delivery, security: PolicyFinder) -> None:
        self._hostname = hostname
        self._delivery = delivery
        self._timeouts = delivery.timeouts
        self._security = security

    async def connect_host(
        self,
        parameters: SmtpParameters,
        host: Host,
        facts: ConnectionFacts,
        policy: HostPolicy,
        *,
        lmtp: bool,
    ) -> ClientSession:
        """Return a session with `facts.address` under the policy, or under a weaker one.
        The weaker one is for a host whose TLS is broken, if the policy allows it. A host whose TLS
        failed twice gets plain text for a while, without another try. Raises DeliveryError.
        """
        begun = time.monotonic()
        while True:
            protocol = ClientProtocol(self._timeouts)
            session = ClientSession(protocol, host, facts, self._delivery, lmtp=lmtp)
            try:
                await self._open(session, parameters, policy)
                session.idle_since = time.monotonic()
                return session
            except BrokenTls as error:
                weaker = policy.weaker()
                if weaker is None:
                    raise
                policy = weaker
                if policy.mode is TlsMode.NONE:
                    await self._security.memory.note_failure(str(host.place), error.line, begun)

    async def _open(
        self, session: ClientSession, parameters: SmtpParameters, policy: HostPolicy
    ) -> None:
        begun, facts = time.monotonic(), session.facts
        try:
            await self._connect(session)
            facts.connect_seconds = time.monotonic() - begun
            if parameters.implicit:
                await self._shake_hands(session, policy)
            await session.open(self._hostname)
            spent = time.monotonic() - begun
            facts.greeting_seconds = spent - facts.connect_seconds - facts.tls_seconds
            await self._secure(session, policy)
            if login := parameters.login:
                await authenticate(session, login, clear=parameters.tls is TlsMode.NONE)
        except BaseException:
            session.abort()
            raise

    async def _connect(self, session: ClientSession) -> None:
        host, address = session.host, session.facts.address
        where = f"4.4.1 connect to {host.name}[{address}]:{host.port}"
        if host.name == address:
            where = f"4.4.1 connect to {host.place}"
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeouts.connect) as session.connect_limit:
                await loop.create_connection(lambda: session.connection, address, host.port)
        except TimeoutError:
            reason = session.connection.reason or "timeout"
            raise DeliveryError(f"{where}: {reason}", Stage.CONNECT) from None
        except OSError as error:
            raise DeliveryError(f"{where}: {system_reason(error)}", Stage.CONNECT) from None

    # -- TLS --

    async def _secure(self, session: ClientSession, policy: HostPolicy) -> None:
        """Start TLS as the policy asks, and greet the server again (RFC 3207).

        Under TLS already, only the extensions are checked. Raises DeliveryError. After BrokenTls
        another connection may do.
        """
        host, memory = str(session.host.place), self._security.memory
        if policy.mode is TlsMode.NONE:
            return
        if session.facts.tls_version:
            self._accept(session, policy)
            return
        if "STARTTLS" not in session.extensions:
            self._missing(session, policy, "the host does not offer STARTTLS")
            return
        opportunistic = policy.mode is TlsMode.OPPORTUNISTIC and not policy.requiretls
        if opportunistic and await memory.is_broken(host):
            session.add_note("no STARTTLS: TLS with the host failed a while ago")
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
        await self._shake_hands(session, policy)
        try:
            await session.greet(self._hostname)
        except DeliveryError as error:
            raise self._broken(session, policy, error) from None
        memory.note_success(host)
        self._accept(session, policy)

    async def _shake_hands(self, session: ClientSession, policy: HostPolicy) -> None:
        """Do the handshake, and note its facts. Raises BrokenTls, DeliveryError."""
        began = time.monotonic()
        facts, security = session.facts, self._security
        start = session.connection.start_tls
        try:
            found = await shake_hands(start, security.contexts, policy, session.host.name)
        except BrokenTls as error:
            if session.connection.ended_by_operator:
                raise DeliveryError(session.connection.reason, Stage.TLS) from None
            why = error.line.partition(": ")[2]
            security.count(policy.report, error.result, session.host.name, facts.address, why)
            if policy.weaker():
                session.add_note(error.line)  # without TLS the attempt goes on
            raise BrokenTls(error.line + policy.demand, error.result) from None
        facts.tls_version, facts.tls_cipher = found
        facts.tls_verified = policy.verified
        facts.tls_seconds = time.monotonic() - began
        session.add_note(f"{facts.tls_version} {facts.tls_cipher}, verified: {facts.tls_verified}")
        security.count(policy.report)

    def _broken(
        self, session: ClientSession, policy: HostPolicy, error: DeliveryError
    ) -> DeliveryError:
        """Return the error of a host that closes or hangs on the way to TLS.

        A reply is another matter, and so is a server that breaks the protocol, or an operator.
        """
        connection = session.connection
        if error.code or connection.violated or connection.ended_by_operator:
            return error
        host, address = session.host.name, session.facts.address
        self._security.count(policy.report, "validation-failure", host, address, error.line)
        return BrokenTls(f"4.7.5 TLS with {host}: {error.line}{policy.demand}")

    def _accept(self, session: ClientSession, policy: HostPolicy) -> None:
        """Keep the TLS session for the next connection.

        Raises DeliveryError if a sender's REQUIRETLS would end here (RFC 8689, section 4.2.1).
        """
        # a resumed session has no certificates, and TLSA records may have changed since
        if session.connection.tls and policy.mode is not TlsMode.DANE:
            name = server_name(policy, session.host.name)
            self._security.contexts.find_context(policy.mode).keep(name, session.connection.tls)
        if policy.requiretls and "REQUIRETLS" not in session.extensions:
            session.close()
            raise DeliveryError(
                f"5.7.30 {session.host.name} does not know REQUIRETLS", Stage.TLS, permanent=True
            )

    def _missing(self, session: ClientSession, policy: HostPolicy, why: str) -> None:
        """Count a host without STARTTLS. Raises DeliveryError if the policy asks for it."""
        host, address = session.host.name, session.facts.address
        self._security.count(policy.report, "starttls-not-supported", host, address, why)
        if policy.required or policy.requiretls:
            session.close()
            raise DeliveryError(f"4.7.4 {host}: {why}{policy.demand}", Stage.TLS)
