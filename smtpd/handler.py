"""smtpd's own behaviour: which senders and recipients it takes, and what it says of itself."""

from __future__ import annotations

from typing import Literal

from pgmta.address import domain_of, parse_mailbox
from pgmta.errors import AddressError
from smtpd import replies
from smtpd.config import SmtpdConfig
from smtpd.policy import Policy
from smtpd.postmaster import Postmaster
from smtpd.transaction import Transaction

_REPEATED = 200  # characters of the client's words in a reply (RFC 5321, section 4.5.3.1.5)


class RelayHandler:
    """Judges the commands of all sessions; each method returns the reply."""

    def __init__(self, config: SmtpdConfig, *, relay: Literal["policy", "hook"] = "policy") -> None:
        self._judges_relay = relay == "policy"
        self._limit = config.limits.recipients
        self._policy = Policy(config.relay)
        self._postmaster = Postmaster(config, self._policy)
        hostname = config.environment.hostname
        keywords = (
            hostname,
            f"SIZE {config.limits.message_size}",
            "8BITMIME",
            "SMTPUTF8",
            "PIPELINING",
            "ENHANCEDSTATUSCODES",
        )
        self.helo = f"250 {hostname}"
        """The reply to HELO."""
        self.ehlo = "\r\n".join(
            f"250{' ' if keyword is keywords[-1] else '-'}{keyword}" for keyword in keywords
        )
        """The reply to EHLO, all its lines."""

    def mail(self, transaction: Transaction, path: str) -> str:
        """Take the reverse-path, without its angle brackets; `envelope.smtp_utf8` is known."""
        envelope = transaction.envelope
        sender = ""
        if path:
            try:
                sender, _ = parse_mailbox(path, utf8=envelope.smtp_utf8)
            except AddressError as error:
                return replies.BAD_SENDER.format(plain(error))
        envelope.mail_from = transaction.sender = sender
        transaction.sender_domain = domain_of(sender)
        return replies.MAIL_OK

    def rcpt(self, transaction: Transaction, client: str, path: str) -> str:
        """Take a recipient, without its angle brackets, if the client may send to it."""
        ours = self._postmaster.find(path) if path[:1] in "pP" else ""
        utf8 = transaction.envelope.smtp_utf8 or bool(ours)
        try:
            mailbox, domain = parse_mailbox(ours or path, utf8=utf8)
        except AddressError as error:
            return replies.BAD_ADDRESS.format(plain(error))
        if not (ours or not self._judges_relay or self._policy.accepts(client, mailbox, domain)):
            return replies.RELAY_DENIED
        hold = bool(ours) and self._postmaster.held
        if transaction.add(mailbox, domain, self._limit, hold=hold):
            return replies.RCPT_OK
        return replies.TOO_MANY_RECIPIENTS


def plain(value: object) -> str:
    """Return what a reply may repeat of the client's words: printable ASCII."""
    text = str(value)
    text = text if len(text) <= _REPEATED else f"{text[:_REPEATED]}..."
    return "".join(char if " " <= char <= "~" else "?" for char in text)
