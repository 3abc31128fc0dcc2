"""The SMTP side of the sink: it keeps each message, octet for octet, in a Maildir."""

from __future__ import annotations

import mailbox
import re
from contextlib import suppress
from pathlib import Path

from aiosmtpd.smtp import SMTP, Envelope, Session

from pgmta.command import print_line, shorten
from pgmta.mail.text import escaped
from smtpd.sink.header_text import decode_words

MAX_MESSAGE_OCTETS = 100 << 20

_NAMED_RECIPIENTS = 5  # in the line of a message
_MAX_SUBJECT_OCTETS = 4000  # Python's decoder takes a minute for 4 MB
_SUBJECT = re.compile(rb"^Subject:[ \t]*(.*(?:\n[ \t].*)*)$", re.IGNORECASE | re.MULTILINE)


class KeepHandler:
    """Accepts every sender and recipient, and keeps the message.

    Each message is one file under lines Return-Path and Delivered-To. Only the user of the process
    reads them: files have mode 0600, folders 0700.
    """

    def __init__(self, folder: Path) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for path in (folder, *(folder / name for name in ("tmp", "new", "cur"))):
            path.mkdir(mode=0o700, exist_ok=True)
        self._maildir = mailbox.Maildir(folder)

    async def handle_EHLO(
        self, server: SMTP, session: Session, envelope: Envelope, hostname: str, replies: list[str]
    ) -> list[str]:
        """Announce what the sink does beyond aiosmtpd's own list."""
        session.host_name = hostname
        return [*replies[:-1], "250-PIPELINING", "250-ENHANCEDSTATUSCODES", replies[-1]]

    async def handle_MAIL(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        """Note the reverse-path."""
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return "250 2.1.0 Ok"

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        """Note a recipient."""
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 Ok"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        """Keep the message."""
        sender = (envelope.mail_from or "").strip("<>")  # aiosmtpd says <> for the null path
        lines = [f"Return-Path: <{escaped(sender)}>\r\n"]
        lines += [f"Delivered-To: {escaped(recipient)}\r\n" for recipient in envelope.rcpt_tos]
        content = "".join(lines).encode()
        body = envelope.original_content or b""
        name = self._maildir.add(content + body)
        self._tell(sender, envelope.rcpt_tos, body, name)
        return f"250 2.0.0 kept as {name}"

    def _tell(self, sender: str, recipients: list[str], body: bytes, name: str) -> None:
        """Print a line about a message."""
        words = _subject(body)
        named = ", ".join(f"<{each}>" for each in recipients[:_NAMED_RECIPIENTS])
        more = " …" if len(recipients) > _NAMED_RECIPIENTS else ""
        with suppress(OSError):  # without the line the mail is kept all the same
            print_line(f"{'mail':9} <{sender}> to {named}{more}: {shorten(words)} (new/{name})")


def _subject(content: bytes) -> str:
    """Return the subject for a reader, with its encoded words decoded (RFC 2047)."""
    found = _SUBJECT.search(content.partition(b"\r\n\r\n")[0])
    return decode_words(found[1][:_MAX_SUBJECT_OCTETS].decode("utf-8", "replace")) if found else ""


class SinkServer(SMTP):
    """aiosmtpd's server, for lines and commands of any length that queued sends."""

    line_length_limit = MAX_MESSAGE_OCTETS
    command_size_limit = 2048
