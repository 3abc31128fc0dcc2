"""The message that a session receives, after DATA or in chunks (RFC 3030), up to its answer.

The answer to the end of data is 250 after the commit (RFC 5321, sections 4.2.5 and 6.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pgmta.accounts.login import Login
from pgmta.mail.header import traceparent_field
from pgmta.model import CHUNK_SIZE
from pgmta.tracing import recorded, traceparent
from smtpd.commands.listener import SmtpListener
from smtpd.message.chunks import Chunks
from smtpd.message.content_file import ContentFile
from smtpd.message.end_of_data import EndOfData
from smtpd.message.incoming import IncomingMessage
from smtpd.protocol import replies
from smtpd.server.server import Server
from smtpd.session.composition import compose, header_rules

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from smtpd.session.connection import Connection
    from smtpd.session.session import SmtpSession

_SMALL = 512  # octets of a chunk that is as useless as NOOP
_HOOK_LEAST = 1 << 16  # octets of a message that a hook gets although memory is used up


class Reception:
    """Has the message under way: takes its content, has it committed, and answers the client."""

    def __init__(
        self, server: Server, listener: SmtpListener, connection: Connection, session: SmtpSession
    ) -> None:
        self._server = server
        self._listener = listener
        self._connection = connection
        self._session = session
        self.incoming: IncomingMessage | None = None
        """The message under way, from DATA to the reply to its end, or within a chunk of BDAT."""
        self.parked: IncomingMessage | None = None
        """The message between two chunks."""
        self.began = math.inf
        """When the content under way began, by the loop's clock; inf without any."""
        self._hooked = ""  # the 250 of a hook, for the message under way
        self._span: Span | None = None  # of the message whose commit is under way
        self._gaps: Sequence[str] = ()  # of the line in the log
        self._named: Login | None = None  # the user in them

    # -- its beginning --

    def take_data(self) -> None:
        """Take the content that follows DATA."""
        self.incoming = self._begin(EndOfData(self._listener.bare_newlines))
        self._connection.begin_content()

    def _begin(self, wire_form: EndOfData | Chunks) -> IncomingMessage:
        server, hooks = self._server, self._session.hooks
        self.began = server.loop.time()
        return IncomingMessage(
            server.config,
            server.committer,
            wire_form,
            header_rules=header_rules(
                server,
                self._session.commands.login,
                completes=self._listener.fix_ups,
                refuses=server.config.submission.check_from,
            ),
            whole=bool(hooks and hooks.whole),
        )

    def take_chunk(self) -> None:
        """Take the content that follows BDAT; if it is refused, its reply follows it too."""
        commands = self._session.commands
        size, last = commands.chunk
        incoming, self.parked = self.parked or self._first(), None
        assert isinstance(incoming.wire_form, Chunks)  # noqa: S101 - DATA is refused after BDAT
        if commands.transaction and commands.transaction.broken:
            incoming.give_up(replies.IN_CHUNKS)
        incoming.wire_form.begin_chunk(size, last=last)
        self.incoming = incoming
        self._connection.begin_content()
        if size > incoming.room:
            self._connection.closing.refuse(incoming.refusal or self._too_large())
            return
        if not size:  # otherwise its last octet ends it
            incoming.feed_octets(b"")
            self.complete()
        if size < _SMALL and not last:
            self._session.count_useless()

    def _first(self) -> IncomingMessage:
        """Return the message of a first chunk; it is refused where DATA would be."""
        incoming = self._begin(Chunks(self._listener.bare_newlines))
        commands = self._session.commands
        refusal = commands.do_command(b"DATA", "")
        if refusal is not replies.DATA_GO:
            incoming.give_up(refusal)
        elif commands.transaction:
            commands.transaction.begin_chunks()
        return incoming

    # -- meanwhile --

    def grown(self) -> None:
        """Look after the content: more of it has come, and not yet its end."""
        incoming, connection = self.incoming, self._connection
        if not incoming:
            return
        if incoming.full:
            connection.suspend(incoming.store())
        elif incoming.whole and self._server.memory.over and incoming.size > _HOOK_LEAST:
            incoming.give_up()
        elif incoming.room < 0:
            connection.closing.refuse(self._too_large())

    def write_ahead(self) -> bool:
        """Begin to write content in memory into the database; False if there is too little.

        Content for a hook stays in memory, because the hook gets all of it (`grown` refuses it).
        """
        incoming = self.incoming or self.parked
        if not incoming or incoming.whole or incoming.content.collected < CHUNK_SIZE:
            return False
        if not incoming.header_ended:
            return False
        self._connection.suspend(incoming.store(CHUNK_SIZE))
        return True

    def _too_large(self) -> str:
        return replies.TOO_LARGE.format(self._server.config.limits.message_size)

    @property
    def octets(self) -> int:
        """Content that is in memory."""
        incoming = self.incoming or self.parked
        return incoming.octets if incoming else 0

    @property
    def collecting(self) -> bool:
        """Whether the client sends content that may still become a message."""
        return self.incoming is not None and not self.incoming.refused

    @property
    def in_content(self) -> bool:
        """Whether a message is under way."""
        return self.incoming is not None or self.parked is not None

    # -- its end --

    def complete(self) -> None:
        """Judge the complete content, and have the message committed."""
        session, incoming = self._session, self.incoming
        if not incoming:
            return
        if not incoming.wire_form.done and not incoming.refused:
            self._end_chunk()
            return
        refusal = incoming.finish()
        if refusal:
            self._refused(refusal)
        elif session.hooks and session.hooks.judges_content:
            if incoming.spool:
                self._connection.suspend(self._ask_about_file(incoming))
            else:
                self._ask(incoming, incoming.body())
        elif incoming.ready:
            self._commit(incoming)
        else:
            self._connection.suspend(self._prepare(incoming))

    def _ask(self, incoming: IncomingMessage, content: bytes | ContentFile) -> None:
        """Ask the hooks about the content."""
        self._connection.begin_wait()  # until the hooks answer
        if self._session.hooks:
            self._session.hooks.ask_about_content(incoming.header(), content, self._answered)

    async def _ask_about_file(self, incoming: IncomingMessage) -> None:
        """Do so with content that is not in memory."""
        content = await incoming.file()
        if self.incoming is not incoming:
            return  # the session has ended
        if content:
            self._ask(incoming, content)
        else:
            self._answered(replies.UNAVAILABLE, None)

    def _answered(self, reply: str, changed: bytes | None) -> None:
        """Have a message committed that the hooks accept, with their content if they changed it."""
        incoming = self.incoming
        if not incoming:
            return
        refusal = reply if reply and reply[0] != "2" else ""
        if changed is not None and not refusal:
            incoming = self._replace(changed)
            refusal = incoming.finish()
        if refusal:
            self._refused(refusal)
            if refusal[:3] == "421":  # RFC 5321, section 3.8
                self._connection.closing.hang_up(linger=self._connection.unread)
            self._connection.resume()
            return
        self._hooked = reply
        if incoming.ready:
            self._commit(incoming)
        else:
            self._connection.suspend(self._prepare(incoming))

    def _replace(self, content: bytes) -> IncomingMessage:
        """Put the content of a hook in the place of the client's; return the message."""
        if self.incoming:
            self.incoming.content.discard()
        self.incoming = incoming = IncomingMessage(
            self._server.config,
            self._server.committer,
            EndOfData(self._listener.bare_newlines),
            header_rules=header_rules(
                self._server, self._session.commands.login, completes=False, refuses=False
            ),
            whole=True,
        )
        incoming.take_content(content)
        return incoming

    async def _prepare(self, incoming: IncomingMessage) -> None:
        refusal = await incoming.prepare()
        if refusal:
            self._refused(refusal)
        elif self._connection.transport:
            self._commit(incoming)

    def _commit(self, incoming: IncomingMessage) -> None:
        """Hand the message to the Committer, which calls `committed` once."""
        server, session, content = self._server, self._session, incoming.content
        commands, connection = session.commands, self._connection
        trace = ""
        if server.tracing or self._listener.trusts_traceparent:
            trace = self._begin_span(incoming)
        message = compose(server, self._listener, commands, connection.client, incoming, trace)
        if server.accepted:
            login = commands.login
            if not self._gaps or login is not self._named:
                self._named, user = login, login.user if login else ""
                self._gaps = server.accepted.gaps(user=user, **connection.log_values)
            content.gaps = self._gaps
        connection.begin_wait()  # until the commit
        server.committer.commit(content, message, self.committed)

    def _begin_span(self, incoming: IncomingMessage) -> str:
        """Begin the span of the message; return the trace context that goes on with it, or ''."""
        trusted = self._listener.trusts_traceparent
        given = traceparent_field(incoming.header()) if trusted else ""
        tracing, server = self._server.tracing, self._server
        if not tracing or recorded(given) is False:
            return given if recorded(given) else ""
        transaction = self._session.commands.transaction
        self._span = tracing.begin(
            "accept",
            {
                "messaging.message.id": str(incoming.content.id),
                "messaging.message.body.size": incoming.size,
                "pgmta.recipients": len(transaction.recipients) if transaction else 0,
            },
            tracing.context(given),
            age=server.loop.time() - self.began,
        )
        return traceparent(self._span)

    def _end_span(self, error: str) -> None:
        if self._span and self._server.tracing:
            self._server.tracing.end(self._span, error=error)
        self._span = None

    def committed(self, error: Exception | None) -> None:
        """Answer the client: 250 if the message is durable, 451 if it is not, or may not be."""
        session, incoming = self._session, self.incoming
        if not incoming:
            return
        hooked, transaction = self._hooked, session.commands.transaction
        recipients = len(transaction.recipients) if transaction else 0
        session.tally.count_message(recipients, accepted=not error)
        self._end()
        if self._span:
            self._end_span(type(error).__name__ if error else "")
        reply = replies.UNAVAILABLE
        if not error:
            reply = hooked or replies.QUEUED.format(incoming.content.id)
        if session.replies_owed:
            reply = session.repeated(reply)
        self._connection.resume(reply, accepted=not error)
        if self._server.stopping:
            self._connection.closing.stop_if_idle()

    def _refused(self, reply: str) -> None:
        """End the transaction: its content is not accepted."""
        if incoming := self.incoming:
            incoming.content.discard()
        self._end()
        self._connection.end_content()
        self._session.reply(reply)
        if self._server.stopping:
            self._connection.closing.stop_if_idle()

    def _end_chunk(self) -> None:
        """Answer a chunk that is not the last, and wait for the next one."""
        self._session.reply(replies.CHUNK.format(self._session.commands.chunk[0]))
        self.grown()
        self.parked, self.incoming = self.incoming, None
        self._connection.end_content()

    def _end(self) -> None:
        """End the transaction."""
        self.incoming, self.began, self._hooked = None, math.inf, ""
        self._session.commands.end_transaction()

    def drop_if_transaction_ended(self) -> None:
        """Forget the content so far if its transaction has ended."""
        if not self._session.commands.transaction:
            self.forget()

    def forget(self) -> None:
        """Forget the content between two chunks."""
        if not self.parked:
            return
        self.parked.content.discard()
        self.parked, self.began = None, math.inf
        self._connection.end_content()
        if self._server.stopping:
            self._connection.closing.stop_if_idle()

    def abandon(self) -> None:
        """Forget the message: the connection has ended."""
        if self.incoming:
            self.incoming.content.discard()
            self.incoming = None
        if self._span:
            self._end_span("disconnected")
        self.forget()
