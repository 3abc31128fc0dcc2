"""The beginning of a connection: PROXY header, TLS, greeting; and STARTTLS and XCLIENT."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from pgmta.accounts.login import AuthUnavailable, Login
from smtpd.commands.listener import SmtpListener
from smtpd.hooks.phases import Phases
from smtpd.protocol import replies, xclient
from smtpd.protocol.proxy import ProxyError, ProxyHeader, parse
from smtpd.server.server import Server
from smtpd.session.connection import Connection
from smtpd.session.phase import Phase
from smtpd.session.session import LmtpSession, SmtpSession
from smtpd.session.timeouts import Watch
from smtpd.tls.server_handshake import reason, shake_hands
from smtpd.tls.tls_facts import TlsFacts

MAX_READ_AHEAD_OCTETS = 1 << 16  # before the greeting
PROXY_HEADER_TIMEOUT_S = 10.0  # until it is complete
_LOCAL_PEER = ("127.0.0.1", 0)


class Opening:
    """Brings one connection to its greeting, and into TLS.

    Meanwhile the phase of the connection is OPENING: input comes here, and not to the session.
    """

    def __init__(self, server: Server, listener: SmtpListener, phases: Phases) -> None:
        self._server = server
        self._listener = listener
        self.connection = Connection(
            server,
            listener.label,
            begin=self._begin_connection,
            receive=self._received,
            lost=self._lost,
        )
        """The connection that it opens."""
        self._watch = Watch(server, self.connection)
        restarts = {replies.READY_FOR_TLS: self._start_tls, replies.XCLIENT_GO: self._identify}
        kind = LmtpSession if listener.protocol == "lmtp" else SmtpSession
        self._make_session = partial(kind, server, listener, phases, self.connection, restarts)
        self._session: SmtpSession
        self._timer: asyncio.TimerHandle | None = None  # for the PROXY header
        self._peer: Any = None
        self._early = b""  # octets that came before the greeting
        self._in_handshake = False
        self._peer_is_proxy = False  # a proxy's certificate says nothing about the client

    def _begin_connection(self, peer: Any) -> None:
        """Count a new connection, and begin; or turn it away."""
        connection, server = self.connection, self._server
        peer = peer or (_LOCAL_PEER if self._listener.local else None)
        if not peer:  # the client reset the connection, so what it may relay is unknown
            connection.drop()
            return
        self._peer = peer
        address = str(peer[0])
        proxied = bool(self._listener.proxy and self._listener.proxy.contains(address))
        client = "" if proxied else address
        self._peer_is_proxy = self._listener.speaks_for_others(address)
        self._begin_session(client, peer, trusted=not self._peer_is_proxy)
        if refusal := server.admit(connection.member, client):
            connection.turn_away()
            reply = f"{refusal.format(server.hostname)}\r\n".encode()
            assert connection.transport  # noqa: S101 - for the type checker
            server.turn_away(connection.transport, reply)
            return
        self._watch.begin()
        if proxied:
            self._timer = server.loop.call_later(
                PROXY_HEADER_TIMEOUT_S, self._refuse_proxy, "did not come"
            )
        else:
            self._identified()

    def _begin_session(self, client: str, peer: Any, *, trusted: bool) -> SmtpSession:
        self._session = session = self._make_session(client, peer, trusted=trusted)
        self._watch.follow(session)
        return session

    def _received(self, data: bytes) -> None:
        """Take octets that are not for the session: a PROXY header, or the first ones of TLS."""
        self._early += data
        if len(self._early) > MAX_READ_AHEAD_OCTETS:
            self.connection.pause_reading()
        if not self._timer:
            return
        try:
            header = parse(self._early)
        except ProxyError as error:
            self._refuse_proxy(str(error))
            return
        if header:
            self._timer.cancel()
            self._timer = None
            self._early = self._early[header.length :]
            self._proxied(header)

    def _take(self) -> bytes:
        """Return what came meanwhile, and forget it."""
        data, self._early = self._early, b""
        return data

    def _proxied(self, header: ProxyHeader) -> None:
        """Go on with the client that a PROXY header names."""
        connection, server, client = self.connection, self._server, header.client
        if not client:  # the proxy itself is the client, for example with a health check
            self._begin_session(str(self._peer[0]), self._peer, trusted=False)
        elif refusal := server.identify(connection.member, client):
            connection.refuse(refusal)
            return
        else:
            self._peer_is_proxy = self._listener.speaks_for_others(client)
            peer = (client, header.port)
            self._begin_session(client, peer, trusted=not self._peer_is_proxy)
        self._identified()

    def _identify(self, argument: str) -> None:
        """Do XCLIENT: begin anew with the client that it names; TLS goes on.

        There is one per connection: later lines may come from the client.
        """
        try:
            named = xclient.parse(argument)
        except ValueError:
            self._session.replier.reply(replies.SYNTAX_XCLIENT)
            return
        if named.login:
            self.connection.suspend(self._vouched(named))
        else:
            self._begin_anew(named)

    async def _vouched(self, named: xclient.Named) -> None:
        """Do XCLIENT with LOGIN: the proxy has checked the password."""
        connection, logins = self.connection, self._server.logins
        assert logins  # noqa: S101 - a listener of the process has `xclient`
        try:
            login = await logins.vouched(named.login, named.address or str(self._peer[0]))
        except AuthUnavailable as error:
            logins.unavailable(error)
            connection.refuse(replies.NO_XCLIENT_NOW)
            return
        if not login:
            self._session.replier.reply(replies.AUTH_FAILED)
        elif connection.phase is Phase.BUSY:  # not if the session has begun to end
            self._begin_anew(named, login)

    def _begin_anew(self, named: xclient.Named, login: Login | None = None) -> None:
        connection, server, before = self.connection, self._server, self._session
        client = named.address
        if client and (refusal := server.identify(connection.member, client)):
            connection.refuse(refusal)
            return
        before.abandon()
        peer = (client, named.port) if client else self._peer
        session = self._begin_session(client or connection.client, peer, trusted=bool(client))
        session.commands.forbid_xclient()
        if before.commands.tls:
            session.secured(before.commands.tls)
        if login:
            session.log_in(login)
        self._watch.expect_hello()
        connection.flush()
        connection.begin_opening()
        self.greet()

    def _refuse_proxy(self, problem: str) -> None:
        """Close the connection of a proxy that does not say for whom it is."""
        self._server.bad_headers.note(
            **(self.connection.log_values | {"client": str(self._peer[0])}), reason=problem
        )
        if self.connection.transport:
            self.connection.transport.abort()

    def _identified(self) -> None:
        if self._listener.tls == "implicit":
            self.connection.suspend(self._secure_first())
        else:
            self.greet()

    def greet(self) -> None:
        """Send the greeting, and take commands; hooks are asked before."""
        hooks = self._session.hooks
        if not (hooks and hooks.connect(self._greeted)):
            self._greet(replies.GREETING.format(self._server.hostname))

    def _greeted(self, reply: str) -> None:
        """Greet, or send the refusal of a hook (RFC 5321, section 3.1)."""
        connection, code = self.connection, reply[:3]
        if not reply or code[0] == "2":
            usual = replies.GREETING.format(self._server.hostname)
            self._greet(f"{reply}\r\n" if code == "220" else usual)
            return
        connection.reply(reply)
        if code == "421":
            connection.forget()
            connection.end_opening(b"")
            connection.hang_up()
            return
        connection.flush()
        self._session.refuse(replies.ONLY_QUIT)
        connection.end_opening(self._take())

    def _greet(self, greeting: str) -> None:
        connection = self.connection
        if self._listener.early == "refuse" and self._has_input():
            self._take()
            connection.refuse(replies.TOO_EARLY)
            return
        if transport := connection.transport:
            transport.write(greeting.encode())
        connection.end_opening(self._take())

    def _has_input(self) -> bool:
        """Return whether the client sends before the greeting (RFC 5321, section 3.1).

        smtpd does not wait for such input, so that a greeting costs no time.
        """
        connection = self.connection
        plain = not self._session.commands.tls  # otherwise it may be about TLS itself
        return bool(self._early) or (plain and connection.kernel_octets() > 0)

    async def _secure_first(self) -> None:
        """Begin TLS before the greeting (RFC 8314, section 3.3)."""
        if await self._secure():
            self.greet()

    def _start_tls(self, _: str) -> None:
        """Answer STARTTLS, and begin TLS (RFC 3207, section 4).

        Input after the command would be plain text that an attacker may have added. It ends the
        session.
        """
        connection = self.connection
        connection.pause_reading()
        if connection.unread:
            connection.refuse(replies.INPUT_AFTER_STARTTLS)
            return
        connection.reply(replies.READY_FOR_TLS)
        connection.flush()
        connection.begin_opening()
        connection.suspend(self._secure_later())

    async def _secure_later(self) -> None:
        if not await self._secure():
            return
        session = self._session
        if session.hooks and not await session.hooks.admit_tls():
            session.refuse(replies.NOT_SECURE)
        self.connection.end_opening(self._take())

    async def _secure(self) -> bool:
        """Do the handshake; return False if the connection is lost."""
        connection, contexts = self.connection, self._listener.contexts
        transport = connection.transport
        if not transport or not contexts or connection.blocked:
            if transport:
                transport.abort()
            return False
        protocol: Any = connection
        self._in_handshake = True
        try:
            secured = await shake_hands(
                self._server.loop, transport, protocol, contexts.context, self._take
            )
        except OSError as error:
            transport.abort()
            connection.connection_lost(error)  # uvloop does not call it during a handshake
            return False
        self._in_handshake = False
        connection.secured(secured)
        self._watch.expect_hello()
        clients = None if self._peer_is_proxy else contexts.clients
        facts = TlsFacts.read(secured.get_extra_info("ssl_object"), clients)
        self._server.count_handshake(facts.version)
        self._session.secured(facts)
        return True

    def _lost(self, error: Exception | None) -> None:
        """Stop the timers: the connection is gone. A handshake under way has failed by that."""
        self._watch.cancel()
        if self._timer:
            self._timer.cancel()
        if self._in_handshake and not self._server.stopping:
            lost = error or ConnectionResetError("connection lost")
            self._server.note_failed_handshake(**self.connection.log_values, reason=reason(lost))


def open_connection(
    server: Server, listener: SmtpListener, phases: Phases | None = None
) -> Connection:
    """Return the protocol of a new connection, which asks the hooks of these phases."""
    return Opening(server, listener, phases or Phases()).connection
