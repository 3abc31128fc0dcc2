"""A name server on a loopback port, over UDP and TCP, with the answers of a zone."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset


@dataclass
class Says:
    """Records with options of the answer, `records` as in a zone file."""

    records: list[str] = field(default_factory=list)
    ttl: int = 60
    ad: bool = False
    delay: float = 0.0
    truncated: bool = False
    """Over UDP only."""


Answer = Says | list[str] | dns.rcode.Rcode | None
"""Records, an error, or None for no answer at all; a name that is not in the zone is NXDOMAIN."""

Zone = Mapping[str, Mapping[str, Answer]]


class NameServer:
    """Answers from a zone, and counts what it was asked."""

    def __init__(self, zone: Zone, address: str = "127.0.0.1") -> None:
        self.zone = {name: dict(kinds) for name, kinds in zone.items()}
        self.asked: Counter[str] = Counter()
        self.queries: list[dns.message.Message] = []
        self.soa = ". . 1 1 1 1 120"
        """The SOA record in answers for names not in the zone; its minimum is 120 s."""
        self.tcp = 0
        """Queries over TCP."""
        self._loop = asyncio.new_event_loop()
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        while True:  # until one port is free for both
            self._tcp = socket.create_server((address, 0), backlog=100)
            self.port = self._tcp.getsockname()[1]
            try:
                self._udp.bind((address, self.port))
                break
            except OSError:
                self._tcp.close()
        self.where = f"{address}:{self.port}"
        self._thread = threading.Thread(target=self._run)
        self._ready = threading.Event()
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        self._loop.run_until_complete(self._open())
        self._ready.set()
        self._loop.run_forever()
        self._loop.close()

    async def _open(self) -> None:
        server = self

        class Udp(asyncio.DatagramProtocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.DatagramTransport)
                self.transport = transport

            def datagram_received(self, data: bytes, peer: tuple[str, int]) -> None:
                server._take(data, False, lambda wire: self.transport.sendto(wire, peer))

        self._transport, _ = await self._loop.create_datagram_endpoint(Udp, sock=self._udp)
        self._listener = await asyncio.start_server(self._stream, sock=self._tcp)

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            (length,) = struct.unpack("!H", await reader.readexactly(2))
            data = await reader.readexactly(length)
            self.tcp += 1
            said: asyncio.Future[bytes] = self._loop.create_future()
            self._take(data, True, said.set_result)
            wire = await said
            writer.write(struct.pack("!H", len(wire)) + wire)
            await writer.drain()
        finally:
            writer.close()

    def _take(self, data: bytes, tcp: bool, send: object) -> None:
        query = dns.message.from_wire(data)
        self.queries.append(query)
        name = query.question[0].name.to_text(omit_final_dot=True).lower()
        kind = dns.rdatatype.to_text(query.question[0].rdtype)
        self.asked[f"{name} {kind}"] += 1
        wire, delay = self._answer(query, name, kind, tcp)
        if wire is not None:
            self._loop.call_later(delay, send, wire)  # type: ignore[arg-type]

    def _answer(
        self, query: dns.message.Message, name: str, kind: str, tcp: bool
    ) -> tuple[bytes | None, float]:
        response = dns.message.make_response(query)
        response.flags |= dns.flags.RA
        owner = query.question[0].name
        records = self.zone.get(name, self.zone.get("*"))
        while records is not None and "CNAME" in records:
            said = records["CNAME"]
            (target,) = said.records if isinstance(said, Says) else said or []  # type: ignore[misc]
            response.answer.append(dns.rrset.from_text(owner, 60, "IN", "CNAME", target))
            owner = dns.name.from_text(target)
            records = self.zone.get(target.rstrip(".").lower())
        if records is None:
            response.set_rcode(dns.rcode.NXDOMAIN)
            if self.soa:
                response.authority.append(dns.rrset.from_text(".", 900, "IN", "SOA", self.soa))
            return response.to_wire(), 0.0
        found = records.get(kind, [])
        if found is None:
            return None, 0.0
        if isinstance(found, dns.rcode.Rcode):
            response.set_rcode(found)
            return response.to_wire(), 0.0
        says = found if isinstance(found, Says) else Says(found)
        if says.records:
            response.answer.append(dns.rrset.from_text(owner, says.ttl, "IN", kind, *says.records))
        if says.ad:
            response.flags |= dns.flags.AD
        if says.truncated and not tcp:
            response.answer.clear()
            response.flags |= dns.flags.TC
        return response.to_wire(max_size=65535), says.delay

    def stop(self) -> None:
        def end() -> None:
            self._transport.close()
            self._listener.close()
            self._loop.call_soon(self._loop.stop)

        self._loop.call_soon_threadsafe(end)
        self._thread.join()


@contextmanager
def serving_names(zone: Zone) -> Iterator[NameServer]:
    """Yield a name server with the zone."""
    server = NameServer(zone)
    try:
        yield server
    finally:
        server.stop()
