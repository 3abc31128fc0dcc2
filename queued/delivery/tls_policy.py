"""How strong the TLS with a host has to be (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TlsMode(StrEnum):
    """The least that a session needs before mail may be sent over it."""

    NONE = "none"  # no TLS
    OPPORTUNISTIC = "opportunistic"  # TLS if the host offers it (RFC 7435)
    ENCRYPT = "encrypt"  # TLS with any certificate
    VERIFY = "verify"  # a certificate of a trusted CA with the host's name
    DANE = "dane"  # a certificate that TLSA records name (RFC 7672)
    BEST = "best"  # the strongest that the domain promises


@dataclass(frozen=True, slots=True)
class HostPolicy:
    """The TLS policy of one host.

    `names` are the names of which a certificate needs one. `tlsa` has usable TLSA records. `source`
    says who asked for it: 'route', 'dane', 'sts' or 'default'. `evidence` is for operators.
    """

    mode: TlsMode
    names: tuple[str, ...] = ()
    tlsa: tuple[tuple[int, int, int, bytes], ...] = ()
    source: str = "default"
    evidence: str = ""
