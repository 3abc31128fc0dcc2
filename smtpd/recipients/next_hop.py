"""A next hop as callouts use it: RCPT without a message (RFC 5321, section 3.3)."""

from __future__ import annotations

import re

from aiosmtplib import SMTP, SMTPException

from pgmta.config.types import HostPort
from smtpd.recipients.verdict import Verdict

_ENHANCED = re.compile(r"5\.(\d{1,3})\.(\d{1,3})(?: |$)")
_UNKNOWN_CODES = (550, 551, 553)  # of replies without an enhanced code

CallError = (SMTPException, OSError, UnicodeError, TimeoutError)
"""Errors of a callout: there was no answer about the recipient."""


class NextHop:
    """One connection to a next hop. Each method raises one of CallError.

    TLS is opportunistic and checks no certificate, because the session has no secret.
    """

    def __init__(self, host: HostPort, hostname: str, time: float) -> None:
        self._client = SMTP(
            hostname=host.host,
            port=host.port,
            local_hostname=hostname,
            timeout=time,
            validate_certs=False,
        )

    async def connect(self) -> None:
        """Connect, with EHLO and STARTTLS."""
        await self._client.connect()

    async def ask(self, address: str) -> Verdict:
        """Return the verdict about a recipient; MAIL is from the null reverse-path."""
        client = self._client
        options = [] if address.isascii() else [b"SMTPUTF8"]
        code, text = await client.execute_command(b"MAIL", b"FROM:<>", *options)
        if code == 250:
            code, text = await client.execute_command(b"RCPT", f"TO:<{address}>".encode())
            verdict = verdict_of(code, text)
            code, text = await client.execute_command(b"RSET")
        else:
            verdict = Verdict.UNSURE
        if code == 421:
            self.close()
        return verdict

    @property
    def usable(self) -> bool:
        """Whether another recipient may be asked for."""
        return self._client.is_connected

    def close(self) -> None:
        """Close at once."""
        self._client.close()


def verdict_of(code: int, text: str) -> Verdict:
    """Return what the reply to RCPT says about the recipient.

    A reply about policy, size, or a full mailbox is no reply about who the recipient is.
    """
    if 200 <= code < 300:
        return Verdict.KNOWN
    if not 500 <= code < 600:
        return Verdict.UNSURE
    enhanced = _ENHANCED.match(text)
    if enhanced:
        unknown = enhanced[1] == "1" or enhanced.groups() == ("2", "1")
    else:
        unknown = code in _UNKNOWN_CODES
    return Verdict.UNKNOWN if unknown else Verdict.UNSURE
