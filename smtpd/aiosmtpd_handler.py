"""smtpd's own behaviour as a handler for aiosmtpd's `Controller`.

smtpd itself does not use it. docs/hooks.md shows it, and a test runs the same dialogues in both
(tests/smtpd/hooks/test_hooks_aiosmtpd.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

from aiosmtpd.smtp import Envelope, Session

from pgmta.mail.address import parse_mailbox
from smtpd.commands.commands import Commands
from smtpd.commands.tally import Tally
from smtpd.config import SmtpdConfig
from smtpd.hooks.session_hooks import SessionHooks
from smtpd.message.end_of_data import EndOfData
from smtpd.message.incoming import IncomingMessage
from smtpd.protocol import replies
from smtpd.server.server import Server
from smtpd.session.acknowledgement import Acknowledgement
from smtpd.session.listener import SmtpListener


class AiosmtpdHandler:
    """Judges commands as smtpd does, and answers 250 after the group commit.

    It belongs to the event loop in which its first method is called.
    """

    def __init__(self, config: SmtpdConfig, uri: str) -> None:
        self._config = config
        self._uri = uri
        self._listener = SmtpListener.make(config, config.listen[0])
        self._server: Server | None = None

    async def close(self) -> None:
        """Close the connections to PostgreSQL."""
        if self._server:
            await self._server.stop(0.0)

    async def handle_HELO(
        self, server: Any, session: Session, envelope: Envelope, hostname: str
    ) -> str:
        """Take the name of the client."""
        session.host_name = hostname
        return self._commands(session).do(b"HELO", hostname)

    async def handle_EHLO(
        self,
        server: Any,
        session: Session,
        envelope: Envelope,
        hostname: str,
        responses: list[str],
    ) -> list[str]:
        """Take the name of the client, and announce what smtpd can do."""
        session.host_name = hostname
        return self._commands(session).do(b"EHLO", hostname).split("\r\n")

    async def handle_MAIL(
        self, server: Any, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        """Take the reverse-path."""
        path = address if address == "<>" else f"<{address}>"
        commands = self._commands(session)
        commands.transaction = None  # aiosmtpd has looked for a nested MAIL
        reply = commands.do(b"MAIL", " ".join((f"FROM:{path}", *options)))
        if reply[0] == "2":
            envelope.mail_from = address
            envelope.mail_options.extend(options)
        return reply

    async def handle_RCPT(
        self, server: Any, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        """Take a recipient if the client may send to it."""
        commands, relay = self._commands(session), self._begin()
        reply = commands.do(b"RCPT", f"TO:<{address}>")
        while reply is replies.LOOK_UP and relay.directory:
            await relay.directory.look_up(*parse_mailbox(commands.path, utf8=True))
            reply = commands.do(b"RCPT", f"TO:<{address}>")
        if reply[0] == "2":
            envelope.rcpt_tos.append(address)
        return reply

    async def handle_RSET(self, server: Any, session: Session, envelope: Envelope) -> str:
        """Forget the transaction."""
        return self._commands(session).do(b"RSET", "")

    async def handle_NOOP(
        self, server: Any, session: Session, envelope: Envelope, argument: str | None
    ) -> str:
        """Answer that the session works."""
        return self._commands(session).do(b"NOOP", argument or "")

    async def handle_VRFY(
        self, server: Any, session: Session, envelope: Envelope, address: str
    ) -> str:
        """Say nothing about an address (RFC 5321, section 3.5.3)."""
        return self._commands(session).do(b"VRFY", address)

    async def handle_QUIT(self, server: Any, session: Session, envelope: Envelope) -> str:
        """Say goodbye."""
        return self._commands(session).do(b"QUIT", "")

    async def handle_DATA(self, server: Any, session: Session, envelope: Envelope) -> str:
        """Check the content, commit the message, and return 250 when it is durable."""
        commands = self._commands(session)
        relay = self._begin()
        exchange = _Exchange(relay, commands, self._listener)
        exchange.incoming.take(envelope.original_content or b"")
        Acknowledgement(relay, self._listener, exchange, exchange).complete()
        return await exchange.answer

    async def handle_exception(self, error: Exception) -> str:
        """Answer for an error of this program."""
        return replies.INTERNAL

    def _begin(self) -> Server:
        if not self._server:
            self._server = Server(self._config, self._uri)
            self._server.start()
        return self._server

    def _commands(self, session: Any) -> Commands:
        """Return what the commands of a session have said so far, noted in the session."""
        if not hasattr(session, "smtpd_commands"):
            client = str(session.peer[0])
            tally = Tally(self._config.limits, spared=True)
            session.smtpd_commands = Commands(
                self._begin(), self._listener, client, session.peer, tally
            )
        commands: Commands = session.smtpd_commands
        return commands


class _Exchange:
    """The session and the connection of one message, as far as its acknowledgement needs them."""

    hooks: SessionHooks | None = None
    transport: Any = object()  # the connection is open as long as aiosmtpd waits
    unread = busy = large = False
    copies = 0
    spent = data_deadline = 0.0

    def __init__(self, relay: Server, commands: Commands, listener: SmtpListener) -> None:
        self.commands = commands
        self.client = str(commands.session.peer[0]) if commands.session.peer else ""
        self.listener, self.session_id = listener.label, next(relay.session_ids)
        self.tally = Tally(relay.config.limits)
        self.incoming: Any = IncomingMessage(
            relay.config, relay.committer, EndOfData(listener.bare_newlines)
        )
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.closing = self.share = cast(Any, self)
        self._task: asyncio.Task[None] | None = None

    def reply(self, reply: str) -> None:
        """Answer with a refusal."""
        self.resume(reply)

    def repeated(self, reply: str) -> str:
        """Return the reply once."""
        return reply

    def resume(self, reply: str = "") -> None:
        """Answer with the reply to the end of data."""
        if reply and not self.answer.done():
            self.answer.set_result(reply)

    def suspend(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what comes before the commit."""
        self._task = asyncio.create_task(work)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and not self.answer.done():
            self.answer.set_exception(error)  # or aiosmtpd would wait for ever

    def stop(self) -> None:
        """Leave the end of the session to aiosmtpd."""

    def chunk_over(self) -> None:
        """Do nothing: aiosmtpd has no BDAT."""

    def hang_up(self, *, linger: bool = True) -> None:
        """Leave the connection to aiosmtpd."""
