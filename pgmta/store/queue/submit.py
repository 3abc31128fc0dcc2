"""Mail from a program, without SMTP: many messages in one call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import cache
from typing import Any

import psycopg

from pgmta.compose.submitted_mail import Mail, TemplateMail
from pgmta.errors import SubmissionError
from pgmta.mail.address import parse_mailbox
from pgmta.mail.header import completed, header_block, message_id_header, tls_optional
from pgmta.mail.metadata import KEY
from pgmta.mail.newlines import check
from pgmta.model import CHUNK_SIZE, PART_SIZE, NewMessage, Options
from pgmta.postgres.link import Link
from pgmta.postgres.notify import NOTIFY
from pgmta.store.queries import Statement, queries
from pgmta.store.queue.enqueue import SESSION, Enqueue, chunk_count

_SQL = queries("submit")
_GROUP = 1000  # messages a commit, at most
_OCTETS = 16 << 20  # of bodies a commit, about
_TOGETHER = 100  # composed mails a commit, at most
_LONGEST = timedelta(days=3652)  # a send_at further ahead is a slip, as for submit() of SQL


@dataclass(frozen=True, slots=True)
class RawMail:
    """A message as octets: envelope, and content with CRLF at the line ends (RFC 5322).

    The header gets Date and Message-ID if they are missing. `on_failed` says what becomes of the
    message after a final failure: hold, remove or bounce. It is not sent before `send_at`, and not
    after `deadline`. Both are times with their zone.
    """

    sender: str
    recipients: Sequence[str]
    content: bytes
    on_failed: str = "hold"
    send_at: datetime | None = None
    deadline: datetime | None = None


class Submission:
    """Puts mail into the queue over some connections at once.

    `hostname` goes into Received and an added Message-ID.
    """

    def __init__(self, uri: str, hostname: str, connections: int = 2) -> None:
        self._hostname = hostname
        self._links = [Link(uri, f"submit {n}", SESSION) for n in range(connections)]
        # content is durable with the commit of its message, which comes after it
        self._chunk_link = Link(uri, "submit chunks", {"synchronous_commit": "off"})

    async def submit(
        self,
        mails: Sequence[RawMail | Mail | TemplateMail],
        stored: Callable[[list[int]], None] = lambda ids: None,
    ) -> list[int]:
        """Store all mails and return their message ids in order; all of them are durable then.

        They go in groups, and each group is one commit. `stored` gets the ids of each committed
        group. After an error these messages are in the queue. No others are, unless a connection
        broke in their commit. Raises AddressError or ValueError before it stores a message.
        Raises SubmissionError if the database refuses an argument of composed mail.
        Raises StoreUnavailable if PostgreSQL stays away, psycopg.Error if it refuses a message.
        """
        raw = [mail for mail in mails if isinstance(mail, RawMail)]
        made = [mail for mail in mails if not isinstance(mail, RawMail)]
        arguments = [mail.arguments() for mail in made]
        of_raw = iter(await self._store_raw(raw, stored) if raw else [])
        of_made = iter(await self._store_composed(made, arguments, stored))
        if not all(mail.send_at for mail in mails):
            await self._links[0].run(NOTIFY)
        return [next(of_raw if isinstance(mail, RawMail) else of_made) for mail in mails]

    async def _store_composed(
        self,
        mails: Sequence[Mail | TemplateMail],
        arguments: Sequence[dict[str, Any]],
        stored: Callable[[list[int]], None],
    ) -> list[int]:
        """Store mail that the functions of the database take."""
        ids: list[int] = []
        for start in range(0, len(mails), _TOGETHER):
            together = slice(start, start + _TOGETHER)
            group = [
                (statements()[mail.STATEMENT], {**given, "wake": False})
                for mail, given in zip(mails[together], arguments[together], strict=True)
            ]
            try:
                answers = await self._links[0].run_together(group)
            except psycopg.Error as error:
                raise refused(error) from error
            ids += [int(rows[0][0]) for rows in answers]
            stored(ids[start:])
        return ids

    async def _store_raw(
        self, mails: Sequence[RawMail], stored: Callable[[list[int]], None]
    ) -> list[int]:
        parsed = [_parse(mail) for mail in mails]
        stores = [Enqueue(link) for link in self._links]
        ids: list[int] = []
        while len(ids) < len(mails):
            ids += await stores[0].block()
        now = format_datetime(datetime.now(UTC))
        messages = [
            self._message(number, mail, recipients, now)
            for number, mail, recipients in zip(ids, mails, parsed, strict=False)
        ]
        groups = _groups(messages)
        chunk_store = Enqueue(self._chunk_link)

        async def write(store: Enqueue) -> None:
            try:
                for group in groups:  # shared: the next group goes to a free writer
                    await _split(chunk_store, group)
                    await store.commit(group)
                    stored([message.id for message in group])
            finally:
                groups.close()  # after a failure no writer begins another one

        for failure in await asyncio.gather(*map(write, stores), return_exceptions=True):
            if failure:
                raise failure
        return ids[: len(mails)]

    def _message(
        self, number: int, mail: RawMail, recipients: list[tuple[str, str]], now: str
    ) -> NewMessage:
        addresses = (mail.sender, *mail.recipients)
        header = header_block(mail.content, len(mail.content))
        content = completed(header, mail.content[len(header) :], self._hostname)
        return NewMessage(
            id=number,
            sender=mail.sender,
            recipients=recipients,
            size=len(content),
            trace=f"Received: by {self._hostname} (pgmta) id {number};\r\n\t{now}\r\n",
            body=content,
            utf8=not all(address.isascii() for address in addresses),
            message_id_header=message_id_header(content),
            options=_options(mail, tls_optional=tls_optional(header)),
            metadata=_metadata(mail),
            on_failed=mail.on_failed,
            origin="sql",
        )

    async def close(self) -> None:
        """End the connections."""
        for link in (*self._links, self._chunk_link):
            await link.close()


@cache
def statements() -> dict[str, Statement]:
    """Return the statements that submit composed mail, by `STATEMENT` of its class."""
    options = _SQL["options"]
    return {
        Mail.STATEMENT: _SQL["submit_mail"].fill(options=options),
        TemplateMail.STATEMENT: _SQL["submit_template"].fill(options=options),
    }


def refused(error: psycopg.Error) -> psycopg.Error | SubmissionError:
    """Return the error of an argument that the database refuses, or the same error."""
    if not error.diag.column_name:
        return error
    said = (error.diag.message_primary, error.diag.message_detail, error.diag.message_hint)
    return SubmissionError(". ".join(text.rstrip(".") for text in said if text))


def _parse(mail: RawMail) -> list[tuple[str, str]]:
    if mail.sender:
        parse_mailbox(mail.sender, utf8=True)
    if not mail.recipients:
        raise ValueError("a message needs a recipient")
    if mail.on_failed not in ("hold", "remove", "bounce"):
        raise ValueError(f"on_failed is hold, remove or bounce, and not {mail.on_failed!r}")
    _check_times(mail)
    if problem := check(mail.content, "reject"):
        raise ValueError(f"lines of the content must end with CRLF: {problem}")
    return [parse_mailbox(recipient, utf8=True) for recipient in mail.recipients]


def _check_times(mail: RawMail) -> None:
    for name, time in (("send_at", mail.send_at), ("deadline", mail.deadline)):
        if time and time.tzinfo is None:
            raise ValueError(f"{name} needs a time zone, such as datetime.now(UTC) has it")
    if mail.send_at and mail.send_at > datetime.now(UTC) + _LONGEST:
        raise ValueError(f"send_at is over 10 years ahead: {mail.send_at}")
    if mail.send_at and mail.deadline and mail.deadline <= mail.send_at:
        raise ValueError(f"deadline is not after send_at: {mail.deadline}")


def _options(mail: RawMail, *, tls_optional: bool) -> Options | None:
    if not (tls_optional or mail.send_at):
        return None
    return Options(tls_optional=tls_optional, send_at=mail.send_at)


def _metadata(mail: RawMail) -> list[str]:
    if not mail.deadline:
        return []
    deadline = mail.deadline.astimezone(UTC).replace(tzinfo=None).isoformat()
    return [json.dumps({KEY: f"{deadline}Z"})] * len(mail.recipients)


def _groups(messages: list[NewMessage]) -> Generator[list[NewMessage]]:
    group: list[NewMessage] = []
    octets = 0
    for message in messages:
        if group and (len(group) == _GROUP or octets + message.size > _OCTETS):
            yield group
            group, octets = [], 0
        group.append(message)
        octets += message.size
    if group:
        yield group


async def _split(store: Enqueue, group: list[NewMessage]) -> None:
    """Store content that is too large for a message row in chunks, ahead of the messages."""
    parts: list[tuple[int, int, bytes]] = []
    octets = 0
    for message in group:
        if message.size <= CHUNK_SIZE:
            continue
        for start in range(0, message.size, PART_SIZE):
            part = message.body[start : start + PART_SIZE]
            if octets + len(part) > PART_SIZE:
                await store.chunks(parts)
                parts, octets = [], 0
            parts.append((message.id, message.chunks, part))
            octets += len(part)
            message.chunks += chunk_count(len(part))
        message.body = b""
    if parts:
        await store.chunks(parts)
