"""A handler for an aiosmtpd `Controller` of one's own: its mail goes into the queue.

`AiosmtpdHandler` is public. docs/programs/hooks.md shows its use, and
examples/aiosmtpd_controller.py is a whole program. smtpd itself does not use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from aiosmtpd.lmtp import LMTP
from aiosmtpd.smtp import Envelope, Session

from pgmta.config.environment import Database
from pgmta.config.loader import read_settings
from pgmta.errors import ConfigError
from pgmta.logs import get
from smtpd.commands.commands import Commands
from smtpd.commands.listener import SmtpListener
from smtpd.commands.tally import Tally
from smtpd.config import Listener, SmtpdConfig
from smtpd.hooks.answer import login
from smtpd.hooks.decisions import Decisions
from smtpd.hooks.judgement import Judgement
from smtpd.message.end_of_data import EndOfData
from smtpd.message.incoming import IncomingMessage
from smtpd.protocol import replies
from smtpd.server.server import Server
from smtpd.session.accepted_message import compose, header_rules
from smtpd.tls.tls_facts import TlsFacts

_LOCAL_PEER = ("127.0.0.1", 0)  # stands for the peer of a Unix socket

_COUNTING_KEYS: dict[str, frozenset[str] | None] = {  # keys of sections; None: all of them
    "environment": frozenset(("hostname",)),
    "limits": frozenset(("message_size", "recipients", "hops", "slow_commit", "late_commit")),
    "log": frozenset(("accepted",)),
    **dict.fromkeys(
        ("relay", "postmaster", "metadata", "content", "submission", "bounces", "ingest")
    ),
}

log = get("handler")


class AiosmtpdHandler:
    """Judges MAIL, RCPT and content as smtpd does, and answers 250 once the message is durable.

    `uri` is a libpq URI of the queue's database. Its login needs the role `pgmta_smtpd`. `settings`
    has keys of smtpd.yaml: `relay`, `postmaster`, `metadata`, `content`, `submission`, `bounces`,
    `ingest`, `environment.hostname`, `log.accepted`, and of `limits` `message_size`, `recipients`,
    `hops`, `slow_commit` and `late_commit`. Without settings smtpd's defaults count: clients of
    this host may send to any address, and no other client may send. Raises ConfigError for a URI
    or settings with mistakes, and for other keys.

    A client gets 451 while PostgreSQL is away or slow, and after an error of this program. A user
    whom the authenticator of the Controller has let in may send to any address. `auth_data` names
    the senders of the user, as in hooks. LMTP gets a reply for each recipient.

    A subclass may override `handle_RCPT` and the other methods, and then call these. The envelope
    counts as `handle_DATA` finds it: addresses that pass the same checks, `content`, and the
    decisions in `envelope.pgmta`.

    A handler belongs to one Controller, in whose event loop its methods run. Call `close` before
    `controller.stop()`.
    """

    def __init__(self, uri: str, settings: Mapping[str, Any] | None = None) -> None:
        # a line per message in the log only if the program asks for it
        given = {"log": {"accepted": False}, **(settings or {})}
        self._config = config = read_settings(given, SmtpdConfig)
        self._uri = read_settings({"uri": uri}, Database).uri or ""
        if others := list(_without_effect(config)):
            raise ConfigError([f"{key}: has no effect on a Controller" for key in others])
        self._listener = SmtpListener(config, Listener())
        self._lmtp = SmtpListener(config, Listener(protocol="lmtp"))
        self._server: Server | None = None
        self._closing = False
        self._open: set[asyncio.Future[str]] = set()  # replies to the end of data that are due

    def close(self, seconds: float = 10.0) -> None:
        """Do as `aclose`, from any thread but that of the Controller's event loop."""
        self._closing = True
        if server := self._server:
            asyncio.run_coroutine_threadsafe(self.aclose(seconds), server.loop).result()

    async def aclose(self, seconds: float = 10.0) -> None:
        """Wait for messages under way, then close the connections to PostgreSQL.

        It waits for at most `seconds`. Further mail gets 421.
        """
        self._closing = True
        if self._open:
            await asyncio.wait(self._open, timeout=seconds)
        server, self._server = self._server, None
        if server:
            await server.stop(0.0)

    async def handle_EHLO(
        self, server: Any, session: Session, envelope: Envelope, name: str, lines: list[str]
    ) -> list[str]:
        """Add an extension that works in aiosmtpd, and that it does not announce."""
        session.host_name = name
        return [*lines[:-1], "250-PIPELINING", lines[-1]]

    async def handle_MAIL(
        self, server: Any, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        """Take the reverse-path."""
        if self._closing:
            return self._shutting_down
        commands = self._commands(server, session)
        path = address if address == "<>" else f"<{address}>"
        reply = commands.do_command(b"MAIL", " ".join((f"FROM:{path}", *options)))
        if transaction := commands.transaction:
            envelope.mail_from = transaction.sender or "<>"
            envelope.mail_options = options
            vars(envelope).update(pgmta_commands=commands, pgmta_accepted=0, pgmta=Decisions())
            transaction.set_envelope(envelope)
        return reply

    async def handle_RCPT(
        self, server: Any, session: Session, envelope: Any, address: str, options: list[str]
    ) -> str:
        """Take a recipient if the client may send to it."""
        commands: Commands = envelope.pgmta_commands
        reply = commands.do_command(b"RCPT", f"TO:<{address}>")
        while reply is replies.LOOK_UP:
            await commands.look_up()
            reply = commands.do_command(b"RCPT", f"TO:<{address}>")
        envelope.pgmta_accepted += reply[0] == "2"
        return reply

    async def handle_DATA(self, server: Any, session: Session, envelope: Any) -> str:
        """Check the content, commit the message, and return 250 when it is durable."""
        reply = self._shutting_down if self._closing else await self._store(envelope)
        # LMTP has a reply for each recipient (RFC 2033, section 4.2)
        copies = max(1, envelope.pgmta_accepted) if isinstance(server, LMTP) else 1
        return "\r\n".join([reply] * copies)

    async def handle_exception(self, error: Exception) -> str:
        """Log an error of this program, and answer for it."""
        log.error("error in a session", exc_info=error)
        return replies.INTERNAL

    async def _store(self, envelope: Any) -> str:
        """Have a message committed as its envelope is now; return the reply."""
        relay, commands = self._begin(), envelope.pgmta_commands
        transaction, client = commands.transaction, str(commands.session.peer[0])
        judgement = Judgement(self._listener.handler, relay.directory)
        await judgement.look_up(judgement.unseen(transaction))
        if problem := judgement.problem(transaction):
            log.error("the handler has changed the envelope", reason=problem, client=client)
            return replies.INTERNAL
        reply: str = commands.do_command(b"DATA", "")
        if reply is not replies.DATA_GO:
            return reply
        content = envelope.content
        if not isinstance(content, bytes):  # the Controller decodes it
            content = envelope.original_content
        return await self._commit(relay, commands, client, content)

    async def _commit(self, relay: Server, commands: Commands, client: str, content: bytes) -> str:
        """Return the reply to the end of data.

        A message whose client goes before its commit begins is given up.
        """
        user, listener = commands.login, self._listener
        check = self._config.submission.check_from
        rules = header_rules(relay, user, completes=False, refuses=check)
        incoming = IncomingMessage(
            self._config, relay.committer, EndOfData(listener.bare_newlines), header_rules=rules
        )
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._open.add(answer)
        answer.add_done_callback(self._open.discard)

        def committed(error: Exception | None) -> None:
            if not answer.done():
                number = incoming.content.id
                answer.set_result(replies.UNAVAILABLE if error else replies.QUEUED.format(number))

        try:
            incoming.take_content(content)
            refusal = incoming.finish()
            if not (refusal or incoming.ready):
                refusal = await incoming.prepare()
            if refusal:
                return refusal
            message = compose(relay, listener, commands, client, incoming)
            template: Sequence[str] = ()
            if relay.accepted:
                user_name = user.user if user else ""
                template = relay.accepted.template(
                    client, user_name, listener.label, next(relay.session_ids)
                )
            relay.committer.commit(incoming.content, message, committed, template)
            return await answer
        finally:
            incoming.content.discard()  # without effect once the commit has begun
            answer.cancel()

    def _begin(self) -> Server:
        if not self._server:
            self._server = Server(self._config, self._uri)
            self._server.start()
        if self._server.loop is not asyncio.get_running_loop():
            raise RuntimeError("an AiosmtpdHandler belongs to one Controller")
        return self._server

    def _commands(self, server: Any, session: Session) -> Commands:
        """Return what does the commands of one transaction."""
        proxy = session.proxy_data
        listener = self._lmtp if isinstance(server, LMTP) else self._listener
        peer: Any = session.peer if isinstance(session.peer, tuple) else _LOCAL_PEER
        client = proxy.src_addr if proxy else None
        identified = isinstance(client, IPv4Address | IPv6Address)
        peer = (str(client), proxy.src_port) if proxy and identified else peer
        tally = Tally(self._config.limits, spared=True)
        trusted = identified or not proxy  # a proxy has to name the client first
        commands = Commands(self._begin(), listener, str(peer[0]), peer, tally, trusted=trusted)
        if cipher := server.transport.get_extra_info("cipher"):
            commands.secured(TlsFacts(cipher[1], cipher[0]))
        if session.authenticated is True:
            commands.log_in(login(session.auth_data, "", ""))
        commands.session.host_name = session.host_name
        commands.session.extended_smtp = session.extended_smtp
        return commands

    @property
    def _shutting_down(self) -> str:
        return replies.SHUTTING_DOWN.format(self._config.environment.hostname)


def _without_effect(config: SmtpdConfig) -> Iterator[str]:
    """Yield the keys of the settings that do not count."""
    for name in sorted(config.model_fields_set):
        if name not in _COUNTING_KEYS:
            yield name
        elif keys := _COUNTING_KEYS[name]:
            given: set[str] = getattr(config, name).model_fields_set
            yield from (f"{name}.{key}" for key in sorted(given - keys))
