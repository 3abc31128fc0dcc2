"""The host that queued runs on: mail must not go round through itself (RFC 5321, section 5.1)."""

from __future__ import annotations

import socket

from queued.delivery.dns.forbidden import Address, embedded

# Not of any host: if the system binds to these, it binds to every address (ip_nonlocal_bind).
_NOBODYS = ("240.0.0.1", "100::1")


class OwnHost:
    """Knows the name of this host and the addresses of its interfaces."""

    def __init__(self, hostname: str) -> None:
        self._hostname = hostname.rstrip(".").lower()
        self._binds_all = any(_binds(address) for address in _NOBODYS)

    def has_name(self, name: str) -> bool:
        """Return whether a name, in lower case, is that of this host."""
        return name == self._hostname

    def has_address(self, address: Address) -> bool:
        """Return whether an interface of this host has the address, or the IPv4 address in it.

        Loopback is left out: `delivery.forbidden` has it, and tests may allow it.
        """
        return any(
            not (each.is_loopback or each.is_unspecified or each.is_multicast)
            and self._is_local(str(each))
            for each in embedded(address)
        )

    def _is_local(self, address: str) -> bool:
        return _reaches_itself(address) if self._binds_all else _binds(address)


def _socket(address: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)


def _binds(address: str) -> bool:
    """Return whether a socket can have the address; nothing is sent."""
    try:
        with _socket(address) as sock:
            sock.bind((address, 0))
    except OSError:
        return False
    return True


def _reaches_itself(address: str) -> bool:
    """Return whether datagrams to the address would come from it; nothing is sent.

    It misses further addresses of an interface in the same network.
    """
    try:
        with _socket(address) as sock:
            sock.connect((address, 9))
            return bool(sock.getsockname()[0] == address)
    except OSError:
        return False
