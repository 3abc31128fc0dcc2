"""The connection as its session sees it, and commands that ask for further lines."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from pgmta.accounts.login import Login
from pgmta.mail.address import parse_mailbox
from pgmta.model import CHUNK_SIZE
from smtpd.commands.commands import JUNK, Commands
from smtpd.commands.tally import HTTP, Consequence, Tally
from smtpd.hooks.hook_server import HookServer, HookTransport
from smtpd.hooks.judgement import Judgement
from smtpd.hooks.session_hooks import SessionHooks
from smtpd.message.incoming import IncomingMessage
from smtpd.protocol import replies
from smtpd.protocol.tls_facts import TlsFacts
from smtpd.server.server import Server
from smtpd.session.acknowledgement import Acknowledgement, Wire
from smtpd.session.auth_command import AuthCommand
from smtpd.session.listener import SmtpListener
from smtpd.session.reception import Reception
from smtpd.session.refused import Refused


class Restarting(Protocol):
    """The commands after which a session begins anew."""

    def start_tls(self) -> None:
        """Answer STARTTLS, and begin TLS if no input follows the command."""

    def identify(self, argument: str) -> None:
        """Do XCLIENT: go on with the client that it names."""


class SessionWire(Wire, Protocol):
    """The connection, as far as a session needs it."""

    delayed: bool
    unidentified: bool

    def reply(self, reply: str) -> None:
        """Add a reply."""

    @property
    def opening(self) -> Restarting:
        """The beginning of the connection."""


class LineReader(Protocol):
    """A command that asks for further lines, such as AUTH (RFC 4954)."""

    most: int
    """Octets of a line, at most."""

    def line(self, line: bytes) -> None:
        """Take a line, which has come without its line end."""

    def overlong(self) -> None:
        """Take note of a line that is too long."""


_COMMAND_SIZE = 2048  # octets of a command (RFC 5321, section 4.5.3.1.4 asks for 512 at least)
_AUTH_SIZE = 12288  # octets of AUTH with an initial response (RFC 4954, section 4)
_WAITED = frozenset((b"EHLO", b"HELO", b"DATA", b"AUTH"))  # last of a pipelined group (RFC 2920)
_FURTHER = frozenset((replies.BYE, replies.CHUNK_GO, replies.AUTH_GO,
                      replies.READY_FOR_TLS, replies.XCLIENT_GO, replies.SYNTAX_BDAT,
                      replies.LOOK_UP))  # fmt: skip
_AFTER_MAIL = (replies.NO_MAIL, replies.NO_RCPT)  # to commands pipelined after a refused MAIL
_SPARED = 1 << 16  # octets of a message that is taken for a hook although memory is used up


class SmtpSession:
    """Answers the commands that a connection reads."""

    def __init__(
        self, server: Server, listener: SmtpListener, wire: SessionWire, peer: Any
    ) -> None:
        self._server = server
        self._wire = wire
        self.tally = Tally(server.config.limits, spared=server.spares(wire.client))
        """The mail and the errors of the client."""
        self.commands = Commands(server, listener, wire.client, peer, self.tally)
        """The commands and their arguments so far."""
        self.commands.trusted &= not wire.unidentified
        self.hooks = self._make_hooks(listener) if listener.phases.hooks else None
        """The hooks of the listener, if there are any."""
        self.acknowledgement = Acknowledgement(server, listener, wire, self)
        """How the end of a message is answered."""
        self.incoming: IncomingMessage | None = None
        """The message under way, from DATA to the reply to its end, or within a chunk of BDAT."""
        self.reception = Reception(server, listener, wire, self)
        """How content begins, and the message between two chunks."""
        self._early = listener.early == "refuse"
        self._data_refused = False  # a client that does not listen sends its content
        self.copies = 0
        """How often the reply to the end of data is sent, beside once in SMTP."""
        self.auth: AuthCommand | None = None
        """AUTH of the session, once there was one."""
        self.reader: LineReader | None = None
        """The command that gets the next lines, until it sets this to None."""

    def _make_hooks(self, listener: SmtpListener) -> SessionHooks:
        server, commands, wire = self._server, self.commands, self._wire
        seen = HookServer(
            hostname=server.hostname,
            ident=replies.IDENT,
            message_size=server.config.limits.message_size,
            session=commands.session,
            transport=HookTransport(lambda: wire.transport, server.loop),
            main=server.loop,
        )
        judgement = Judgement(listener.handler, wire.client, server.directory)
        return SessionHooks(listener.phases, commands, judgement, seen, wire.closing.fail)

    # -- command lines --

    def line(self, line: bytes) -> None:
        """Do the command in a line, which has come without its line end."""
        if self.reader:
            if len(line) <= self.reader.most:
                self.reader.line(line)
            else:
                self.reader.overlong()
            return
        word, _, rest = line.partition(b" ")
        word = word.upper()
        if len(line) > _COMMAND_SIZE and (word != b"AUTH" or len(line) > _AUTH_SIZE):
            self.reply(replies.LINE_TOO_LONG)
            return
        if (
            self._early
            and (word in _WAITED or not self.commands.session.extended_smtp)
            and self._wire.unread
        ):  # without EHLO there is no pipelining: the client has to wait for every reply
            self._wire.closing.refuse(replies.NOT_HTTP if word in HTTP else replies.TOO_EARLY)
            return
        argument = rest.strip(b" \t").decode("utf-8", "surrogateescape")
        transaction = self.commands.transaction
        known = len(transaction.recipients) if transaction and word == b"RCPT" else 0
        if self.auth and word == b"MAIL" and self.auth.delays(line):
            return
        if self.hooks and word in self.hooks.words:
            reply = self.hooks.ask(word, argument, partial(self._answered, word, known))
            if reply is replies.LOOK_UP:
                self._go_on(reply, argument)
            elif reply:
                self._conclude(word, known, reply)
            else:
                self._wire.busy = True  # until the hooks answer
            return
        reply = self.commands.do(word, argument)
        if reply is replies.DATA_GO:
            self.reply(reply)
            self.reception.take_data()
        elif reply in _FURTHER:
            self._go_on(reply, argument)
        elif reply:
            self.reply(reply)
            self._count_useless(word, known, reply)
            if self.reception.parked:
                self.reception.look()
        else:
            self._unknown(word)

    def _unknown(self, word: bytes) -> None:
        """Refuse a command of no known name."""
        if word in HTTP:
            self._wire.closing.refuse(replies.NOT_HTTP)
        elif self._data_refused and b":" in word:  # a header; commands of mail may follow in it
            self._wire.closing.refuse(replies.CONTENT_UNASKED)
        elif self.tally.unknown() is Consequence.END:
            self._wire.closing.refuse(replies.TOO_MANY_UNKNOWN)
        else:
            self.reply(replies.UNKNOWN_COMMAND)

    def _go_on(self, reply: str, argument: str) -> None:
        """Do a command that has more effects than a reply."""
        if reply is replies.CHUNK_GO:
            self.reception.take_chunk()
        elif reply is replies.READY_FOR_TLS:
            self._wire.opening.start_tls()
        elif reply is replies.XCLIENT_GO:
            self._wire.opening.identify(argument)
        elif reply is replies.LOOK_UP:
            self._wire.suspend(self._look_up(argument))
        elif reply is replies.AUTH_GO:
            self.auth = self.auth or AuthCommand(self, self._wire, self._server.logins)
            self.auth.begin(argument)
        elif reply is replies.SYNTAX_BDAT:
            self._wire.closing.refuse(reply)
        else:
            self.reply(reply)
            self._wire.closing.hang_up(linger=self._wire.unread)

    def secured(self, facts: TlsFacts) -> None:
        """Begin anew over TLS: only errors in plain text still count (RFC 3207, section 4.2)."""
        self.reader = None
        self.commands.secured(facts)
        self.reception.forget()
        if self.hooks:
            self.hooks.secured(facts)

    def log_in(self, login: Login) -> None:
        """Begin as a user whom a proxy has let in."""
        self.commands.log_in(login)
        self.auth = AuthCommand(self, self._wire, self._server.logins)

    def refuse(self, reply: str) -> None:
        """Answer all further commands but QUIT with this reply."""
        self.reader = Refused(self, self._wire.closing, reply)

    async def _look_up(self, argument: str) -> None:
        """Find out whether the recipient of RCPT is known, and do the command again."""
        if directory := self._server.directory:
            await directory.look_up(*parse_mailbox(self.commands.path, utf8=True))
            self.line(b"RCPT " + argument.encode("utf-8", "surrogateescape"))

    def _answered(self, word: bytes, known: int, reply: str) -> None:
        """Send the reply of the hooks, and go on with the next command."""
        self._conclude(word, known, reply)
        self._wire.resume()

    def _conclude(self, word: bytes, known: int, reply: str) -> None:
        """Send the reply to a command that hooks were asked about."""
        self.reply(reply)
        self.reception.look()
        if word == b"QUIT":
            self._wire.closing.hang_up(linger=self._wire.unread)
        else:
            self._count_useless(word, known, reply)

    def _count_useless(self, word: bytes, known: int, reply: str) -> None:
        """Count a command that carries no mail, or a RCPT that added no recipient to `known`."""
        self._data_refused = word == b"DATA"
        if reply[0] == "4":
            if reply[:3] == "421":  # RFC 5321, section 3.8
                self._wire.closing.hang_up(linger=self._wire.unread)
                return
            self._wire.delayed = self._wire.delayed or reply is replies.UNAVAILABLE
        elif word == b"MAIL" and self._server.gate.slow:
            self._wire.delayed = True
        if word == b"RCPT":
            transaction = self.commands.transaction
            if reply[0] != "5" and transaction and len(transaction.recipients) == known:
                self.useless()  # one too many, or one twice
        elif word in JUNK:
            self.useless()

    def useless(self) -> None:
        """Count a command that carries no mail."""
        self._follow(self.tally.junk(self._server.loop.time()))

    def reply(self, reply: str) -> None:
        """Send a reply; a 5xx counts as an error of the client."""
        self._wire.reply(reply)
        if reply[0] not in "45":
            return
        self._server.refusals.note(reply, self._wire, self.commands)
        if reply[0] == "5" and not (self._server.gate.closed and reply in _AFTER_MAIL):
            self._follow(self.tally.refusal(reply, login=bool(self.commands.login)))

    def _follow(self, consequence: Consequence) -> None:
        """Do what follows from an error."""
        if consequence is Consequence.END:
            self._wire.closing.refuse(replies.TOO_MANY_ERRORS)
        elif consequence is Consequence.DELAY:
            self._wire.delayed = True

    def repeated(self, reply: str) -> str:
        """Return the reply to the end of data in the form of the protocol."""
        return reply

    def chunk_over(self) -> None:
        """Answer a chunk of BDAT that is not the last."""
        self.reception.chunk_over()

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
        if self.auth:
            self.auth.abandon()
        if self.incoming:
            self.incoming.content.discard()
            self.incoming = None
        self.reception.forget()

    @property
    def octets(self) -> int:
        """Content of the transaction under way that is in memory."""
        incoming = self.incoming or self.reception.parked
        return incoming.octets if incoming else 0

    @property
    def collecting(self) -> bool:
        """Whether the client sends content that may still become a message."""
        return self.incoming is not None and not self.incoming.refused

    @property
    def committing(self) -> bool:
        """Whether a message waits for its commit, or a command for its hooks."""
        if self.incoming:
            return self.incoming.content.done is not None
        return self.hooks is not None and self.hooks.asking

    @property
    def holds_replies(self) -> bool:
        """Whether the replies so far leave together with that of a hook."""
        return self.hooks is not None and self.hooks.holds_replies(self._server.loop.time())

    @property
    def in_content(self) -> bool:
        """Whether a message is under way."""
        return self.incoming is not None or self.reception.parked is not None

    def write_ahead(self) -> bool:
        """Begin to write content in memory into the database; False if there is too little.

        Content for a hook stays in memory, because the hook gets all of it (`grown` refuses it).
        """
        incoming = self.incoming or self.reception.parked
        if not incoming or incoming.whole or incoming.content.collected < CHUNK_SIZE:
            return False
        if not incoming.header_ended:
            return False
        self._wire.suspend(incoming.store(CHUNK_SIZE))
        return True
