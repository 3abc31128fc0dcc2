"""The answer to the end of data: 250 after the commit (RFC 5321, sections 4.2.5 and 6.1)."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from pgmta.accounts.login import Login
from pgmta.model import NewMessage, Options
from smtpd.commands.commands import Commands
from smtpd.commands.received import DATE
from smtpd.commands.tally import Tally
from smtpd.fairness.closing import Closing
from smtpd.fairness.share import Share
from smtpd.hooks.session_hooks import SessionHooks
from smtpd.message.content_file import ContentFile
from smtpd.message.end_of_data import EndOfData
from smtpd.message.incoming import IncomingMessage
from smtpd.message.submission import Submission
from smtpd.protocol import replies
from smtpd.protocol.transaction import Transaction
from smtpd.server.metadata import Metadata, Origin
from smtpd.server.server import Server
from smtpd.session.listener import SmtpListener

_NO_RULES = Metadata({})
_POSTMASTER = "mail for the postmaster: set `postmaster` in smtpd.yaml"


class Wire(Protocol):
    """The connection, as far as an answer needs it."""

    client: str
    listener: str
    session_id: str
    transport: asyncio.Transport | None
    closing: Closing
    share: Share
    busy: bool

    @property
    def unread(self) -> bool:
        """Whether there is input that has not been worked through."""

    def suspend(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for a coroutine; the commands that follow wait for it."""

    def resume(self, reply: str = "") -> None:
        """Go on with the next command."""


class Owner(Protocol):
    """The session whose message is answered."""

    commands: Commands
    hooks: SessionHooks | None
    incoming: IncomingMessage | None
    tally: Tally
    copies: int

    def repeated(self, reply: str) -> str:
        """Return the reply to the end of data in the form of the protocol."""

    def reply(self, reply: str) -> None:
        """Send a reply."""

    def chunk_over(self) -> None:
        """Answer a chunk of BDAT that is not the last."""


