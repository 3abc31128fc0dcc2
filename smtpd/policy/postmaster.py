"""Mail for the postmaster of this host, which every client may send (RFC 5321, section 4.5.1)."""

from __future__ import annotations

from pgmta.errors import AddressError
from pgmta.mail.address import normalise_domain, unquoted
from smtpd.config import SmtpdConfig
from smtpd.policy.policy import Policy


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

    def find(self, path: str) -> str:
        """Return the recipient if the path means the postmaster of this host, or nothing."""
        local, at, domain = path.rpartition("@")
        plain = f"{unquoted(local)}@{domain}" if at else unquoted(path)
        return self._address if plain.lower() in self._names else ""
