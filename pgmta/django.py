"""Django's mail goes into the queue, in the transaction of the view (docs/programs/django.md).

`EmailBackend` is public. It needs Django 5.2 or newer, and psycopg 3 or psycopg2 under it.
"""

from __future__ import annotations

import email.policy
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields
from difflib import get_close_matches
from email.headerregistry import Address, AddressHeader
from email.message import Message
from hashlib import sha256
from itertools import batched
from typing import Any

import django
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.mail import EmailMessage
from django.core.mail.backends.base import BaseEmailBackend
from django.db import Error, connections, transaction
from django.utils.encoding import punycode

from pgmta.client.own_connection import enqueue_many
from pgmta.compose.submitted_mail import RawMail, SubmittedMail
from pgmta.errors import SubmissionError

SETTING = "PGMTA_DATABASE"
_OPTIONS = [field.name for field in fields(SubmittedMail)]
_FIELD_NAME = re.compile(r"[!-9;-~]+")  # RFC 5322, section 3.6.8
_MAILS_PER_CALL = 500  # their octets are in memory at once
# the database says the same, and names its argument
_NO_DOMAIN = "addr-spec local part with no domain"


class EmailBackend(BaseEmailBackend):
    """Puts the messages of Django into the queue, on a database connection of Django.

    `using` is the alias in DATABASES of the database with the queue. Its default is the setting
    PGMTA_DATABASE, or else "default". With `fail_silently` messages that the database refuses are
    not counted, and raise nothing. Raises ImproperlyConfigured for an unknown alias or setting.
    """

    def __init__(
        self, fail_silently: bool = False, *, using: str | None = None, **others: Any
    ) -> None:
        if django.VERSION < (6, 1):  # newer versions refuse what they don't know
            _refuse_unknown(others)
        super().__init__(**others)
        self.fail_silently = fail_silently
        self.using = using or _setting()
        name, known = "using" if using else SETTING, list(connections)
        if self.using not in known:
            raise ImproperlyConfigured(
                f"{name}: DATABASES has no {self.using!r}{_nearest(self.using, known)}"
            )
        if (vendor := connections[self.using].vendor) != "postgresql":
            raise ImproperlyConfigured(
                f"{name}: the database {self.using!r} is {vendor}, and the queue is in PostgreSQL: "
                "give the alias of that database"
            )

    def send_messages(self, email_messages: Iterable[EmailMessage]) -> int:
        """Queue the messages and return their number; each gets its message id as `pgmta_id`.

        They are in the transaction of the caller, or in a new one. If one is refused, none is
        queued, and each `pgmta_id` is None. Raises SubmissionError for a refused message and
        django.db.Error for the database. Raises ValueError for a bad address, as Django's SMTP
        backend does.
        """
        # a lone message that is refused leaves nothing behind, so it needs no savepoint
        messages = [each for each in email_messages or () if each.recipients()]
        for message in messages:
            message.pgmta_id = None
        alone = len(messages) == 1 and not self.fail_silently
        try:
            with nullcontext() if alone else transaction.atomic(using=self.using):
                ids = [
                    id for group in batched(messages, _MAILS_PER_CALL) for id in self._queue(group)
                ]
        except Error:
            if not self.fail_silently:
                raise
            return 0
        for message, message_id in zip(messages, ids, strict=True):
            message.pgmta_id = message_id
        return len(ids) - ids.count(None)

    def _queue(self, messages: Sequence[EmailMessage]) -> list[int | None]:
        """Queue them by one call; return the message id of each, None for a refused one."""
        mails = [raw_mail(each) for each in messages]
        ids: list[int | None] = []
        for place, result in enumerate(enqueue_many(connections[self.using], mails)):
            error = result.error
            if error and not (self.fail_silently and isinstance(error, SubmissionError)):
                error.add_note(f"subject: {messages[place].subject!s:.100}")
                raise error
            ids.append(result.id)
        return ids


