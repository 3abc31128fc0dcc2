"""The beginning of content: after DATA, or chunk by chunk with BDAT (RFC 3030, section 2)."""

from __future__ import annotations

from typing import Protocol

from smtpd.message.chunks import Chunks
from smtpd.message.end_of_data import EndOfData
from smtpd.message.incoming import IncomingMessage
from smtpd.message.submission import Submission
from smtpd.protocol import replies
from smtpd.server.server import Server
from smtpd.session.acknowledgement import Acknowledgement, Owner, Wire
from smtpd.session.listener import SmtpListener

_SMALL = 512  # octets of a chunk that is as useless as NOOP


class Receiver(Owner, Protocol):
    """The session that gets the content."""

    acknowledgement: Acknowledgement

    def grown(self) -> None:
        """Look after the content: more of it has come, and not yet its end."""

    def useless(self) -> None:
        """Count a command that carries no mail."""


class Reception:
    """Begins the messages of a session, and keeps one between its chunks."""

    def __init__(
        self, server: Server, listener: SmtpListener, wire: Wire, session: Receiver
    ) -> None:
        self._server = server
        self._listener = listener
        self._wire = wire
        self._session = session
        self._completes = listener.fix_ups
        self._checks = server.config.submission.check_from
        self.parked: IncomingMessage | None = None
        """The message between two chunks."""

    def take_data(self) -> None:
        """Take the content that follows DATA."""
        self._session.incoming = self._begin(EndOfData(self._listener.bare_newlines))

    def _begin(self, wire_form: EndOfData | Chunks) -> IncomingMessage:
        server, session = self._server, self._session
        self._wire.closing.content_begins()
        return IncomingMessage(
            server.config,
            server.committer,
            wire_form,
            submission=self._submission() if self._completes or session.commands.login else None,
            whole=bool(session.hooks and session.hooks.whole),
        )

    def _submission(self) -> Submission:
        """Return the changes and checks of the header of a message."""
        login = self._session.commands.login
        return Submission(
            self._server.hostname,
            completes=self._completes,
            senders=login.addresses if login else None,
            refuses=self._checks,
        )

    def take_chunk(self) -> None:
        """Take the content that follows BDAT; if it is refused, its reply follows it too."""
        session = self._session
        size, last = session.commands.chunk
        incoming, self.parked = self.parked or self._first(), None
        assert isinstance(incoming.wire_form, Chunks)  # noqa: S101 - DATA is refused after BDAT
        transaction = session.commands.transaction
        if transaction and transaction.broken:
            incoming.give_up(replies.IN_CHUNKS)
        incoming.wire_form.begin(size, last=last)
        session.incoming = incoming
        if size > incoming.room:
            limit = self._server.config.limits.message_size
            self._wire.closing.refuse(incoming.refusal or replies.TOO_LARGE.format(limit))
            return
        if not size:  # otherwise its last octet ends it
            incoming.feed(b"")
            session.acknowledgement.complete()
        if size < _SMALL and not last:
            session.useless()

    def _first(self) -> IncomingMessage:
        """Return the message of a first chunk; it is refused where DATA would be."""
        incoming = self._begin(Chunks(self._listener.bare_newlines))
        commands = self._session.commands
        refusal = commands.do(b"DATA", "")
        if refusal is not replies.DATA_GO:
            incoming.give_up(refusal)
        elif commands.transaction:
            commands.transaction.chunked = True
        return incoming

    def chunk_over(self) -> None:
        """Answer a chunk that is not the last, and wait for the next one."""
        session = self._session
        session.reply(replies.CHUNK.format(session.commands.chunk[0]))
        session.grown()
        self.parked, session.incoming = session.incoming, None

    def look(self) -> None:
        """Forget the content so far if its transaction has ended."""
        if not self._session.commands.transaction:
            self.forget()

    def forget(self) -> None:
        """Forget the content so far."""
        if not self.parked:
            return
        self.parked.content.discard()
        self.parked = None
        self._wire.closing.content_ends()
        self._wire.share.large = False
        if self._server.stopping:
            self._wire.closing.stop()
