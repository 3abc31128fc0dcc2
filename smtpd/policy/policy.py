"""The relay rules: which client may send to which recipient (pure)."""

from __future__ import annotations

from pgmta.accounts.networks import Networks
from pgmta.selection import Term
from smtpd.config import Relay

_ROUTED = frozenset("%!@")


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
        return self.serves(domain) and _ROUTED.isdisjoint(mailbox.rpartition("@")[0])

    def serves(self, domain: str) -> bool:
        """Return whether a normalised domain is one of `relay.domains`."""
        return self._domains.fits(domain)
