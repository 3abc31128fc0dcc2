"""The session of a connection: what its command lines do, in SMTP and in LMTP (RFC 2033)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from pgmta.accounts.login import Login
from pgmta.accounts.mechanisms import LINE
from pgmta.mail.address import parse_mailbox
from smtpd.commands.commands import JUNK, Commands
from smtpd.commands.listener import SmtpListener
from smtpd.commands.tally import HTTP, Consequence, Tally
from smtpd.hooks.hook_server import HookServer, HookTransport
from smtpd.hooks.judgement import Judgement
from smtpd.hooks.phases import Phases
from smtpd.hooks.session_hooks import SessionHooks
from smtpd.protocol import replies
from smtpd.server.server import Server
from smtpd.session.auth_command import AuthCommand
from smtpd.session.reception import Reception
from smtpd.tls.tls_facts import TlsFacts

if TYPE_CHECKING:
    from smtpd.session.connection import Connection


type Reader = Callable[[bytes | None], None]
"""Takes a line, which has come without its line end; None is one that is too long."""

_COMMAND_SIZE = 2048  # octets of a command (RFC 5321, section 4.5.3.1.4 asks for 512 at least)
_WAITED = frozenset((b"EHLO", b"HELO", b"DATA", b"AUTH"))  # last of a pipelined group (RFC 2920)
_FURTHER = frozenset((replies.BYE, replies.CHUNK_GO, replies.AUTH_GO,
                      replies.READY_FOR_TLS, replies.XCLIENT_GO, replies.SYNTAX_BDAT,
                      replies.LOOK_UP))  # fmt: skip
_AFTER_MAIL = (replies.NO_MAIL, replies.NO_RCPT)  # to commands pipelined after a refused MAIL
_LHLO = b"LHLO"
_SMTP_ONLY = frozenset((b"EHLO", b"HELO", b"BDAT"))
_FRESH = frozenset((b"EHLO", b"MAIL", b"RSET"))


class SmtpSession:
    """Answers the commands that a connection reads."""

    def __init__(
        self,
        server: Server,
        listener: SmtpListener,
        phases: Phases,
        connection: Connection,
        peer: Any,
    ) -> None:
        self._server = server
        self._connection = connection
        client = connection.client
        self.tally = Tally(server.config.limits, spared=server.spares(client))
        """The mail and the errors of the client."""
        self.commands = Commands(
            server, listener, client, peer, self.tally, trusted=not connection.unidentified
        )
        """The commands and their arguments so far."""
        self.hooks = self._make_hooks(listener, phases) if phases.hooks else None
        """The hooks of the listener, if there are any."""
        self.reception = Reception(server, listener, connection, self)
        """The message under way."""
        self._early = listener.early == "refuse"
        self._data_refused = False  # a client that does not listen sends its content
        self.replies_owed = 0
        """How often the reply to the end of data is sent, beside once in SMTP."""
        self.auth: AuthCommand | None = None
        """AUTH of the session, once there was one."""
        self._reader: Reader | None = None  # gets the next lines, of this many octets at most
        self._longest = 0

    def _make_hooks(self, listener: SmtpListener, phases: Phases) -> SessionHooks:
        server, commands, connection = self._server, self.commands, self._connection
        transport = HookTransport(lambda: connection.transport, server.loop)
        seen = HookServer(server, commands.session, transport)
        judgement = Judgement(listener.handler, server.directory)
        return SessionHooks(phases, commands, judgement, seen, connection.closing.fail)

    # -- command lines --

    def line(self, line: bytes) -> None:
        """Do the command in a line, which has come without its line end."""
        if self._reader:
            self._reader(line if len(line) <= self._longest else None)
            return
        word, _, rest = line.partition(b" ")
        word = word.upper()
        if len(line) > _COMMAND_SIZE and (word != b"AUTH" or len(line) > LINE):
            self.reply(replies.LINE_TOO_LONG)
            return
        if (
            self._early
            and (word in _WAITED or not self.commands.session.extended_smtp)
            and self._connection.unread
        ):  # without EHLO there is no pipelining: the client has to wait for every reply
            self._connection.closing.refuse(replies.NOT_HTTP if word in HTTP else replies.TOO_EARLY)
            return
        argument = rest.strip(b" \t").decode("utf-8", "surrogateescape")
        transaction = self.commands.transaction
        known = len(transaction.recipients) if transaction and word == b"RCPT" else 0
        if self.auth and word == b"MAIL" and self.auth.delays(line):
            return
        if self.hooks and word in self.hooks.words:
            reply = self.hooks.ask_about_command(
                word, argument, partial(self._answered, word, known)
            )
            if reply is replies.LOOK_UP:
                self._go_on(reply, argument)
            elif reply:
                self._conclude(word, known, reply)
            else:
                self._connection.begin_wait()  # until the hooks answer
            return
        reply = self.commands.do_command(word, argument)
        if reply is replies.DATA_GO:
            self.reply(reply)
            self.reception.take_data()
        elif reply in _FURTHER:
            self._go_on(reply, argument)
        elif reply:
            self.reply(reply)
            self._count_command(word, known, reply)
            if self.reception.parked:
                self.reception.drop_if_transaction_ended()
        else:
            self._unknown(word)

    def skipped_line(self) -> None:
        """Answer a line that was too long to be kept."""
        if self._reader:
            self._reader(None)
        else:
            self.reply(replies.LINE_TOO_LONG)

    def _unknown(self, word: bytes) -> None:
        """Refuse a command of no known name."""
        if word in HTTP:
            self._connection.closing.refuse(replies.NOT_HTTP)
        elif self._data_refused and b":" in word:  # a header; commands of mail may follow in it
            self._connection.closing.refuse(replies.CONTENT_UNASKED)
        elif self.tally.unknown() is Consequence.END:
            self._connection.closing.refuse(replies.TOO_MANY_UNKNOWN)
        else:
            self.reply(replies.UNKNOWN_COMMAND)

    def _go_on(self, reply: str, argument: str) -> None:
        """Do a command that has more effects than a reply."""
        if reply is replies.CHUNK_GO:
            self.reception.take_chunk()
        elif reply is replies.READY_FOR_TLS:
            self._connection.opening.start_tls()
        elif reply is replies.XCLIENT_GO:
            self._connection.opening.identify(argument)
        elif reply is replies.LOOK_UP:
            self._connection.suspend(self._look_up(argument))
        elif reply is replies.AUTH_GO:
            self.auth = self.auth or AuthCommand(self, self._connection, self._server.logins)
            self.auth.begin_auth(argument)
        elif reply is replies.SYNTAX_BDAT:
            self._connection.closing.refuse(reply)
        else:
            self.reply(reply)
            self._connection.closing.hang_up(linger=self._connection.unread)

    def secured(self, facts: TlsFacts) -> None:
        """Begin anew over TLS: only errors in plain text still count (RFC 3207, section 4.2)."""
        self.read_commands()
        self.commands.secured(facts)
        self.reception.forget()
        if self.hooks:
            self.hooks.secured(facts)

    def log_in(self, login: Login) -> None:
        """Begin as a user whom a proxy has let in."""
        self.commands.log_in(login)
        self.auth = AuthCommand(self, self._connection, self._server.logins)

    def refuse(self, reply: str) -> None:
        """Answer all further commands but QUIT with this reply, and count the client's errors.

        The client has to hang up by itself (RFC 5321, section 3.1).
        """

        def read(line: bytes | None) -> None:
            if line is not None and line.strip().upper() == b"QUIT":
                self.reply(replies.BYE)
                self._connection.closing.hang_up()
            else:
                self.reply(reply)

        self.read_lines(read, _COMMAND_SIZE)

    def read_lines(self, reader: Reader, longest: int = LINE) -> None:
        """Give the next lines to a reader, such as AUTH (RFC 4954), until `read_commands`."""
        self._reader, self._longest = reader, longest

    def read_commands(self) -> None:
        """Take the next lines for commands again."""
        self._reader = None

    async def _look_up(self, argument: str) -> None:
        """Find out whether the recipient of RCPT is known, and do the command again."""
        if directory := self._server.directory:
            await directory.look_up(*parse_mailbox(self.commands.path, utf8=True))
            self.line(b"RCPT " + argument.encode("utf-8", "surrogateescape"))

    def _answered(self, word: bytes, known: int, reply: str) -> None:
        """Send the reply of the hooks, and go on with the next command."""
        self._conclude(word, known, reply)
        self._connection.resume()

    def _conclude(self, word: bytes, known: int, reply: str) -> None:
        """Send the reply to a command that hooks were asked about."""
        self.reply(reply)
        self.reception.drop_if_transaction_ended()
        if word == b"QUIT":
            self._connection.closing.hang_up(linger=self._connection.unread)
        else:
            self._count_command(word, known, reply)

    def _count_command(self, word: bytes, known: int, reply: str) -> None:
        """Count a command that carries no mail, or a RCPT that added no recipient to `known`."""
        self._data_refused = word == b"DATA"
        if reply[0] == "4":
            if reply[:3] == "421":  # RFC 5321, section 3.8
                self._connection.closing.hang_up(linger=self._connection.unread)
                return
            if reply is replies.UNAVAILABLE:
                self._connection.delay()
        elif word == b"MAIL" and self._server.gate.slow:
            self._connection.delay()
        if word == b"RCPT":
            transaction = self.commands.transaction
            if reply[0] != "5" and transaction and len(transaction.recipients) == known:
                self.count_useless()  # one too many, or one twice
        elif word in JUNK:
            self.count_useless()

    def count_useless(self) -> None:
        """Count a command that carries no mail."""
        self._follow(self.tally.junk(self._server.loop.time()))

    def reply(self, reply: str) -> None:
        """Send a reply; a 5xx counts as an error of the client."""
        self._connection.reply(reply)
        if reply[0] not in "45":
            return
        commands = self.commands
        self._server.figures.refuse(reply)
        self._server.refusals.note(
            reply,
            self._connection.log_values,
            address=commands.path,
            user=commands.login.user if commands.login else "",
        )
        if reply[0] == "5" and not (self._server.gate.closed and reply in _AFTER_MAIL):
            self._follow(self.tally.refusal(reply, login=bool(commands.login)))

    def _follow(self, consequence: Consequence) -> None:
        """Do what follows from an error."""
        if consequence is Consequence.END:
            self._connection.closing.refuse(replies.TOO_MANY_ERRORS)
        elif consequence is Consequence.DELAY:
            self._connection.delay()

    def repeated(self, reply: str) -> str:
        """Return the reply to the end of data in the form of the protocol."""
        return reply

    def abandon(self) -> None:
        """Forget the transaction under way: the connection has ended."""
        if self.hooks:
            self.hooks.abandon()
        if self.auth:
            self.auth.abandon()
        self.reception.abandon()

    @property
    def holds_replies(self) -> bool:
        """Whether the replies so far leave together with that of a hook."""
        return self.hooks is not None and self.hooks.holds_replies(self._server.loop.time())


class LmtpSession(SmtpSession):
    """Repeats the reply to the end of data for each RCPT that it has accepted (section 4.2).

    One commit writes all recipients of a message, so their replies are the same. A recipient that
    can't get mail is refused at RCPT.
    """

    _word = b""  # the command under way
    _content = False  # the next reply is that to the end of data

    def line(self, line: bytes) -> None:
        """Do the command in a line; LHLO is EHLO, and there is no other (section 4.1)."""
        if self._reader:
            super().line(line)
            return
        self._word = line.partition(b" ")[0].upper()
        if self._word in _SMTP_ONLY:
            self.reply(replies.UNKNOWN_COMMAND)
            return
        if self._word == _LHLO:
            line, self._word = b"EHLO" + line[len(_LHLO) :], b"EHLO"
        super().line(line)

    def reply(self, reply: str) -> None:
        """Send a reply; that to the end of data goes out for each recipient."""
        if self._content:
            super().reply(self.repeated(reply))
            return
        if reply[0] == "2":
            if self._word in _FRESH:
                self.replies_owed = 0
            elif self._word == b"RCPT":
                self.replies_owed += 1
        self._content = reply is replies.DATA_GO
        if self._content:
            self.replies_owed = max(1, self.replies_owed)  # a hook alone may name recipients
        super().reply(reply)

    def repeated(self, reply: str) -> str:
        """Return the reply to the end of data as often as there are recipients."""
        owed, self.replies_owed, self._content = self.replies_owed, 0, False
        return "\r\n".join([reply] * owed)
