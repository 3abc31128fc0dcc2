"""pgmta: an MTA whose queue is a PostgreSQL table.

The names in `__all__` are public, and docs/programs/python.md shows how programs use them.
Each is imported at its first use, so `import pgmta` loads nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgmta.client.client import Client
    from pgmta.client.own_connection import enqueue, enqueue_many
    from pgmta.client.proof import prove
    from pgmta.client.results import RecipientStatus, SendResult
    from pgmta.client.sync_client import SyncClient
    from pgmta.compose.submitted_mail import (
        Attachment,
        Mail,
        RawMail,
        SubmittedMail,
        TemplateMail,
    )
    from pgmta.errors import (
        AddressError,
        LoginRefused,
        NotBegun,
        PgmtaError,
        SchemaMismatch,
        StoreUnavailable,
        SubmissionError,
        Undecided,
    )
    from pgmta.mail.address import parse_mailbox
    from pgmta.store.changes.sql_interface import MessageId, SuppressedRecipient

    __version__: str

__all__ = [
    "AddressError",
    "Attachment",
    "Client",
    "LoginRefused",
    "Mail",
    "MessageId",
    "NotBegun",
    "PgmtaError",
    "RawMail",
    "RecipientStatus",
    "SchemaMismatch",
    "SendResult",
    "StoreUnavailable",
    "SubmissionError",
    "SubmittedMail",
    "SuppressedRecipient",
    "SyncClient",
    "TemplateMail",
    "Undecided",
    "__version__",
    "enqueue",
    "enqueue_many",
    "parse_mailbox",
    "prove",
]

_MODULES = {
    "AddressError": "pgmta.errors",
    "Attachment": "pgmta.compose.submitted_mail",
    "Client": "pgmta.client.client",
    "LoginRefused": "pgmta.errors",
    "Mail": "pgmta.compose.submitted_mail",
    "MessageId": "pgmta.store.changes.sql_interface",
    "NotBegun": "pgmta.errors",
    "PgmtaError": "pgmta.errors",
    "RawMail": "pgmta.compose.submitted_mail",
    "RecipientStatus": "pgmta.client.results",
    "SchemaMismatch": "pgmta.errors",
    "SendResult": "pgmta.client.results",
    "StoreUnavailable": "pgmta.errors",
    "SubmissionError": "pgmta.errors",
    "SubmittedMail": "pgmta.compose.submitted_mail",
    "SuppressedRecipient": "pgmta.store.changes.sql_interface",
    "SyncClient": "pgmta.client.sync_client",
    "TemplateMail": "pgmta.compose.submitted_mail",
    "Undecided": "pgmta.errors",
    "enqueue": "pgmta.client.own_connection",
    "enqueue_many": "pgmta.client.own_connection",
    "parse_mailbox": "pgmta.mail.address",
    "prove": "pgmta.client.proof",
}


if not TYPE_CHECKING:  # with this function in sight, mypy would accept every name

    def __getattr__(name: str) -> object:
        """Import a public name at its first use (PEP 562). Raises AttributeError."""
        if name == "__version__":
            value = import_module("importlib.metadata").version("pgmta")
        elif name in _MODULES:
            value = getattr(import_module(_MODULES[name]), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Return the names that are there, and the public ones that are not imported yet."""
    return sorted({*globals(), *__all__})
