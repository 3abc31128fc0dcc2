"""The name servers that queued asks: those of the configuration, or of /etc/resolv.conf."""

from __future__ import annotations

import ipaddress
import os
import time

import dns.asyncresolver
import dns.flags
import dns.nameserver
import dns.resolver

from queued.config import Dns

_FILE = "/etc/resolv.conf"
_PAYLOAD = 1232  # octets of a datagram, at most: larger ones are fragmented on their way
_TRY = 2.0  # seconds for one name server before the next one is asked
_LOOK = 5.0  # seconds between two looks at the file


class NameServers:
    """Name servers and how they are asked.

    `trusted` says that their AD bit counts: they are on loopback, or the configuration says so (RFC
    7672, section 2.2). Only these are asked for it.
    """

    def __init__(self, config: Dns) -> None:
        self._file = None if config.servers else _FILE
        self._looked = time.monotonic()
        self._stamp = self._read_stamp()
        self.resolver = _resolver(config)
        self.trusted = config.trust_ad or _on_loopback(self.resolver)
        if self.trusted:
            self.resolver.flags = dns.flags.RD | dns.flags.AD
        self.resolver.use_edns(0, dns.flags.DO if self.trusted else 0, _PAYLOAD)

    def changed(self) -> bool:
        """Return whether the file has changed since it was read; it is looked at every 5 s."""
        now = time.monotonic()
        if self._file is None or now < self._looked + _LOOK:
            return False
        self._looked = now
        return self._stamp != self._read_stamp()

    def _read_stamp(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._file) if self._file else None
        except OSError:
            return None
        return (found.st_ino, found.st_mtime_ns, found.st_size) if found else None


def _resolver(config: Dns) -> dns.asyncresolver.Resolver:
    try:
        resolver = dns.asyncresolver.Resolver(_FILE, configure=not config.servers)
    except dns.resolver.NoResolverConfiguration:
        resolver = dns.asyncresolver.Resolver(configure=False)
    if config.servers:
        resolver.nameservers = [
            dns.nameserver.Do53Nameserver(server.host, server.port) for server in config.servers
        ]
    resolver.timeout = min(_TRY, config.timeout)
    resolver.lifetime = config.timeout
    return resolver


def _on_loopback(resolver: dns.asyncresolver.Resolver) -> bool:
    """Return whether all name servers are on this host, so that their answers cross no network."""
    servers = [
        server.answer_nameserver() if isinstance(server, dns.nameserver.Nameserver) else server
        for server in resolver.nameservers
    ]
    try:
        return bool(servers) and all(ipaddress.ip_address(each).is_loopback for each in servers)
    except ValueError:  # a URL
        return False
