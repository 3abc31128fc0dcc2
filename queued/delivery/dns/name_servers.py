"""The name servers that queued asks: those of the configuration, or of /etc/resolv.conf."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import time
from typing import Any

import dns.asyncresolver
import dns.exception
import dns.flags
import dns.message
import dns.nameserver
import dns.query
import dns.resolver

from pgmta.config.types import is_address
from queued.config import Dns

_RESOLV_CONF = "/etc/resolv.conf"
_MAX_DATAGRAM_OCTETS = 1232  # larger ones are fragmented on their way
_MAX_ANSWER_OCTETS = 16_384  # 64 KB take 0.1 s to read, and one message may need many answers
_SERVER_TIMEOUT_S = 2.0  # before the next name server is asked
_FILE_LOOK_INTERVAL_S = 5.0


class _NameServer(dns.nameserver.Do53Nameserver):
    """A name server of whose answers none is read that is too large."""

    async def async_query(
        self,
        request: dns.message.QueryMessage,
        timeout: float,
        source: str | None,
        source_port: int,
        max_size: bool,
        *args: Any,
        **options: Any,
    ) -> dns.message.Message:
        """Return the answer, over TCP if `max_size`. Raises DNSException, OSError, EOFError."""
        if not max_size:
            return await super().async_query(
                request, timeout, source, source_port, max_size, *args, **options
            )
        try:
            async with asyncio.timeout(timeout):
                wire = await self._over_tcp(request.to_wire(prepend_length=True))
        except TimeoutError:
            raise dns.exception.Timeout(timeout=timeout) from None  # type: ignore[no-untyped-call]
        response = dns.message.from_wire(wire)
        if not request.is_response(response):
            raise dns.query.BadResponse
        return response

    async def _over_tcp(self, question: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(self.address, self.port)
        try:
            writer.write(question)
            octets = int.from_bytes(await reader.readexactly(2))
            if octets > _MAX_ANSWER_OCTETS:
                raise dns.exception.FormError(
                    f"answer of {octets} octets, over {_MAX_ANSWER_OCTETS}"
                )  # type: ignore[no-untyped-call]
            return await reader.readexactly(octets)
        finally:
            writer.transport.abort()


class NameServers:
    """Name servers and how they are asked.

    `trusted` says that their AD bit counts: they are on loopback, or the configuration says so (RFC
    7672, section 2.2). Only these are asked for it.
    """

    def __init__(self, config: Dns) -> None:
        self._file = None if config.servers else _RESOLV_CONF
        self._looked = time.monotonic()
        self._stamp = self._read_stamp()
        self.resolver = _resolver(config)
        self.trusted = config.trust_ad or _on_loopback(self.resolver)
        if self.trusted:
            self.resolver.flags = dns.flags.RD | dns.flags.AD
        self.resolver.use_edns(0, dns.flags.DO if self.trusted else 0, _MAX_DATAGRAM_OCTETS)

    def changed(self) -> bool:
        """Return whether the file has changed since it was read; it is looked at every 5 s."""
        now = time.monotonic()
        if self._file is None or now < self._looked + _FILE_LOOK_INTERVAL_S:
            return False
        self._looked = now
        return self._stamp != self._read_stamp()

    def _read_stamp(self) -> tuple[int, int, int] | None:
        try:
            file = os.stat(self._file) if self._file else None
        except OSError:
            return None
        return (file.st_ino, file.st_mtime_ns, file.st_size) if file else None


def _resolver(config: Dns) -> dns.asyncresolver.Resolver:
    try:
        resolver = dns.asyncresolver.Resolver(_RESOLV_CONF, configure=not config.servers)
    except dns.resolver.NoResolverConfiguration:
        resolver = dns.asyncresolver.Resolver(configure=False)
    if config.servers:
        resolver.nameservers = [_NameServer(server.host, server.port) for server in config.servers]
    else:
        resolver.nameservers = [
            _NameServer(each) if isinstance(each, str) and is_address(each) else each
            for each in resolver.nameservers
        ]
    resolver.timeout = min(_SERVER_TIMEOUT_S, config.timeout)
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
    except ValueError:  # the server is a URL
        return False
