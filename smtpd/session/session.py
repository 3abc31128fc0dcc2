"""The session of a connection: what its command lines do, in SMTP and in LMTP (RFC 2033)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pgmta.accounts.login import Login
from pgmta.accounts.mechanisms import MAX_LINE_OCTETS
from smtpd.commands.commands import COMMANDS_WITHOUT_MAIL, Commands
from smtpd.commands.listener import SmtpListener
from smtpd.commands.tally import HTTP_METHODS, Consequence, Tally
from smtpd.hooks.hook_server import HookServer, HookTransport
from smtpd.hooks.judgement import Judgement
from smtpd.hooks.phases import Phases
from smtpd.hooks.session_hooks import SessionHooks
from smtpd.protocol import replies
from smtpd.server.server import Server
from smtpd.session.auth_command import AuthCommand
from smtpd.session.connection import Connection
from smtpd.session.reception import Reception
from smtpd.session.replier import Replier
from smtpd.tls.tls_facts import TlsFacts

type Restarts = Mapping[str, Callable[[str], None]]
"""What begins the session anew, by the reply that leads there; it gets the argument."""

MAX_COMMAND_OCTETS = 2048  # RFC 5321, section 4.5.3.1.4, asks for at least 512
# A client may only send these at the end of a pipelined group (RFC 2920, section 3.1).
_GROUP_ENDS = frozenset((b"EHLO", b"HELO", b"DATA", b"AUTH"))
_GOES_ON = frozenset((replies.BYE, replies.CHUNK_GO, replies.AUTH_GO,
                      replies.READY_FOR_TLS, replies.XCLIENT_GO, replies.SYNTAX_BDAT,
                      replies.LOOK_UP))  # fmt: skip
_LHLO = b"LHLO"
_SMTP_ONLY = frozenset((b"EHLO", b"HELO", b"BDAT"))
_FRESH = frozenset((b"EHLO", b"MAIL", b"RSET"))


class SmtpSession:
    """Answers the commands that a connection reads; `restarts` do STARTTLS and XCLIENT.

    A client is `trusted` for its address unless a proxy has not said who it is.
    """

    def __init__(
        self,
        server: Server,
        listener: SmtpListener,
        phases: Phases,
        connection: Connection,
        restarts: Restarts,
        client: str,
        peer: Any,
        *,
        trusted: bool,
    ) -> None:
        self._server = server
        self._connection = connection
        self._restarts = restarts
        self._tally = tally = Tally(server.config.limits, spared=server.spares(client))
        self.commands = commands = Commands(server, listener, client, peer, tally, trusted=trusted)
        """The commands and their arguments so far."""
        self.hooks = self._make_hooks(listener, phases) if phases.hooks else None
        """The hooks of the listener, if there are any."""
        self.replier = replier = Replier(server, connection, commands, tally)
        """What replies to the commands."""
        self.reception = Reception(
            server, listener, connection, commands, tally, replier, self.hooks
        )
        """The message under way."""
        self._early = listener.early == "refuse"
        self._data_refused = False  # a client that ignores the refusal of DATA sends its content
        self._auth: AuthCommand | None = None  # made for the first AUTH
        connection.begin_session(
            client,
            command=self.line,
            complete=self.reception.complete,
            abandon=self.abandon,
            holds=self.hooks.holds_replies if self.hooks else None,
        )

    def _make_hooks(self, listener: SmtpListener, phases: Phases) -> SessionHooks:
        server, commands, connection = self._server, self.commands, self._connection
        transport = HookTransport(lambda: connection.transport, server.loop)
        seen = HookServer(server, commands.session, transport)
        judgement = Judgement(listener.handler, server.directory)
        return SessionHooks(phases, commands, judgement, seen, connection.fail)

    def _make_auth(self) -> AuthCommand:
        logins = self.hooks.logins if self.hooks else None
        return AuthCommand(self._server, self._connection, self.commands, self.replier, logins)

    # -- command lines --

    def line(self, line: bytes | None) -> None:
        """Do the command in a line, which has come without its line end; None is too long."""
        connection, replier = self._connection, self.replier
        if line is None:
            replier.reply(replies.LINE_TOO_LONG)
            return
        word, _, rest = line.partition(b" ")
        word = word.upper()
        if len(line) > MAX_COMMAND_OCTETS and (word != b"AUTH" or len(line) > MAX_LINE_OCTETS):
            replier.reply(replies.LINE_TOO_LONG)
            return
        if (
            self._early
            and (word in _GROUP_ENDS or not self.commands.session.extended_smtp)
            and connection.unread
        ):  # pipelining before EHLO: the client has to wait for every reply
            connection.refuse(replies.NOT_HTTP if word in HTTP_METHODS else replies.TOO_EARLY)
            return
        argument = rest.strip(b" \t").decode("utf-8", "surrogateescape")
        transaction = self.commands.transaction
        known = len(transaction.recipients) if transaction and word == b"RCPT" else 0
        if self._auth and word == b"MAIL" and self._auth.delays(line, self.line):
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
                connection.begin_wait()  # which ends when the hooks answer
            return
        reply = self.commands.do_command(word, argument)
        if reply is replies.DATA_GO:
            replier.reply(reply)
            self.reception.take_data()
        elif reply in _GOES_ON:
            self._go_on(reply, argument)
        elif reply:
            replier.reply(reply)
            self._count_command(word, known, reply)
            if connection.message:
                self.reception.drop_if_transaction_ended()
        else:
            self._unknown(word)

    def _unknown(self, word: bytes) -> None:
        """Refuse a command of no known name."""
        if word in HTTP_METHODS:
            self._connection.refuse(replies.NOT_HTTP)
        elif (
            self._data_refused and b":" in word
        ):  # a line of a header, behind which the content may have commands
            self._connection.refuse(replies.CONTENT_UNASKED)
        elif self._tally.unknown() is Consequence.END:
            self._connection.refuse(replies.TOO_MANY_UNKNOWN)
        else:
            self.replier.reply(replies.UNKNOWN_COMMAND)

    def _go_on(self, reply: str, argument: str) -> None:
        """Do a command that has more effects than a reply."""
        if reply is replies.CHUNK_GO:
            self.reception.take_chunk()
        elif reply in self._restarts:
            self._restarts[reply](argument)
        elif reply is replies.LOOK_UP:
            self._connection.suspend(self._look_up(argument))
        elif reply is replies.AUTH_GO:
            self._auth = self._auth or self._make_auth()
            self._auth.begin_auth(argument)
        elif reply is replies.SYNTAX_BDAT:
            self._connection.refuse(reply)
        else:
            self.replier.reply(reply)
            self._connection.hang_up(linger=self._connection.unread)

    def secured(self, facts: TlsFacts) -> None:
        """Begin anew over TLS: only errors in plain text still count (RFC 3207, section 4.2)."""
        self._connection.read_commands()
        self.commands.secured(facts)
        self.reception.forget()
        if self.hooks:
            self.hooks.secured(facts)

    def log_in(self, login: Login) -> None:
        """Begin as a user whom a proxy has let in."""
        self.commands.log_in(login)
        self._auth = self._make_auth()

    def refuse(self, reply: str) -> None:
        """Answer all further commands but QUIT with this reply, and count the client's errors.

        The client has to hang up by itself (RFC 5321, section 3.1).
        """

        def read(line: bytes | None) -> None:
            if line is not None and line.strip().upper() == b"QUIT":
                self.replier.reply(replies.BYE)
                self._connection.hang_up()
            else:
                self.replier.reply(reply)

        self._connection.read_lines(read, MAX_COMMAND_OCTETS)

    async def _look_up(self, argument: str) -> None:
        """Find out whether the recipient of RCPT is known, and do the command again."""
        await self.commands.look_up()
        self.line(b"RCPT " + argument.encode("utf-8", "surrogateescape"))

    def _answered(self, word: bytes, known: int, reply: str) -> None:
        """Send the reply of the hooks, and go on with the next command."""
        self._conclude(word, known, reply)
        self._connection.resume()

    def _conclude(self, word: bytes, known: int, reply: str) -> None:
        """Send the reply to a command that hooks were asked about."""
        self.replier.reply(reply)
        self.reception.drop_if_transaction_ended()
        if word == b"QUIT":
            self._connection.hang_up(linger=self._connection.unread)
        else:
            self._count_command(word, known, reply)

    def _count_command(self, word: bytes, known: int, reply: str) -> None:
        """Count a command that carries no mail, or a RCPT that added no recipient to `known`."""
        self._data_refused = word == b"DATA"
        if reply[0] == "4":
            if reply[:3] == "421":  # after which smtpd has to close (RFC 5321, section 3.8)
                self._connection.hang_up(linger=self._connection.unread)
                return
            if reply is replies.UNAVAILABLE:
                self._connection.delay()
        elif word == b"MAIL" and self._server.gate.slow:
            self._connection.delay()
        if word == b"RCPT":
            transaction = self.commands.transaction
            if reply[0] != "5" and transaction and len(transaction.recipients) == known:
                self.replier.count_useless()  # one recipient too many, or one twice
        elif word in COMMANDS_WITHOUT_MAIL:
            self.replier.count_useless()

    def abandon(self) -> None:
        """Forget the transaction under way: the connection has ended."""
        if self.hooks:
            self.hooks.abandon()
        if self._auth:
            self._auth.abandon()
        self.reception.abandon()


class LmtpSession(SmtpSession):
    """Has the reply to the end of data sent for each RCPT that it has accepted (section 4.2).

    One commit writes all recipients of a message, so their replies are the same. A recipient that
    can't get mail is refused at RCPT.
    """

    def line(self, line: bytes | None) -> None:
        """Do the command in a line; LHLO is EHLO, and there is no other (section 4.1)."""
        word = (line or b"").partition(b" ")[0].upper()
        if word in _SMTP_ONLY:
            self.replier.reply(replies.UNKNOWN_COMMAND)
            return
        if line and word == _LHLO:
            line = b"EHLO" + line[len(_LHLO) :]
        super().line(line)

    def _count_command(self, word: bytes, known: int, reply: str) -> None:
        if reply[0] == "2":
            if word in _FRESH:
                self.replier.owe(0)
            elif word == b"RCPT":
                self.replier.owe(self.replier.owed + 1)
        super()._count_command(word, known, reply)