class Acknowledgement:
    """Has the complete messages of a session committed, and answers the client."""

    def __init__(self, server: Server, listener: SmtpListener, wire: Wire, session: Owner) -> None:
        self._server = server
        self._listener = listener
        self._wire = wire
        self._session = session
        self._hooked = ""  # the 250 of a hook, for the message under way
        self._asking: asyncio.Task[None] | None = None
        self._gaps: Sequence[str] = ()  # of the line in the log
        self._named: Login | None = None  # the user in them

    def complete(self) -> None:
        """Judge the complete content, and have the message committed."""
        incoming = self._session.incoming
        if not incoming:
            return
        if not incoming.wire_form.done and not incoming.refused:
            self._session.chunk_over()
            return
        if incoming.large:
            self._wire.share.large = True
        refusal = incoming.finish()
        if refusal:
            self._refused(refusal)
        elif self._session.hooks and self._session.hooks.judges_content:
            self._wire.busy = True  # until the hooks answer
            if incoming.spool:
                self._asking = asyncio.create_task(self._ask_about_file(incoming))
                self._asking.add_done_callback(self._asked)
            else:
                self._ask(incoming, incoming.body())
        elif incoming.ready:
            self._wire.busy = True  # until the commit
            self._commit(incoming)
        else:
            self._wire.suspend(self._prepare(incoming))

    def _ask(self, incoming: IncomingMessage, content: bytes | ContentFile) -> None:
        """Ask the hooks about the content."""
        if self._session.hooks:
            self._session.hooks.content.ask(incoming.header(), content, self._answered)

    async def _ask_about_file(self, incoming: IncomingMessage) -> None:
        """Do so with content that is not in memory."""
        content = await incoming.file()
        if self._session.incoming is not incoming:
            return  # the session has ended
        if content:
            self._ask(incoming, content)
        else:
            self._answered(replies.UNAVAILABLE, None)

    def _asked(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._wire.closing.fail(error)

    def _answered(self, reply: str, changed: bytes | None) -> None:
        """Have a message committed that the hooks accept, with their content if they changed it."""
        incoming, server = self._session.incoming, self._server
        if not incoming:
            return
        refusal = reply if reply and reply[0] != "2" else ""
        if changed is not None and not refusal:
            incoming.content.discard()
            mode = self._listener.bare_newlines
            incoming = IncomingMessage(
                server.config,
                server.committer,
                EndOfData(mode),
                submission=self._reading(),
                whole=True,
            )
            self._session.incoming = incoming
            incoming.take(changed)
            refusal = incoming.finish()
        if refusal:
            self._refused(refusal)
            if refusal[:3] == "421":  # RFC 5321, section 3.8
                self._wire.closing.hang_up(linger=self._wire.unread)
            self._wire.resume()
            return
        self._hooked = reply
        if incoming.ready:
            self._commit(incoming)
        else:
            self._wire.suspend(self._prepare(incoming))

    async def _prepare(self, incoming: IncomingMessage) -> None:
        refusal = await incoming.prepare()
        if refusal:
            self._refused(refusal)
        elif self._wire.transport:
            self._commit(incoming)

    def _commit(self, incoming: IncomingMessage) -> None:
        """Hand the message to the Committer, which calls `committed` once."""
        server, content = self._server, incoming.content
        transaction = self._session.commands.transaction or Transaction()
        metadata: list[str] = []
        tally = self._session.tally
        tally.messages += 1
        tally.recipients += len(transaction.recipients)
        recipients = [(mailbox, domain) for (_, domain), mailbox in transaction.recipients.items()]
        login, options = self._session.commands.login, transaction.options
        if server.metadata or (login and login.metadata):
            rules = server.metadata or _NO_RULES
            metadata = rules.rows(
                self._origin(transaction, incoming, login.user if login else ""),
                recipients,
                login.metadata if login else {},
            )
        if login or transaction.dsn:
            options = _options(transaction, login)
        if incoming.tls_optional and not (options and options.requiretls):  # RFC 8689, section 4.1
            options = options or Options()
            options.tls_optional = True
        second = int(time.time())
        if second != server.second:
            server.second, server.date = second, time.strftime(DATE, time.gmtime(second))
        holds = None
        if transaction.held:
            held = transaction.held
            holds = [_POSTMASTER if key in held else None for key in transaction.recipients]
        message = NewMessage(  # over 15 names would make Python build a dict for the call
            content.id,
            transaction.sender,
            recipients,
            incoming.size,
            f"{transaction.trace}{content.id};\r\n\t{server.date}\r\n",
            b"".join(content.buffers),
            sender_domain=transaction.sender_domain,
            chunks=content.chunks,
            utf8=transaction.envelope.smtp_utf8,
            metadata=metadata,
            holds=holds,
            priority=transaction.priority,
            options=options,
            message_id_header=incoming.message_id_header,
            on_failed=self._listener.bouncing.always or self._on_failed(login),
            origin="user" if incoming.by_user else transaction.origin,
        )
        content.buffers.clear()
        if transaction.decided:
            transaction.decided.apply(message)
        if server.accepted:
            if not self._gaps or login is not self._named:
                self._named, user = login, login.user if login else ""
                self._gaps = server.accepted.gaps(
                    self._wire.client, user, self._wire.listener, self._wire.session_id
                )
            content.gaps = self._gaps
        server.committer.commit(content, message, self.committed)

    def committed(self, error: Exception | None) -> None:
        """Answer the client: 250 if the message is durable, 451 if it is not, or may not be."""
        incoming = self._session.incoming
        if not incoming:
            return
        hooked = self._hooked
        self._over()
        reply = replies.UNAVAILABLE
        if not error:
            tally = self._session.tally
            tally.errors = tally.unknown_commands = 0
            tally.junk_level = 0.0
            self._wire.share.spent = 0.0
            reply = hooked or replies.QUEUED.format(incoming.content.id)
        self._wire.resume(self._session.repeated(reply) if self._session.copies else reply)
        if self._server.stopping:
            self._wire.closing.stop()

    def _refused(self, reply: str) -> None:
        """End the transaction: its content is not accepted."""
        if self._session.incoming:
            self._session.incoming.content.discard()
        self._over()
        self._session.reply(reply)
        if self._server.stopping:
            self._wire.closing.stop()

    def _over(self) -> None:
        """End the transaction."""
        self._session.incoming = self._session.commands.transaction = None
        self._hooked = ""
        self._wire.closing.data_deadline = math.inf
        self._wire.share.large = False

    def _reading(self) -> Submission | None:
        """Return what looks whether From is the user's, in content that a hook has changed."""
        login = self._session.commands.login
        if not login:
            return None
        host = self._server.hostname
        return Submission(host, completes=False, senders=login.addresses, refuses=False)

    def _on_failed(self, login: Login | None) -> str:
        """Return what becomes of the rows if they fail, if that depends on the client."""
        user, identified = login.user if login else "", self._session.commands.identified
        return self._listener.bouncing.of(self._wire.client, user, identified=identified)

    def _origin(self, transaction: Transaction, incoming: IncomingMessage, user: str) -> Origin:
        return Origin(
            listener=self._listener.label,
            client=self._wire.client,
            user=user,
            sender=transaction.sender,
            header=incoming.header,
        )


def _options(transaction: Transaction, login: Login | None) -> Options:
    """Return the options of a message of a user, or with recipients that have DSN parameters."""
    options = transaction.options or Options()
    if login:
        options.tenant, options.submitted_by = login.tenant, login.user
    if transaction.dsn:
        found = [transaction.dsn.get(key, (None, None)) for key in transaction.recipients]
        options.notify = [notify for notify, _ in found]
        options.orcpt = [orcpt for _, orcpt in found]
    return options
