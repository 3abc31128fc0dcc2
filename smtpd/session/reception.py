"""The message that a session receives, after DATA or in chunks (RFC 3030), up to its answer.

The answer to the end of data is 250 after the commit (RFC 5321, sections 4.2.5 and 6.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pgmta.accounts.login import Login
from pgmta.mail.header import traceparent_field
from pgmta.tracing import recorded, traceparent
from smtpd.commands.commands import Commands
from smtpd.commands.listener import SmtpListener
from smtpd.commands.tally import Tally
from smtpd.hooks.session_hooks import SessionHooks
from smtpd.message.bdat import Chunks
from smtpd.message.content_file import ContentFile
from smtpd.message.end_of_data import EndOfData
from smtpd.message.incoming import IncomingMessage
from smtpd.protocol import replies
from smtpd.server.server import Server
from smtpd.session.accepted_message import compose, header_rules
from smtpd.session.connection import Connection
from smtpd.session.replier import Replier

if TYPE_CHECKING:
    from opentelemetry.trace import Span

MIN_USEFUL_CHUNK_OCTETS = 512  # a smaller chunk counts as NOOP does


class Reception:
    """Has the message under way: takes its content, has it committed, and answers the client."""

    def __init__(
        self,
        server: Server,
        listener: SmtpListener,
        connection: Connection,
        commands: Commands,
        tally: Tally,
        replier: Replier,
        hooks: SessionHooks | None,
    ) -> None:
        self._server = server
        self._listener = listener
        self._connection = connection
        self._commands = commands
        self._tally = tally
        self._replier = replier
        self._hooks = hooks
        self.began = math.inf
        """When the content under way began, by the loop's clock; inf without any."""
        self._hooked = ""  # the 250 that a hook gave for the message under way
        self._span: Span | None = None  # the span of the message whose commit is under way
        self._log_template: Sequence[str] = ()
        self._log_template_login: Login | None = None

    # -- its beginning --

    def take_data(self) -> None:
        """Take the content that follows DATA."""
        self._connection.begin_content(self._begin(EndOfData(self._listener.bare_newlines)))

    def _begin(self, wire_form: EndOfData | Chunks) -> IncomingMessage:
        server, hooks = self._server, self._hooks
        self.began = server.loop.time()
        return IncomingMessage(
            server.config,
            server.committer,
            wire_form,
            header_rules=header_rules(
                server,
                self._commands.login,
                completes=self._listener.fix_ups,
                refuses=server.config.submission.check_from,
            ),
            whole=bool(hooks and hooks.whole),
        )

    def take_chunk(self) -> None:
        """Take the content that follows BDAT; if it is refused, its reply follows it too."""
        connection = self._connection
        size, last = self._commands.chunk
        message = connection.message or self._first()
        assert isinstance(message.wire_form, Chunks)  # noqa: S101 - DATA is refused after BDAT
        transaction = self._commands.transaction
        if transaction and transaction.broken:
            message.give_up(replies.IN_CHUNKS)
        message.wire_form.begin_chunk(size, last=last)
        connection.begin_content(message)
        if size > message.octets_left:
            too_large = replies.TOO_LARGE.format(self._server.config.limits.message_size)
            connection.refuse(message.refusal or too_large)
            return
        if not size:  # otherwise the last octet of the chunk ends it
            message.feed_octets(b"")
            self.complete()
        if size < MIN_USEFUL_CHUNK_OCTETS and not last:
            self._replier.count_useless()

    def _first(self) -> IncomingMessage:
        """Return the message of a first chunk; it is refused where DATA would be."""
        message = self._begin(Chunks(self._listener.bare_newlines))
        refusal = self._commands.do_command(b"DATA", "")
        if refusal is not replies.DATA_GO:
            message.give_up(refusal)
        elif self._commands.transaction:
            self._commands.transaction.begin_chunks()
        return message

    # -- its end --

    def complete(self) -> None:
        """Judge the complete content, and have the message committed; or answer a chunk."""
        message, hooks = self._connection.message, self._hooks
        if not message:
            return
        if not message.wire_form.done and not message.refused:
            self._replier.reply(replies.CHUNK.format(self._commands.chunk[0]))
            self._connection.end_chunk()
            return
        refusal = message.finish()
        if refusal:
            self._refuse(refusal)
        elif hooks and hooks.judges_content:
            if message.spool:
                self._connection.suspend(self._ask_about_file(hooks, message))
            else:
                self._ask(hooks, message, message.body())
        elif message.ready:
            self._commit(message)
        else:
            self._connection.suspend(self._prepare(message))

    def _ask(
        self, hooks: SessionHooks, message: IncomingMessage, content: bytes | ContentFile
    ) -> None:
        """Ask the hooks about the content."""
        self._connection.begin_wait()  # which ends when the hooks answer
        hooks.ask_about_content(message.header(), content, self._answered)

    async def _ask_about_file(self, hooks: SessionHooks, message: IncomingMessage) -> None:
        """Do so with content that is not in memory."""
        content = await message.file()
        if self._connection.message is not message:
            return  # the session has ended
        if content:
            self._ask(hooks, message, content)
        else:
            self._answered(replies.UNAVAILABLE, None)

    def _answered(self, reply: str, changed: bytes | None) -> None:
        """Have a message committed that the hooks accept, with their content if they changed it."""
        connection = self._connection
        message = connection.message
        if not message:
            return
        refusal = reply if reply and reply[0] != "2" else ""
        if changed is not None and not refusal:
            message = self._replace(message, changed)
            refusal = message.finish()
        if refusal:
            self._refuse(refusal)
            if refusal[:3] == "421":  # after which smtpd has to close (RFC 5321, section 3.8)
                connection.hang_up(linger=connection.unread)
            connection.resume()
            return
        self._hooked = reply
        if message.ready:
            self._commit(message)
        else:
            connection.suspend(self._prepare(message))

    def _replace(self, message: IncomingMessage, content: bytes) -> IncomingMessage:
        """Put the content of a hook in the place of the client's; return the new message."""
        message.content.discard()
        message = IncomingMessage(
            self._server.config,
            self._server.committer,
            EndOfData(self._listener.bare_newlines),
            header_rules=header_rules(
                self._server, self._commands.login, completes=False, refuses=False
            ),
            whole=True,
        )
        self._connection.replace_content(message)
        message.take_content(content)
        return message

    async def _prepare(self, message: IncomingMessage) -> None:
        refusal = await message.prepare()
        if refusal:
            self._refuse(refusal)
        elif self._connection.transport:
            self._commit(message)

    def _commit(self, message: IncomingMessage) -> None:
        """Hand the message to the Committer, which calls `_committed` once."""
        server, commands, connection = self._server, self._commands, self._connection
        trace = ""
        if server.tracing or self._listener.trusts_traceparent:
            trace = self._begin_span(message)
        new = compose(server, self._listener, commands, connection.client, message, trace)
        if server.accepted:
            login = commands.login
            if not self._log_template or login is not self._log_template_login:
                self._log_template_login, user = login, login.user if login else ""
                self._log_template = server.accepted.template(user=user, **connection.log_values)
        connection.begin_wait()  # which ends with the commit
        server.committer.commit(message.content, new, self._committed, self._log_template)

    def _begin_span(self, message: IncomingMessage) -> str:
        """Begin the span of the message; return the trace context that goes on with it, or ''."""
        trusted = self._listener.trusts_traceparent
        given = traceparent_field(message.header()) if trusted else ""
        tracing, server = self._server.tracing, self._server
        if not tracing or recorded(given) is False:
            return given if recorded(given) else ""
        transaction = self._commands.transaction
        self._span = tracing.begin(
            "accept",
            {
                "messaging.message.id": str(message.content.id),
                "messaging.message.body.size": message.size,
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

    def _committed(self, error: Exception | None) -> None:
        """Answer the client: 250 if the message is durable, 451 if it is not, or may not be."""
        connection, commands = self._connection, self._commands
        message, transaction = connection.message, commands.transaction
        if not message:
            return
        recipients = len(transaction.recipients) if transaction else 0
        self._tally.count_message(recipients, accepted=not error)
        if self._span:
            self._end_span(type(error).__name__ if error else "")
        reply = replies.UNAVAILABLE
        if not error:
            reply = self._hooked or replies.QUEUED.format(message.content.id)
        if self._replier.owed:
            reply = self._replier.repeated(reply)
        self.began, self._hooked = math.inf, ""
        commands.end_transaction()
        connection.end_content()
        connection.resume(reply, accepted=not error)
        if self._server.stopping:
            connection.stop_if_idle()

    def _refuse(self, reply: str) -> None:
        """End the transaction: its content is not accepted."""
        if message := self._connection.message:
            message.content.discard()
        self.began, self._hooked = math.inf, ""
        self._commands.end_transaction()
        self._connection.end_content()
        self._replier.reply(self._replier.repeated(reply))
        if self._server.stopping:
            self._connection.stop_if_idle()

    def drop_if_transaction_ended(self) -> None:
        """Forget the content so far if its transaction has ended."""
        if not self._commands.transaction:
            self.forget()

    def forget(self) -> None:
        """Forget the message so far."""
        message = self._connection.message
        if not message:
            return
        message.content.discard()
        self.began = math.inf
        self._connection.end_content()
        if self._server.stopping:
            self._connection.stop_if_idle()

    def abandon(self) -> None:
        """Forget the message: the connection has ended."""
        if self._span:
            self._end_span("disconnected")
        self.forget()
