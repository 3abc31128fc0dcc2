"""The commands of a session and their replies (RFC 5321, section 4.1.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiosmtpd.smtp import Session

from pgmta.address import split_path
from pgmta.errors import AddressError
from smtpd import replies
from smtpd.handler import RelayHandler, plain
from smtpd.received import received
from smtpd.server import Server
from smtpd.transaction import Transaction


class Commands:
    """Does the commands of one session; each returns its reply."""

    def __init__(self, server: Server, handler: RelayHandler, client: str, peer: Any) -> None:
        self._handler = handler
        self._hostname = server.hostname
        self._size = server.config.limits.message_size
        self._client = client
        self.session = Session(server.loop)
        """The session, in the form that handlers get."""
        self.session.peer = peer
        self.path = ""
        """The path of the last MAIL or RCPT, without its angle brackets."""
        self.transaction: Transaction | None = None
        """The arguments of MAIL and RCPT so far."""

    def do(self, word: bytes, argument: str) -> str:
        """Do a command; return its reply, or nothing if there is none of that name."""
        method = _COMMANDS.get(word)
        return method(self, argument) if method else ""

    def _helo(self, argument: str) -> str:
        if not argument:
            return replies.SYNTAX_HELO
        self._begin(argument, extended=False)
        return self._handler.helo

    def _ehlo(self, argument: str) -> str:
        if not argument:
            return replies.SYNTAX_EHLO
        self._begin(argument, extended=True)
        return self._handler.ehlo

    def _begin(self, name: str, *, extended: bool) -> None:
        self.transaction = None
        self.session.extended_smtp = extended
        self.session.host_name = name

    def _rset(self, argument: str) -> str:
        if argument:
            return replies.SYNTAX_RSET
        self.transaction = None
        return replies.OK

    def _noop(self, _: str) -> str:
        return replies.OK

    def _help(self, _: str) -> str:
        return replies.HELP

    def _quit(self, argument: str) -> str:
        return replies.SYNTAX_QUIT if argument else replies.BYE

    def _vrfy(self, argument: str) -> str:
        return replies.VRFY if argument else replies.SYNTAX_VRFY  # says nothing (section 3.5.3)

    def _expn(self, _: str) -> str:
        return replies.NO_EXPN

    def _starttls(self, argument: str) -> str:
        return replies.SYNTAX_STARTTLS if argument else replies.NO_TLS

    def _auth(self, _: str) -> str:
        if not self.session.host_name:
            return replies.NO_AUTH_YET
        return replies.NEEDS_TLS if self.session.extended_smtp else replies.UNKNOWN_COMMAND

    def _mail(self, argument: str) -> str:
        if not self.session.host_name:
            return replies.NO_HELO
        if argument[:5].upper() != "FROM:":
            return replies.SYNTAX_MAIL
        if self.transaction:
            return replies.NESTED_MAIL
        try:
            path, rest = split_path(argument[5:])
        except AddressError:
            return replies.SYNTAX_MAIL
        transaction = Transaction()
        if rest:
            refusal = self._parameters(rest, transaction)
            if refusal:
                return refusal
        self.path = path
        reply = self._handler.mail(transaction, path)
        if reply[0] == "2":
            protocol = "ESMTP" if self.session.extended_smtp else "SMTP"
            transaction.trace = received(
                self.session.host_name,
                self._client,
                self._hostname,
                "UTF8SMTP" if transaction.envelope.smtp_utf8 else protocol,
            )
            self.transaction = transaction
        return reply

    def _parameters(self, rest: str, transaction: Transaction) -> str:
        """Take the parameters of MAIL; return the reply of a refusal, or nothing."""
        for parameter in rest.upper().split():
            keyword, _, value = parameter.partition("=")
            if keyword == "SMTPUTF8" and not value:
                transaction.envelope.smtp_utf8 = True
            elif keyword == "BODY":
                if value not in ("7BIT", "8BITMIME"):
                    return replies.BAD_BODY
            elif keyword == "SIZE":
                if not (value.isascii() and value.isdigit() and len(value) <= 20):
                    return replies.BAD_SIZE
                if int(value) > self._size:
                    return replies.TOO_LARGE.format(self._size)
            else:
                return replies.UNKNOWN_PARAMETER.format(plain(keyword[:40]))
            transaction.envelope.mail_options.append(parameter)
        return ""

    def _rcpt(self, argument: str) -> str:
        transaction = self.transaction
        if not transaction:
            return replies.NO_MAIL if self.session.host_name else replies.NO_HELO
        if argument[:3].upper() != "TO:":
            return replies.SYNTAX_RCPT
        try:
            path, rest = split_path(argument[3:])
        except AddressError:
            return replies.SYNTAX_RCPT
        if rest:
            return replies.UNKNOWN_PARAMETER.format(plain(rest.partition("=")[0][:40]))
        self.path = path
        return self._handler.rcpt(transaction, self._client, path)

    def _data(self, argument: str) -> str:
        if argument:
            return replies.SYNTAX_DATA
        if not self.transaction:
            return replies.NO_MAIL
        if not self.transaction.recipients:
            return replies.NO_RCPT
        return replies.DATA_GO


_COMMANDS: dict[bytes, Callable[[Commands, str], str]] = {
    b"HELO": Commands._helo,
    b"EHLO": Commands._ehlo,
    b"MAIL": Commands._mail,
    b"RCPT": Commands._rcpt,
    b"DATA": Commands._data,
    b"RSET": Commands._rset,
    b"NOOP": Commands._noop,
    b"QUIT": Commands._quit,
    b"VRFY": Commands._vrfy,
    b"HELP": Commands._help,
    b"EXPN": Commands._expn,
    b"STARTTLS": Commands._starttls,
    b"AUTH": Commands._auth,
}
JUNK = frozenset(b"HELO EHLO RSET NOOP VRFY HELP EXPN STARTTLS AUTH".split())
"""Commands that carry no mail."""