def raw_mail(message: EmailMessage) -> RawMail:
    """Return a message as octets, with the envelope of Django's SMTP backend.

    Its attribute `pgmta` has the options of the mail by name. Raises ValueError for a bad address
    or name of a header field, and SubmissionError for an unknown option.
    """
    options = _options(message)
    # checked before Python reads them in the header, whose errors say nothing
    sender, *recipients = [address(each) for each in (message.from_email, *message.recipients())]
    new = django.VERSION >= (6, 0)
    mime = message.message(policy=email.policy.SMTP) if new else message.message()
    for name in mime:  # Django looks at the values only, and a line end makes another field
        if not _FIELD_NAME.fullmatch(name):
            raise ValueError(f"headers: {name!r:.100} is no name of a header field")
    if "key" in options:
        _repeat(mime, {name.lower() for name in message.extra_headers})
    return RawMail(
        sender,
        recipients,
        mime.as_bytes() if new else mime.as_bytes(linesep="\r\n"),
        **options,
    )


def _repeat(mime: Message, given: set[str]) -> None:
    """Give a message the same octets each time it is made: a key stands for these.

    The database adds Date and Message-ID. A boundary is the digest of the parts, which can't have
    it inside.
    """
    for name in {"date", "message-id"} - given:
        del mime[name]
    digest, containers = sha256(), []
    for part in mime.walk():
        if part.is_multipart():
            containers.append(part)
        else:
            text = f"{part.items()}{part.get_payload()}"
            digest.update(text.encode("utf-8", "surrogateescape"))
    for place, part in enumerate(containers):
        if part.get_content_maintype() == "multipart" and part.get_boundary() is None:
            part.set_boundary(f"==={digest.hexdigest()[:48]}.{place}===")


def address(mailbox: object) -> str:
    """Return the address of a mailbox, with the domain in A-labels, as Django's SMTP backend does.

    Raises ValueError for several mailboxes, a local part beyond ASCII or a bad address.
    """
    text = str(mailbox)  # Django permits lazy translations
    try:
        parsed = AddressHeader.value_parser(text)
        defects = {str(each) for each in parsed.all_defects} - {_NO_DOMAIN}
    except (AttributeError, LookupError, RecursionError, UnboundLocalError) as error:
        # Python's parser stumbles over some texts, such as b@[x
        raise ValueError(f"Invalid address {text!r:.300}: it is malformed") from error
    if not defects and len(parsed.all_mailboxes) != 1:
        defects = {"must be a single address"}
    if defects:
        raise ValueError(f"Invalid address {text!r}: {'; '.join(sorted(defects))}")
    [found] = parsed.all_mailboxes
    if not found.domain or found.domain.isascii():
        return str(found.addr_spec)
    return str(Address(username=found.local_part, domain=punycode(found.domain)))


def _options(message: EmailMessage) -> dict[str, Any]:
    given = getattr(message, "pgmta", {})
    if not isinstance(given, Mapping):
        raise TypeError("message.pgmta: give a dictionary of options by name")
    for name in given:
        if name not in _OPTIONS:
            hint = f"There are {', '.join(_OPTIONS)}{_nearest(name, _OPTIONS)}"
            raise SubmissionError(str(name), "message.pgmta has no such option", hint=hint)
    return dict(given)


def _setting() -> str:
    """Return the alias that the settings have. Raises ImproperlyConfigured for a typo in them."""
    for name in dir(settings):
        if name.startswith("PGMTA_") and name != SETTING:
            raise ImproperlyConfigured(f"{name}: pgmta has no such setting; it has {SETTING} alone")
    return str(getattr(settings, SETTING, "default"))


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    """Refuse options of other backends. Django gives username and password as None."""
    for name, value in options.items():
        if name not in ("username", "password") or value is not None:
            raise TypeError(f"{name}: the backend has no such option; it has using, fail_silently")


def _nearest(name: object, known: list[str]) -> str:
    near = get_close_matches(str(name), known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""
