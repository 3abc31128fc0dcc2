"""One mail transaction of a session: what MAIL and RCPT say (RFC 5321, section 3.3)."""

from __future__ import annotations

from aiosmtpd.smtp import Envelope


class Transaction:
    """An aiosmtpd envelope, and what smtpd has found out about its addresses."""

    __slots__ = ("envelope", "held", "recipients", "sender", "sender_domain", "trace")

    def __init__(self) -> None:
        self.envelope = Envelope()
        self.sender = ""
        """Reverse-path as it was judged; empty for the null reverse-path."""
        self.sender_domain = ""
        """Normalised domain of the reverse-path."""
        self.recipients: dict[tuple[str, str], str] = {}
        """Mailboxes by local part and normalised domain, each recipient once."""
        self.held: list[tuple[str, str]] | None = None
        """Keys of recipients whose rows go on hold at once."""
        self.trace = ""
        """The trace field up to the message id."""

    def add(self, mailbox: str, domain: str, limit: int, *, hold: bool) -> bool:
        """Add a recipient, each once; return False if there would be more than `limit`."""
        key = (mailbox.rpartition("@")[0], domain)
        if key in self.recipients:
            return True
        if len(self.recipients) >= limit:
            return False
        if hold:
            self.held = [*(self.held or ()), key]
        self.recipients[key] = mailbox
        self.envelope.rcpt_tos.append(mailbox)
        return True
