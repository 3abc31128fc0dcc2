"""The commands that carry mail: envelope, content, acknowledgement after the commit."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from pgmta.address import parse_mailbox, split_path
from pgmta.errors import AddressError
from pgmta.model import CHUNK_SIZE
from smtpd import replies
from smtpd.connection import Connection
from smtpd.front import Front
from smtpd.intake import Intake
from smtpd.metadata import Origin
from smtpd.received import received


@dataclass(slots=True)
class Transaction:
    """What MAIL and RCPT have said so far."""

    sender: str | None = None
    utf8: bool = False
    recipients: dict[tuple[str, str], str] = field(default_factory=dict)
    held: list[tuple[str, str]] | None = None

    def add(self, mailbox: str, domain: str, limit: int, hold: bool) -> bool:
        """Note a recipient, each once; False where there would be more than `limit`."""
        key = (mailbox.rpartition("@")[0], domain)
        if key not in self.recipients and len(self.recipients) >= limit:
            return False
        if hold and key not in self.recipients:
            self.held = [*(self.held or ()), key]
        self.recipients.setdefault(key, mailbox)
        return True


class Dialogue(Connection):
    """The server's side of one connection (RFC 5321, section 4.1.1).

    What is not in its table is aiosmtpd's, which refuses STARTTLS and AUTH until they are set up.
    """

    envelope: Transaction  # type: ignore[assignment]

    def __init__(self, front: Front, loop: asyncio.AbstractEventLoop, listener: str) -> None:
        super().__init__(front, loop)
        self._listener = listener
        self._intake: Intake | None = None
        limits = front.config.limits
        keywords = [
            self.hostname,
            f"SIZE {limits.message_size}",
            "8BITMIME",
            "SMTPUTF8",
            "PIPELINING",
            "ENHANCEDSTATUSCODES",
        ]
        self._ehlo_reply = "\r\n".join(
            f"250{' ' if keyword is keywords[-1] else '-'}{keyword}" for keyword in keywords
        )

    def _create_envelope(self) -> Transaction:  # type: ignore[override]
        return Transaction()

    def command(self, word: bytes, argument: str | None) -> bool:
        """Do one command; False if there is none of that name."""
        method = _COMMANDS.get(word)
        if method:
            self.say(method(self, argument))
            if word in _JUNK:
                self.judge(self._tally.junk(self.loop.time()))
            elif word == b"QUIT" and not argument:
                self.hang_up(linger=self._at < len(self._input))
            return True
        name = f"smtp_{word.decode('ascii', 'replace')}"
        if not name.isidentifier() or not hasattr(self, name):
            return False
        self.aside(getattr(self, name)(argument))
        self.judge(self._tally.junk(self.loop.time()))
        return True

    # -- commands: each returns its reply --

    def _helo(self, argument: str | None) -> str:
        if not argument:
            return replies.SYNTAX_HELO
        self._begin(argument, extended=False)
        return f"250 {self.hostname}"

    def _ehlo(self, argument: str | None) -> str:
        if not argument:
            return replies.SYNTAX_EHLO
        self._begin(argument, extended=True)
        return self._ehlo_reply

    def _begin(self, name: str, *, extended: bool) -> None:
        self.envelope = Transaction()
        self.session.extended_smtp = extended
        self.session.host_name = name

    def _rset(self, argument: str | None) -> str:
        if argument:
            return replies.SYNTAX_RSET
        self.envelope = Transaction()
        return replies.OK

    def _noop(self, _: str | None) -> str:
        return replies.OK

    def _help(self, _: str | None) -> str:
        return replies.HELP

    def _quit(self, argument: str | None) -> str:
        return replies.SYNTAX_QUIT if argument else replies.BYE

    def _vrfy(self, argument: str | None) -> str:
        return replies.VRFY if argument else replies.SYNTAX_VRFY  # tells nothing (section 3.5.3)

    def _mail(self, argument: str | None) -> str:
        if not self.session.host_name:
            return replies.NO_HELO
        if argument is None or argument[:5].upper() != "FROM:":
            return replies.SYNTAX_MAIL
        if self.envelope.sender is not None:
            return replies.NESTED_MAIL
        try:
            path, rest = split_path(argument[5:])
        except AddressError:
            return replies.SYNTAX_MAIL
        utf8 = False
        for parameter in rest.split():
            keyword, _, value = parameter.upper().partition("=")
            if keyword == "SMTPUTF8" and not value:
                utf8 = True
            elif keyword == "BODY":
                if value not in ("7BIT", "8BITMIME"):
                    return replies.BAD_BODY
            elif keyword == "SIZE":
                if not (value.isascii() and value.isdigit() and len(value) <= 20):
                    return replies.BAD_SIZE
                if int(value) > self._front.config.limits.message_size:
                    return replies.TOO_LARGE.format(self._front.config.limits.message_size)
            else:
                return replies.UNKNOWN_PARAMETER.format(_plain(keyword[:40]))
        try:
            sender = parse_mailbox(path, utf8=utf8)[0] if path else ""
        except AddressError as error:
            return replies.BAD_SENDER.format(_plain(error))
        self.envelope.sender = sender
        self.envelope.utf8 = utf8
        return replies.MAIL_OK

    def _rcpt(self, argument: str | None) -> str:
        if self.envelope.sender is None:
            return replies.NO_MAIL if self.session.host_name else replies.NO_HELO
        if argument is None or argument[:3].upper() != "TO:":
            return replies.SYNTAX_RCPT
        try:
            path, rest = split_path(argument[3:])
        except AddressError:
            return replies.SYNTAX_RCPT
        if rest:
            return replies.UNKNOWN_PARAMETER.format(_plain(rest.partition("=")[0][:40]))
        ours = self._front.postmaster.find(path) if path[:1] in "pP" else ""
        try:
            mailbox, domain = parse_mailbox(ours or path, utf8=self.envelope.utf8 or bool(ours))
        except AddressError as error:
            return replies.BAD_ADDRESS.format(_plain(error))
        if not (ours or self._front.policy.accepts(self.client, mailbox, domain)):
            return replies.RELAY_DENIED
        hold = bool(ours) and self._front.postmaster.held
        known = len(self.envelope.recipients)
        added = self.envelope.add(mailbox, domain, self._limits.recipients, hold)
        if len(self.envelope.recipients) == known:  # one too many, or one twice
            self.judge(self._tally.junk(self.loop.time()))
        return replies.RCPT_OK if added else replies.TOO_MANY_RECIPIENTS

    def _data(self, argument: str | None) -> str:
        if argument:
            return replies.SYNTAX_DATA
        if not self.envelope.recipients:
            return replies.NO_MAIL if self.envelope.sender is None else replies.NO_RCPT
        self._intake = Intake(self._front)
        self._data_deadline = self.loop.time() + self._limits.data_time
        return replies.DATA_GO

    # -- content (section 4.1.1.4) --

    def content(self) -> bool:
        """Take the content that has come after DATA; False where commands are expected."""
        intake = self._intake
        if not intake:
            return False
        rest = intake.feed(self.take())
        if intake.large:
            self._large = True
        if rest is not None:
            self.rest(rest)
            self._complete(intake)
        elif intake.full:
            self.aside(intake.store())
        elif intake.excessive:
            self.refuse(replies.TOO_LARGE.format(self._limits.message_size))
        return True

    def octets(self) -> int:
        """Content of the transaction under way that is in memory."""
        return self._intake.octets if self._intake else 0

    def wanted(self) -> bool:
        """Whether the client sends content that may still become a message."""
        return self._intake is not None and not self._intake.refused

    def write_ahead(self) -> bool:
        """Begin to write content in memory into the database; False where there is too little."""
        if not self._intake or self._intake.collected < CHUNK_SIZE:
            return False
        self.aside(self._intake.store(CHUNK_SIZE))
        return True

    def _complete(self, intake: Intake) -> None:
        refusal = intake.end()
        if refusal:
            self._answer(refusal)
        elif intake.ready:
            self._busy = True  # until the commit
            self._commit(intake)
        else:
            self.aside(self._prepare(intake))

    async def _prepare(self, intake: Intake) -> None:
        refusal = await intake.prepare()
        if refusal:
            self._answer(refusal)
        elif self.transport:
            committed = self.loop.create_future()
            self._commit(intake, committed)
            self._answer(await committed)

    def _commit(self, intake: Intake, committed: asyncio.Future[str] | None = None) -> None:
        transaction = self.envelope
        recipients = [(mailbox, domain) for (_, domain), mailbox in transaction.recipients.items()]

        def answer(reply: str) -> None:
            if committed:
                committed.set_result(reply)
            else:
                self._answer(reply)
                self.resume()

        intake.commit(
            transaction.sender or "",
            recipients,
            transaction.utf8,
            self._trace(intake.id, transaction.utf8),
            self._metadata(transaction, intake, recipients),
            [_POSTMASTER if key in transaction.held else None for key in transaction.recipients]
            if transaction.held
            else None,
            answer,
        )

    def _answer(self, reply: str) -> None:
        """The transaction is over, with this reply."""
        if self._intake:
            self._intake.forget()
        self._intake = None
        self._data_deadline = math.inf
        self._large = False
        self.envelope = Transaction()
        self.say(reply)
        if reply.startswith("250"):
            self._tally.mail()
            self._spent = 0.0
        if self._front.stopping:
            self.end()

    def abandon(self) -> None:
        """The connection is gone: forget the transaction under way."""
        if self._intake:
            self._intake.forget()
            self._intake = None

    def end(self) -> None:
        """The process stops: an idle session is told so, one in DATA gets its answer first."""
        if not self._intake and self.transport and not self._closing:
            self.say(replies.SHUTTING_DOWN.format(self.hostname))
            self.hang_up(linger=self._at < len(self._input))

    def _metadata(
        self, transaction: Transaction, intake: Intake, recipients: list[tuple[str, str]]
    ) -> list[str]:
        metadata = self._front.metadata
        if not metadata.wanted:
            return []
        return metadata.rows(self._origin(transaction, intake.header), recipients)

    def _origin(self, transaction: Transaction, header: Callable[[], bytes]) -> Origin:
        return Origin(
            listener=self._listener,
            client=self.client,
            user="",  # until there is AUTH
            sender=transaction.sender or "",
            header=header,
        )

    def _trace(self, message_id: int, utf8: bool) -> str:
        protocol = "ESMTP" if self.session.extended_smtp else "SMTP"
        return received(
            helo=self.session.host_name or "",
            client=self.client,
            hostname=self.hostname,
            protocol="UTF8SMTP" if utf8 else protocol,
            message_id=message_id,
        )


_COMMANDS: dict[bytes, Callable[[Dialogue, str | None], str]] = {
    b"HELO": Dialogue._helo,
    b"EHLO": Dialogue._ehlo,
    b"MAIL": Dialogue._mail,
    b"RCPT": Dialogue._rcpt,
    b"DATA": Dialogue._data,
    b"RSET": Dialogue._rset,
    b"NOOP": Dialogue._noop,
    b"QUIT": Dialogue._quit,
    b"VRFY": Dialogue._vrfy,
    b"HELP": Dialogue._help,
}
_JUNK = frozenset((b"HELO", b"EHLO", b"RSET", b"NOOP", b"VRFY", b"HELP"))  # they carry no mail
_POSTMASTER = "mail for the postmaster: set `postmaster` in smtpd.yaml"
_REPEATED = 200  # characters of the client's words in a reply (RFC 5321, section 4.5.3.1.5)


def _plain(value: object) -> str:
    """What a reply may repeat of the client's words: printable ASCII."""
    text = str(value)
    text = text if len(text) <= _REPEATED else f"{text[:_REPEATED]}..."
    return "".join(char if " " <= char <= "~" else "?" for char in text)
