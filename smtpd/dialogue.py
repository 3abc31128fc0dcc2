"""One SMTP session, on top of aiosmtpd: envelope, content, acknowledgement after the commit."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import cast

from aiosmtpd.smtp import SMTP, Session

from queued.address import parse_mailbox, split_path
from queued.errors import AddressError
from queued.logs import get
from smtpd import replies
from smtpd.content import Collector
from smtpd.front import Front
from smtpd.intake import Intake
from smtpd.metadata import Origin
from smtpd.received import received

log = get("smtpd")

_READ = 1 << 30  # more than the reader ever holds: take all there is


@dataclass(slots=True)
class Transaction:
    """What MAIL and RCPT have said so far."""

    sender: str | None = None
    utf8: bool = False
    recipients: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, mailbox: str, domain: str, limit: int) -> bool:
        """Note a recipient, each once; False where there would be more than `limit`."""
        key = (mailbox.rpartition("@")[0], domain)
        if key not in self.recipients and len(self.recipients) >= limit:
            return False
        self.recipients.setdefault(key, mailbox)
        return True


class Dialogue(SMTP):
    """The server's side of one connection.

    aiosmtpd reads the command lines and knows HELO, RSET, NOOP, VRFY, HELP, QUIT, STARTTLS and
    AUTH; what carries mail is here.
    """

    line_length_limit = 1 << 16  # what the stream reader may hold; command lines have their own
    command_size_limit = 2048  # room for parameters (RFC 5321, section 4.5.3.1.4 allows more)

    envelope: Transaction  # type: ignore[assignment]
    session: Session
    transport: asyncio.Transport | None
    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter

    def __init__(self, front: Front, loop: asyncio.AbstractEventLoop, listener: str) -> None:
        limits = front.config.limits
        super().__init__(
            _NoHooks,
            hostname=front.config.environment.hostname,
            ident="ESMTP Postern",
            data_size_limit=limits.message_size,
            enable_SMTPUTF8=True,
            timeout=limits.timeout,
            loop=loop,
        )
        self.command_size_limits = defaultdict(lambda: Dialogue.command_size_limit)  # after EHLO
        self._front = front
        self._listener = listener
        self._refused = False
        self._receiving = False

    def _create_envelope(self) -> Transaction:  # type: ignore[override]
        return Transaction()

    @property
    def _client(self) -> str:
        peer = self.session.peer
        return str(peer[0]) if isinstance(peer, tuple) else "127.0.0.1"

    # -- connection --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet, or turn away what is over the limit."""
        if not self._front.enter(self):
            self._refused = True
            line = replies.TOO_MANY_CONNECTIONS.format(self.hostname)
            turned_away = cast(asyncio.Transport, transport)
            turned_away.write(f"{line}\r\n".encode())
            turned_away.close()
            return
        super().connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the session; a commit under way goes on."""
        if not self._refused:
            self._front.leave(self)
            super().connection_lost(error)

    def eof_received(self) -> bool | None:
        """Answer what a client piped in before it closed its side."""
        return asyncio.StreamReaderProtocol.eof_received(self)

    def end(self) -> None:
        """The process stops: an idle session is told so, one in DATA gets its answer first."""
        if not self._receiving and self.transport:
            line = replies.SHUTTING_DOWN.format(self.hostname)
            self._writer.write(f"{line}\r\n".encode())
            self.transport.close()

    async def handle_exception(self, error: Exception) -> str:
        """Reply to what went wrong inside of us; the client may try again."""
        if isinstance(error, asyncio.IncompleteReadError):
            self._hang_up()
            return replies.SHUTTING_DOWN.format(self.hostname)
        log.error("error in a session", client=self._client, exc_info=error)
        return replies.INTERNAL

    def _hang_up(self) -> None:
        self._writer.close()
        task = asyncio.current_task()
        if task:
            task.cancel()

    # -- commands --

    async def smtp_EHLO(self, hostname: str) -> None:
        """Tell what we can (RFC 5321, section 4.1.1.1)."""
        if not hostname:
            await self.push("501 5.5.4 Syntax: EHLO hostname")
            return
        self._set_rset_state()  # type: ignore[no-untyped-call]
        self.session.extended_smtp = True
        self.session.host_name = hostname
        keywords = [
            self.hostname,
            f"SIZE {self.data_size_limit}",
            "8BITMIME",
            "SMTPUTF8",
            "PIPELINING",
            "ENHANCEDSTATUSCODES",
        ]
        last = len(keywords) - 1
        await self.push(
            "\r\n".join(f"250{' ' if i == last else '-'}{k}" for i, k in enumerate(keywords))
        )

    async def smtp_VRFY(self, arg: str | None) -> None:
        """Tell nothing (section 3.5.3)."""
        await self.push(replies.VRFY if arg else replies.SYNTAX_VRFY)

    async def smtp_MAIL(self, arg: str | None) -> None:
        """Open a transaction (RFC 5321, section 4.1.1.2)."""
        await self.push(self._mail(arg))

    def _mail(self, arg: str | None) -> str:
        if not self.session.host_name:
            return replies.NO_HELO
        if arg is None or arg[:5].upper() != "FROM:":
            return replies.SYNTAX_MAIL
        if self.envelope.sender is not None:
            return replies.NESTED_MAIL
        try:
            path, rest = split_path(arg[5:])
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

    async def smtp_RCPT(self, arg: str | None) -> None:
        """Add a recipient (RFC 5321, section 4.1.1.3)."""
        await self.push(self._rcpt(arg))

    def _rcpt(self, arg: str | None) -> str:
        if self.envelope.sender is None:
            return replies.NO_MAIL if self.session.host_name else replies.NO_HELO
        if arg is None or arg[:3].upper() != "TO:":
            return replies.SYNTAX_RCPT
        try:
            path, rest = split_path(arg[3:])
        except AddressError:
            return replies.SYNTAX_RCPT
        if rest:
            return replies.UNKNOWN_PARAMETER.format(_plain(rest.partition("=")[0][:40]))
        if path.lower() == "postmaster":  # the one address that needs no domain (section 4.5.1)
            path = f"{path}@{self.hostname}"
        try:
            mailbox, domain = parse_mailbox(path, utf8=self.envelope.utf8)
        except AddressError as error:
            return replies.BAD_ADDRESS.format(_plain(error))
        if not self._front.policy.accepts(self._client, domain):
            return replies.RELAY_DENIED
        if not self.envelope.add(mailbox, domain, self._front.config.limits.recipients):
            return replies.TOO_MANY_RECIPIENTS
        return replies.RCPT_OK

    async def smtp_DATA(self, arg: str | None) -> None:
        """Take the content and acknowledge it when it is durable (section 4.1.1.4)."""
        if arg:
            await self.push(replies.SYNTAX_DATA)
            return
        if not self.envelope.recipients:
            await self.push(replies.NO_MAIL if self.envelope.sender is None else replies.NO_RCPT)
            return
        self._receiving = True
        try:
            await self.push(replies.DATA_GO)
            reply = await self._receive(self.envelope)
            self._set_post_data_state()  # type: ignore[no-untyped-call]
            await self.push(reply)
        finally:
            self._receiving = False
        if self._front.stopping:
            self.end()

    async def _receive(self, transaction: Transaction) -> str:
        intake = Intake(self._front)
        collector = Collector()
        try:
            while not collector.done:
                data = await self._reader.read(_READ)
                if not data:
                    self._hang_up()
                    await asyncio.sleep(0)
                self._reset_timeout()
                piece = collector.feed(data)
                if collector.rest:
                    # back to the reader, which we have just emptied: pipelined commands
                    self._reader._buffer.extend(collector.rest)  # type: ignore[attr-defined]
                await intake.take(piece)
            # from here the commit's own time limit counts
            self._reset_timeout(self._front.config.ingest.wait + self._timeout_duration)
            recipients = [
                (mailbox, domain) for (_, domain), mailbox in transaction.recipients.items()
            ]
            return await intake.finish(
                transaction.sender or "",
                recipients,
                transaction.utf8,
                lambda message_id: self._trace(message_id, transaction.utf8),
                lambda header: self._front.metadata.rows(
                    self._origin(transaction, header), recipients
                ),
            )
        finally:
            intake.forget()

    def _origin(self, transaction: Transaction, header: bytes) -> Origin:
        return Origin(
            listener=self._listener,
            client=self._client,
            user="",  # until there is AUTH
            sender=transaction.sender or "",
            header=header,
        )

    def _trace(self, message_id: int, utf8: bool) -> str:
        protocol = "ESMTP" if self.session.extended_smtp else "SMTP"
        return received(
            helo=self.session.host_name or "",
            client=self._client,
            hostname=self.hostname,
            protocol="UTF8SMTP" if utf8 else protocol,
            message_id=message_id,
            now=datetime.now(UTC),
        )


class _NoHooks:
    """aiosmtpd looks for handler hooks here; the dialogue needs none."""


def _plain(value: object) -> str:
    """What a reply may repeat of the client's words: printable ASCII."""
    return str(value).encode("ascii", "replace").decode().replace("\r", "?").replace("\n", "?")
