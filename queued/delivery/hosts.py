"""The hosts of a destination, in the order in which they are tried (RFC 5321, section 5.1)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Host:
    """A host that may take mail.

    `secure` says that validated DNS answers led to its name: DANE needs that (RFC 7672, section
    2.2.1). `listed` says that a route names the host, so it may be in any network.
    """

    name: str
    port: int
    secure: bool = False
    listed: bool = False
