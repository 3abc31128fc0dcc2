"""One SMTP session: command lines, and the content that follows DATA (RFC 5321, section 3)."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from pgmta.model import CHUNK_SIZE
from smtpd import replies
from smtpd.acknowledgement import Acknowledgement, Wire
from smtpd.commands import JUNK, Commands
from smtpd.hooks.judgement import Judgement
from smtpd.hooks.server import HookServer, HookTransport
from smtpd.hooks.session_hooks import SessionHooks
from smtpd.incoming import IncomingMessage
from smtpd.listener import SmtpListener
from smtpd.server import Server
from smtpd.tally import HTTP, Consequence, Tally

_COMMAND_SIZE = 2048  # octets of a command (RFC 5321, section 4.5.3.1.4 asks for 512 at least)

_SPARED = 1 << 16  # octets of a message that is taken for a hook although memory is used up


class SessionWire(Wire, Protocol):
    """The connection, as far as a session needs it."""

    delayed: bool

    def reply(self, reply: str) -> None:
        """Add a reply."""


class SmtpSession:
    """Answers the commands that a connection reads."""

    def __init__(
        self, server: Server, listener: SmtpListener, wire: SessionWire, peer: Any
    ) -> None:
        self._server = server
        self._wire = wire
        self.tally = Tally(server.config.limits)
        """The errors of the client."""
        self.commands = Commands(server, listener.handler, wire.client, peer)
        """The commands and their arguments so far."""
        self.hooks = self._make_hooks(listener) if listener.phases.hooks else None
        """The hooks of the listener, if there are any."""
        self.acknowledgement = Acknowledgement(server, listener, wire, self)
        """How the end of a message is answered."""
        self.incoming: IncomingMessage | None = None
        """The message under way, from DATA to the reply to its end."""

    def _make_hooks(self, listener: SmtpListener) -> SessionHooks:
        server, commands, wire = self._server, self.commands, self._wire
        assert wire.transport  # noqa: S101 - a session begins with its connection
        seen = HookServer(
            hostname=server.hostname,
            ident=replies.IDENT,
            message_size=server.config.limits.message_size,
            session=commands.session,
            transport=HookTransport(wire.transport, server.loop),
        )
        judgement = Judgement(listener.handler, wire.client)
        return SessionHooks(listener.phases, commands, judgement, seen, wire.closing.fail)

    # -- command lines --

    def line(self, line: bytes) -> None:
        """Do the command in a line, which has come without its line end."""
        if len(line) > _COMMAND_SIZE:
            self.reply(replies.LINE_TOO_LONG)
            return
        word, _, rest = line.partition(b" ")
        word = word.upper()
        argument = rest.strip().decode("utf-8", "surrogateescape")
        transaction = self.commands.transaction
        known = len(transaction.recipients) if transaction else 0
        if self.hooks and word in self.hooks.words:
            reply = self.hooks.ask(word, argument, partial(self._answered, word, known))
            if reply:
                self._conclude(word, known, reply)
            else:
                self._wire.busy = True  # until the hooks answer
            return
        reply = self.commands.do(word, argument)
        if reply:
            self.reply(reply)
            if reply is replies.DATA_GO:
                whole = bool(self.hooks and self.hooks.content_steps)
                server = self._server
                self.incoming = IncomingMessage(server.config, server.committer, whole=whole)
                self._wire.closing.content_begins()
            elif reply is replies.BYE:
                self._wire.closing.hang_up(linger=self._wire.unread)
            else:
                self._count_useless(word, known, reply)
        elif word in HTTP:
            self._wire.closing.refuse(replies.NOT_HTTP)
        elif self.tally.unknown() is Consequence.END:
            self._wire.closing.refuse(replies.TOO_MANY_UNKNOWN)
        else:
            self.reply(replies.UNKNOWN_COMMAND)

    def _answered(self, word: bytes, known: int, reply: str) -> None:
        """Send the reply of the hooks, and go on with the next command."""
        self._conclude(word, known, reply)
        self._wire.resume()

    def _conclude(self, word: bytes, known: int, reply: str) -> None:
        """Send the reply to a command that hooks were asked about."""
        self.reply(reply)
        if word == b"QUIT" or reply[:3] == "421":  # RFC 5321, section 3.8
            self._wire.closing.hang_up(linger=self._wire.unread)
        else:
            self._count_useless(word, known, reply)

    def _count_useless(self, word: bytes, known: int, reply: str) -> None:
        """Count a command that carries no mail, or a RCPT that added no recipient to `known`."""
        transaction = self.commands.transaction
        if word in JUNK or (
            word == b"RCPT"
            and reply[0] != "5"
            and transaction
            and len(transaction.recipients) == known  # one too many, or one twice
        ):
            self._follow(self.tally.junk(self._server.loop.time()))

    def reply(self, reply: str) -> None:
        """Send a reply; a 5xx counts as an error of the client."""
        self._wire.reply(reply)
        if reply[0] == "5":
            self._follow(self.tally.error())

    def _follow(self, consequence: Consequence) -> None:
        """Do what follows from an error."""
        if consequence is Consequence.END:
            self._wire.closing.refuse(replies.TOO_MANY_ERRORS)
        elif consequence is Consequence.DELAY:
            self._wire.delayed = True

    # -- content (section 4.1.1.4) --

    def grown(self) -> None:
        """Look after the content: more of it has come, and not yet its end."""
        incoming = self.incoming
        if not incoming:
            return
        if incoming.large:
            self._wire.share.large = True
        if incoming.full:
            self._wire.suspend(incoming.store())
        elif incoming.whole and self._server.memory.over and incoming.size > _SPARED:
            incoming.give_up()
        elif incoming.excessive:
            limit = self._server.config.limits.message_size
            self._wire.closing.refuse(replies.TOO_LARGE.format(limit))

    def abandon(self) -> None:
        """Forget the transaction under way: the connection has ended."""
        if self.hooks:
            self.hooks.abandon()
        if self.incoming:
            self.incoming.content.discard()
            self.incoming = None

    @property
    def octets(self) -> int:
        """Content of the transaction under way that is in memory."""
        return self.incoming.octets if self.incoming else 0

    @property
    def collecting(self) -> bool:
        """Whether the client sends content that may still become a message."""
        return self.incoming is not None and not self.incoming.refused

    @property
    def committing(self) -> bool:
        """Whether a message of the session waits for its commit."""
        return self.incoming is not None and self.incoming.content.done is not None

    @property
    def holds_replies(self) -> bool:
        """Whether the replies so far leave together with that of a hook."""
        return self.hooks is not None and self.hooks.holds_replies(self._server.loop.time())

    @property
    def in_content(self) -> bool:
        """Whether a message is under way."""
        return self.incoming is not None

    def write_ahead(self) -> bool:
        """Begin to write content in memory into the database; False if there is too little.

        Content for a hook stays in memory, because the hook gets all of it (`grown` refuses it).
        """
        incoming = self.incoming
        if not incoming or incoming.whole or incoming.content.collected < CHUNK_SIZE:
            return False
        self._wire.suspend(incoming.store(CHUNK_SIZE))
        return True
