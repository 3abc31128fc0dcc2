"""Values of smtpd.yaml that are checked as text."""

from __future__ import annotations

import ipaddress

from pgmta.address import normalise_domain, parse_mailbox
from pgmta.errors import AddressError


def parse_listen_address(value: str) -> str:
    """Return an IP address to listen on; raises ValueError."""
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise ValueError(f"{value!r} is no IP address to listen on") from None


def parse_domain(value: str) -> str:
    """Return a normalised domain or *.domain; raises ValueError."""
    bare = value.removeprefix("*.")
    try:
        return value[: len(value) - len(bare)] + normalise_domain(bare)
    except AddressError as error:
        raise ValueError(f"expected a domain or *.domain: {error}") from None


def parse_address(value: str) -> str:
    """Return a mailbox; raises ValueError."""
    try:
        return parse_mailbox(value)[0]
    except AddressError as error:
        raise ValueError(f"expected an address: {error}") from None
