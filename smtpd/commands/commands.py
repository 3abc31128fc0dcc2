"""The commands of a session and their replies (RFC 5321, section 4.1.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from aiosmtpd.smtp import Session

from pgmta.accounts.login import Login
from pgmta.errors import AddressError
from pgmta.mail.address import parse_mailbox, split_path
from pgmta.mail.received_field import trace_field
from pgmta.model import Origin
from smtpd.commands.listener import SmtpListener
from smtpd.commands.parameters import Dsn, separated
from smtpd.commands.tally import Tally
from smtpd.message import bdat
from smtpd.protocol import replies
from smtpd.protocol.transaction import Transaction
from smtpd.recipients.recipient_verdict import Verdict
from smtpd.server.server import Server
from smtpd.tls.tls_facts import TlsFacts

# BDAT is in the list because it is refused later, after its content has been skipped.
_ALLOWED_BEFORE_TLS = frozenset(b"EHLO HELO NOOP RSET STARTTLS QUIT BDAT".split())
_FUNCTION = {(False, False): "", (True, False): "S", (False, True): "A", (True, True): "SA"}


class Commands:
    """Does the commands of one session; each returns its reply."""

    def __init__(
        self,
        server: Server,
        listener: SmtpListener,
        client: str,
        peer: Any,
        tally: Tally,
        *,
        trusted: bool = True,
    ) -> None:
        self._listener = listener
        self._handler = listener.handler
        self._tally = tally
        self._extended = "LMTP" if listener.protocol == "lmtp" else "ESMTP"
        self._gate = server.gate
        self._directory = server.directory
        self._suppressions = server.suppressions if listener.refuses_suppressed else None
        self._hostname = server.hostname
        self._client = client
        self.trusted = trusted and listener.trusts and listener.handler.knows(client)
        """Whether the client may send to any recipient because of its address."""
        self._table = self._METHODS_BEFORE_TLS if listener.tls == "required" else self.METHODS
        self.session = Session(server.loop)
        """The session, in the form that handlers get."""
        self.session.peer = peer
        self.path = ""
        """The path of the last MAIL or RCPT, without its angle brackets."""
        self.options: list[str] = []
        """The parameters of the last RCPT."""
        self._asked: tuple[str, str] | None = None
        """What the list of suppressions was asked for this RCPT: the answer may be out of date once
        the directory has answered, and is not asked for again."""
        self.chunk = (0, False)
        """Octets of the chunk that follows BDAT, and whether it is the last."""
        self.transaction: Transaction | None = None
        """The arguments of MAIL and RCPT so far."""
        self.trace = ""
        """The trace field of the transaction up to the message id."""
        self.takes_xclient = listener.speaks_for_others(client)
        """Whether the peer may say by XCLIENT who the client is."""
        self.tls: TlsFacts | None = None
        """The TLS of the connection, if there is any."""
        self.login: Login | None = None
        """The user, once AUTH has succeeded; `log_in` sets it."""
        self.identified = False
        """Whether the client has logged in, or has a trusted certificate."""

    def do_command(self, word: bytes, argument: str) -> str:
        """Do a command; return its reply, or nothing if there is none of that name."""
        method = self._table.get(word)
        return method(self, argument) if method else ""

    def _helo(self, argument: str) -> str:
        if not argument:
            return replies.SYNTAX_HELO
        self._begin(argument, extended=False)
        return self._listener.helo

    def _ehlo(self, argument: str) -> str:
        if not argument:
            return replies.SYNTAX_EHLO
        self._begin(argument, extended=True)
        tls, login = bool(self.tls), bool(self.login)
        return self._listener.ehlo.lines(tls=tls, login=login, xclient=self.takes_xclient)

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
        return replies.VRFY if argument else replies.SYNTAX_VRFY  # neither yes nor no

    def _expn(self, _: str) -> str:
        return replies.NO_EXPN

    def _starttls(self, argument: str) -> str:
        if argument:
            return replies.SYNTAX_STARTTLS
        if self.tls:
            return replies.TLS_ACTIVE
        return replies.READY_FOR_TLS if self._listener.starttls else replies.NO_TLS

    def secured(self, facts: TlsFacts) -> None:
        """Forget what came in plain text (RFC 3207, section 4.2)."""
        self.tls = facts
        self.login = self.transaction = None
        self.identified = bool(facts.client)
        self.path = ""
        self.session.host_name = None
        self.session.extended_smtp = False
        self._table = self.METHODS

    def log_in(self, login: Login) -> None:
        """Note that AUTH has succeeded."""
        self.login = login
        self.identified = True

    def end_transaction(self) -> None:
        """Forget what MAIL and RCPT have said."""
        self.transaction = None

    def forbid_xclient(self) -> None:
        """Take no further XCLIENT."""
        self.takes_xclient = False

    def _xclient(self, _: str) -> str:
        if not self.takes_xclient:
            return ""
        return replies.XCLIENT_IN_MAIL if self.transaction else replies.XCLIENT_GO

    def _before_tls(self, _: str) -> str:
        return replies.NEEDS_STARTTLS  # RFC 3207, section 4

    def _auth(self, _: str) -> str:
        if not self.session.host_name:
            return replies.NO_AUTH_YET
        if not self.session.extended_smtp:
            return replies.UNKNOWN_COMMAND
        listener = self._listener
        if listener.auth == "none":
            return replies.NO_AUTH
        if not (self.tls or listener.auth_without_tls):
            return replies.NEEDS_TLS
        if self.login:
            return replies.LOGGED_IN  # RFC 4954, section 4
        return replies.NO_AUTH_IN_MAIL if self.transaction else replies.AUTH_GO

    def _mail(self, argument: str) -> str:
        if not self.session.host_name:
            return replies.NO_HELO
        if argument[:5].upper() != "FROM:":
            return replies.SYNTAX_MAIL
        if self.transaction:
            chunked = self.transaction.chunked
            return self._break_chunks(self.transaction) if chunked else replies.NESTED_MAIL
        if self._tally.full and not self.login:
            return replies.SESSION_FULL.format(self._hostname)
        if self._gate.closed:
            return replies.UNAVAILABLE
        try:
            path, rest = split_path(argument[5:])
        except AddressError:
            return replies.SYNTAX_MAIL
        if self._listener.auth == "required" and not self.identified:
            return replies.NEEDS_LOGIN
        tls, login = self.tls, self.login
        trusted = self.trusted or self.identified
        transaction = Transaction(trusted=trusted, origin=self._origin())
        if rest:
            refusal = self._listener.parameters.mail(
                rest, transaction, secure=bool(tls), login=login
            )
            if refusal:
                return refusal
        self.path = path
        reply = self._handler.mail(transaction, path)
        if reply[0] != "2":
            return reply
        if (
            login
            and transaction.sender
            and not login.may_send_from(transaction.sender, transaction.sender_domain)
        ):
            return replies.SENDER_DENIED
        name = self._extended if self.session.extended_smtp else "SMTP"
        if tls or login or transaction.envelope.smtp_utf8:
            utf8 = transaction.envelope.smtp_utf8
            name = _protocol(name, utf8=utf8, tls=tls, login=bool(login))
        self.trace = trace_field(self.session.host_name, self._client, self._hostname, name)
        self.transaction = transaction
        if transaction.priority_given is None:
            return reply
        return replies.PRIORITY_CHANGED.format(transaction.priority_given)

    def _origin(self) -> Origin:
        """Return how mail comes in; a login counts more than the network."""
        if self.login:
            return "login"
        if self.tls and self.tls.client:
            return "certificate"
        return "network" if self.trusted else "stranger"

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
        if transaction.chunked:
            return self._break_chunks(transaction)
        self.path, self.options = path, []
        if rest:
            return self._rcpt_with(rest, transaction, path)
        return self._take_recipient(transaction, path)

    def _rcpt_with(self, rest: str, transaction: Transaction, path: str) -> str:
        """Take a recipient that has parameters."""
        dsn: Dsn
        refusal, dsn = self._listener.parameters.rcpt(rest)
        if refusal:
            return refusal
        known = len(transaction.recipients)
        reply = self._take_recipient(transaction, path)
        if len(transaction.recipients) > known:
            transaction.set_dsn(next(reversed(transaction.recipients)), dsn)
            self.options = separated(rest)
        return reply

    def _take_recipient(self, transaction: Transaction, path: str) -> str:
        """Take a recipient who is known, and gets mail; LOOK_UP: `look_up` has to be awaited."""
        if self._suppressions and transaction.trusted and (key := self._suppression_key(path)):
            verdict = self._suppressions.verdict(key)
            if verdict is None and self._asked != key:
                return replies.LOOK_UP
            if verdict is Verdict.UNKNOWN:
                self._asked = None
                return replies.SUPPRESSED
        reply = self._handler.rcpt(transaction, path, self._directory)
        if reply is not replies.LOOK_UP:
            self._asked = None
        return reply

    def _suppression_key(self, path: str) -> tuple[str, str] | None:
        """Return what the list of suppressions is asked; None for what is no mailbox."""
        try:
            return self.login.tenant if self.login else "", parse_mailbox(path, utf8=True)[0]
        except AddressError:
            return None

    async def look_up(self) -> None:
        """Find out what the last RCPT has to know."""
        looks, key = self._suppressions, self._suppression_key(self.path)
        if looks and key and self._asked != key and looks.verdict(key) is None:
            await looks.look_up(key)
            self._asked = key
        elif self._directory:
            await self._directory.look_up(*parse_mailbox(self.path, utf8=True))

    def _data(self, argument: str) -> str:
        if argument:
            return replies.SYNTAX_DATA
        if not self.transaction:
            return replies.NO_MAIL
        if not self.transaction.recipients:
            return replies.NO_RCPT
        if self.transaction.chunked:
            return self._break_chunks(self.transaction)
        if (
            self._gate.closed
        ):  # with the transaction's end, or a careless client would mix it with its next mail
            self.transaction = None
            return replies.UNAVAILABLE
        return replies.DATA_GO

    def _break_chunks(self, transaction: Transaction) -> str:
        """Refuse a command between chunks, and the chunks that follow (RFC 3030, section 2).

        The next chunk of a client that does not listen may belong to another message.
        """
        transaction.break_chunks()
        return replies.IN_CHUNKS

    def _bdat(self, argument: str) -> str:
        chunk = bdat.parse(argument)
        if not chunk:
            return replies.SYNTAX_BDAT  # without a size nobody knows where the next command begins
        self.chunk = chunk
        return replies.CHUNK_GO

    METHODS: ClassVar[dict[bytes, Callable[[Commands, str], str]]] = {
        b"HELO": _helo,
        b"EHLO": _ehlo,
        b"MAIL": _mail,
        b"RCPT": _rcpt,
        b"DATA": _data,
        b"BDAT": _bdat,
        b"RSET": _rset,
        b"NOOP": _noop,
        b"QUIT": _quit,
        b"VRFY": _vrfy,
        b"HELP": _help,
        b"EXPN": _expn,
        b"STARTTLS": _starttls,
        b"XCLIENT": _xclient,
        b"AUTH": _auth,
    }
    """The method of each command."""
    _METHODS_BEFORE_TLS: ClassVar = dict.fromkeys(METHODS, _before_tls) | {
        word: method for word, method in METHODS.items() if word in _ALLOWED_BEFORE_TLS
    }


COMMANDS_WITHOUT_MAIL = frozenset(b"HELO EHLO RSET NOOP VRFY HELP EXPN STARTTLS AUTH".split())


def _protocol(name: str, *, utf8: bool, tls: TlsFacts | None, login: bool) -> str:
    """Return the name of the protocol of a session, with its TLS version and cipher.

    `name` is SMTP, ESMTP or LMTP. The others are those of RFC 3848, and of RFC 6531, section 4.3.
    """
    extended = utf8 or name != "SMTP"  # HELO is always SMTP
    if utf8:
        name = f"UTF8{name.removeprefix('E')}"
    if extended:
        name += _FUNCTION[bool(tls), login]
    return f"{name} ({tls.version} {tls.cipher})\r\n\t" if tls else name
