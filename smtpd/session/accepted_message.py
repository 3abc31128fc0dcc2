"""The message that goes into the queue, as its transaction and its content make it."""

from __future__ import annotations

import time
from functools import lru_cache

from pgmta.accounts.login import Login
from pgmta.intake.header_completion import HeaderCompletion
from pgmta.intake.metadata_rules import MessageOrigin, MetadataRules
from pgmta.model import NewMessage, Options
from pgmta.tracing import TRACE_KEY
from smtpd.commands.commands import Commands
from smtpd.commands.listener import SmtpListener
from smtpd.message.incoming import IncomingMessage
from smtpd.protocol.transaction import Transaction
from smtpd.server.server import Server

_NO_RULES = MetadataRules({})
_POSTMASTER = "mail for the postmaster: set `postmaster` in smtpd.yaml"


def compose(
    server: Server,
    listener: SmtpListener,
    commands: Commands,
    client: str,
    incoming: IncomingMessage,
    traceparent: str = "",
) -> NewMessage:
    """Return the message of a transaction, with its trace field; it takes over the content.

    A `traceparent` is the trace context of its rows.
    """
    content = incoming.content
    transaction = commands.transaction or Transaction()
    metadata: list[str] = []
    recipients = [(mailbox, domain) for (_, domain), mailbox in transaction.recipients.items()]
    login, options = commands.login, transaction.options
    if server.metadata or traceparent or (login and login.metadata):
        user = login.user if login else ""
        own = login.metadata if login else {}
        metadata = (server.metadata or _NO_RULES).row_metadata(
            MessageOrigin(listener.label, client, user, transaction.sender, incoming.header),
            recipients,
            {**own, TRACE_KEY: traceparent} if traceparent else own,
        )
    if login or transaction.dsn:
        options = _options(transaction, login)
    if incoming.tls_optional and not (options and options.requiretls):  # RFC 8689, section 4.1
        options = options or Options()
        options.tls_optional = True
    holds = None
    if transaction.held:
        held = transaction.held
        holds = [_POSTMASTER if key in held else None for key in transaction.recipients]
    on_failed = listener.bouncing.always or listener.bouncing.choose(
        client, login.user if login else "", identified=commands.identified
    )
    message = NewMessage(  # by position: for over 15 keywords Python would build a dict
        content.id,
        transaction.sender,
        recipients,
        incoming.size,
        f"{commands.trace}{content.id};\r\n\t{trace_date(int(time.time()))}\r\n",
        b"".join(content.buffers),
        sender_domain=transaction.sender_domain,
        chunks=content.chunks,
        utf8=transaction.envelope.smtp_utf8,
        metadata=metadata,
        holds=holds,
        priority=transaction.priority,
        options=options,
        message_id_header=incoming.message_id_header,
        on_failed=on_failed,
        origin="user" if incoming.by_user else transaction.origin,
    )
    content.buffers.clear()
    if transaction.decide:
        transaction.decide(message)
    return message


def header_rules(
    server: Server, login: Login | None, *, completes: bool, refuses: bool
) -> HeaderCompletion | None:
    """Return what completes and checks the header of a message, None if nothing has to."""
    if not (login or completes):
        return None
    may_send = login.may_send_from if login else None
    return HeaderCompletion(
        server.hostname, completes=completes, may_send=may_send, refuses=refuses
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


@lru_cache(maxsize=2)
def trace_date(second: int) -> str:
    """Return the date of a trace field (RFC 5322, section 3.3), for a second since the epoch."""
    return time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(second))
