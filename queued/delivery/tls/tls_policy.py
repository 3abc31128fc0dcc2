"""How strong the TLS with a host has to be (pure)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

Tlsa = tuple[int, int, int, bytes]
"""A TLSA record: usage, selector, matching type, data (RFC 6698, section 2.1)."""


class TlsMode(StrEnum):
    """The least that a session needs before mail may be sent over it."""

    NONE = "none"  # no TLS
    OPPORTUNISTIC = "opportunistic"  # TLS if the host offers it (RFC 7435)
    ENCRYPT = "encrypt"  # TLS with any certificate
    VERIFY = "verify"  # a certificate of a trusted CA with the host's name
    DANE = "dane"  # a certificate that TLSA records name (RFC 7672)
    BEST = "best"  # the strongest that the domain promises


@dataclass(frozen=True, slots=True)
class TlsDemand:
    """The TLS that a destination asks for.

    A `mode` of None means `delivery.tls.mode`. The promises of the `domain` count. `implicit` is
    TLS from the first octet. A host that gets a `login` has to be authenticated. `requiretls` and
    `optional` are wishes of the sender (RFC 8689).
    """

    mode: TlsMode | None = None
    domain: str = ""
    implicit: bool = False
    login: bool = False
    requiretls: bool = False
    optional: bool = False


REQUIRED_MODES = (TlsMode.ENCRYPT, TlsMode.VERIFY, TlsMode.DANE)
"""Modes in which no mail leaves in plain text."""


@dataclass(frozen=True, slots=True)
class HostPolicy:
    """The TLS policy of one host.

    `names` are the names of which a certificate needs one. `tlsa` has usable TLSA records. `source`
    says who asked for it: 'route', 'dane', 'sts' or 'default'. `evidence` is for operators.
    `testing` marks a policy that only reports: an MTA-STS policy may be so (RFC 8461, section 5.1),
    and each one is for mail with TLS-Required: No. `requiretls` asks the host for REQUIRETLS (RFC
    8689). `report` is the policy as TLSRPT names it: its type, domain
    and text (RFC 8460, section 4.2).
    """

    mode: TlsMode
    names: tuple[str, ...] = ()
    tlsa: tuple[Tlsa, ...] = ()
    source: str = "default"
    evidence: str = ""
    testing: bool = False
    requiretls: bool = False
    report: tuple[str, str, str] = ("no-policy-found", "", "")

    @property
    def required(self) -> bool:
        """Whether no mail may leave in plain text."""
        return self.mode in REQUIRED_MODES and not self.testing

    @property
    def verified(self) -> str:
        """By what a host is authenticated under this policy, as the log of attempts says it."""
        if self.mode is TlsMode.DANE:
            return "dane"
        if self.mode is TlsMode.VERIFY:
            return "sts" if self.source == "sts" else "pkix"
        return "no"

    @property
    def demand(self) -> str:
        """The reason why TLS has to be so, for the end of an error's line; empty without one."""
        if self.requiretls:
            return " (asked for by REQUIRETLS of the message)"
        if (
            not self.required or self.source == "dane"
        ):  # the text of an error of DANE names the policy already
            return ""
        if self.source == "sts":
            return f" (asked for by MTA-STS of {self.report[1]})"
        return f" (asked for by {'the route' if self.source == 'route' else 'delivery.tls'})"

    def weaker(self) -> HostPolicy | None:
        """Return the policy for a new connection after TLS failed; None if there must be none.

        A policy in testing asks for nothing, so TLS without authentication is the next step.
        """
        if self.requiretls or self.required:
            return None
        if self.mode in (TlsMode.VERIFY, TlsMode.DANE):
            return replace(self, mode=TlsMode.OPPORTUNISTIC, tlsa=(), testing=False)
        if self.mode is TlsMode.NONE:
            return None
        return replace(self, mode=TlsMode.NONE, testing=False)
