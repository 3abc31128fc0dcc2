"""Relay rules, the postmaster, and the replies to MAIL and RCPT (pure)."""

from __future__ import annotations

from typing import Literal

from pgmta.accounts.networks import Networks
from pgmta.errors import AddressError
from pgmta.mail.address import domain_of, normalise_domain, parse_mailbox, unquoted
from pgmta.selection import Term
from smtpd.config import Relay, SmtpdConfig
from smtpd.protocol import replies
from smtpd.protocol.transaction import Transaction
from smtpd.recipients.directory import Directory
from smtpd.recipients.recipient_verdict import Verdict

_ROUTING_CHARACTERS = frozenset("%!@")
_REFUSALS = {
    None: replies.LOOK_UP,
    Verdict.UNKNOWN: replies.NO_SUCH_RECIPIENT,
    Verdict.UNSURE: replies.UNVERIFIED,
}
_MAX_REPEATED_CHARACTERS = 200  # of the client's text in a reply (RFC 5321, section 4.5.3.1.5)


class Policy:
    """Relay rules of smtpd.yaml."""

    def __init__(self, relay: Relay) -> None:
        self._domains = Term.of("domain", relay.domains)
        self.trusted = Networks(relay.networks).contains

    def admits(self, mailbox: str, domain: str) -> bool:
        """Return whether any client may send to the mailbox, whose normalised domain is given.

        A stranger may not name a second destination inside the local part (`user%other@ours`,
        `other!user@ours`, `"user@other"@ours`): a next hop that trusts this relay might follow it
        (RFC 5321, section 3.6.1 and appendix C).
        """
        return self.serves(domain) and _ROUTING_CHARACTERS.isdisjoint(mailbox.rpartition("@")[0])

    def serves(self, domain: str) -> bool:
        """Return whether a normalised domain is one of `relay.domains`."""
        return self._domains.fits(domain)


class Postmaster:
    """Where mail for `<postmaster>` and `<postmaster@this host>` goes.

    `held` says that smtpd.yaml names no address: the row goes on hold for an operator. It is
    not sent to the MX of this host, which may be this host.
    """

    def __init__(self, config: SmtpdConfig, policy: Policy) -> None:
        host = config.environment.hostname
        try:
            served = policy.serves(normalise_domain(host))
        except AddressError:
            served = False
        self._names = {"postmaster", f"postmaster@{host}".lower()}
        self._address = config.postmaster or f"postmaster@{host}"
        self.held = not (config.postmaster or served)

    def recipient_of(self, path: str) -> str:
        """Return the recipient if the path means the postmaster of this host, or nothing."""
        local, at, domain = path.rpartition("@")
        plain = f"{unquoted(local)}@{domain}" if at else unquoted(path)
        return self._address if plain.lower() in self._names else ""


class RelayHandler:
    """Judges the commands of all sessions; each method returns the reply."""

    def __init__(self, config: SmtpdConfig, *, relay: Literal["policy", "hook"] = "policy") -> None:
        self._judges_relay = relay == "policy"
        self.limit = config.limits.recipients
        """Recipients of a message at most."""
        self._policy = Policy(config.relay)
        self._postmaster = Postmaster(config, self._policy)
        self.knows = self._policy.trusted
        """Returns whether the address of a client is in `relay.networks`."""

    def mail(self, transaction: Transaction, path: str) -> str:
        """Take the reverse-path, without its angle brackets; `envelope.smtp_utf8` is known."""
        envelope = transaction.envelope
        sender = ""
        if path:
            try:
                sender, _ = parse_mailbox(path, utf8=envelope.smtp_utf8)
            except AddressError as error:
                return replies.BAD_SENDER.format(plain(error))
        envelope.mail_from = sender
        transaction.set_sender(sender, domain_of(sender))
        return replies.MAIL_OK

    def rcpt(self, transaction: Transaction, path: str, directory: Directory | None = None) -> str:
        """Take a recipient, without its angle brackets, if the client may send to it.

        A `directory` has to know the recipient. LOOK_UP says that it has to be asked first.
        """
        ours = self._postmaster.recipient_of(path) if path[:1] in 'pP"' else ""
        utf8 = transaction.envelope.smtp_utf8 or bool(ours)
        try:
            mailbox, domain = parse_mailbox(ours or path, utf8=utf8)
        except AddressError as error:
            return replies.BAD_ADDRESS.format(plain(error))
        if not (
            ours
            or not self._judges_relay
            or transaction.trusted
            or self._policy.admits(mailbox, domain)
        ):
            return replies.RELAY_DENIED
        if directory and not ours and self._judges_relay:
            if len(transaction.recipients) >= self.limit:
                return replies.TOO_MANY_RECIPIENTS
            verdict = directory.verdict(mailbox, domain)
            if verdict is not Verdict.KNOWN:
                return _REFUSALS[verdict]
        hold = bool(ours) and self._postmaster.held
        if transaction.add_recipient(mailbox, domain, self.limit, hold=hold):
            return replies.RCPT_OK
        return replies.TOO_MANY_RECIPIENTS

    def admits(self, transaction: Transaction, path: str, mailbox: str) -> bool:
        """Return whether the section `relay` lets the client send to the mailbox of a path.

        It decides about a recipient of which no hook has said anything.
        """
        return (
            transaction.trusted
            or self._policy.admits(mailbox, domain_of(mailbox))
            or bool(self._postmaster.recipient_of(path))
        )


def plain(value: object) -> str:
    """Return what a reply may repeat of the client's words: printable ASCII."""
    text = str(value)
    text = (
        text if len(text) <= _MAX_REPEATED_CHARACTERS else f"{text[:_MAX_REPEATED_CHARACTERS]}..."
    )
    return "".join(char if " " <= char <= "~" else "?" for char in text)
