"""The hosts of the fake Internet: SMTP servers that follow the script of a case."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from tests.internet.case import Case, HostScript
from tests.support.authority import Authority, Certificate
from tests.support.loop_thread import LoopThread
from tests.support.waiting import take_time_async

_END = b"\r\n.\r\n"
DRIP = 1.0
"""Seconds between two octets of a host that drips."""


@dataclass
class Message:
    """A message that a host has taken."""

    sender: str
    recipients: list[str]
    content: bytes
    encrypted: bool
    connection: int


@dataclass
class Record:
    """The connections, commands and messages of a host."""

    kept: list[Message] = field(default_factory=list)
    connections: int = 0
    refused: int = 0  # connections beyond its limit
    transactions: int = 0
    open: int = 0
    commands: list[str] = field(default_factory=list)


class ScriptedHost:
    """One host of a case."""

    def __init__(
        self, case: Case, name: str, authority: Authority, port: int, seen: list[str]
    ) -> None:
        self.script: HostScript = case.hosts[name]
        self.name = name
        self.fqdn = case.fqdn(name)
        self.record = Record()
        self._authority = authority
        self._names = {"wrong": f"other.{case.domain}", "domain": case.domain}
        self._at = ("::1" if self.script.ipv6 else case.address(name), port)
        self._seen = seen
        self._server: asyncio.Server | None = None
        self._full: list[socket.socket] = []
        self._context: ssl.SSLContext | None = None

    async def start(self) -> None:
        """Listen, if the script says so."""
        if self.script.listen == "full":
            self._fill()
        elif self.script.listen == "yes":
            self._server = await asyncio.start_server(
                self._connected, *self._at, limit=1 << 20, backlog=100
            )

    def _fill(self) -> None:
        """Listen with a full queue: the kernel then answers no SYN."""
        family = socket.AF_INET6 if self.script.ipv6 else socket.AF_INET
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(self._at)
        listening.listen(0)
        self._full.append(listening)
        for _ in range(2):
            client = socket.socket(family)
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.connect(self._at)
            self._full.append(client)

    async def stop(self) -> None:
        if self._server:
            self._server.close()
        for sock in self._full:
            sock.close()

    @property
    def certificate(self) -> Certificate:
        """The certificate that the script names: good, wrong, domain, expired or unknown."""
        kind = (self.script.tls or {}).get("certificate", "good")
        if kind in self._names:
            return self._authority.issue([self._names[kind]])
        if kind == "unknown":
            return self._other.issue([self.fqdn])
        return self._authority.issue([self.fqdn], expired=kind == "expired")

    @cached_property
    def _other(self) -> Authority:
        return Authority(self._authority.path.parent / self.fqdn, "a CA without trust")

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of the certificate."""
        if self._context is None:
            self._context = self.certificate.context()
            if version := (self.script.tls or {}).get("maximum"):
                self._context.minimum_version = ssl.TLSVersion.TLSv1
                self._context.maximum_version = ssl.TLSVersion[version]
                self._context.set_ciphers("ALL:@SECLEVEL=0")
        return self._context

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        record = self.record
        record.connections += 1
        self._seen.append(self.name)
        limit = self.script.connections
        refused = limit is not None and record.open >= limit
        record.open += 1
        try:
            if refused:
                record.refused += 1
                writer.write(b"421 4.7.0 Too many connections\r\n")
            else:
                await Dialogue(self, reader, writer, record.connections).run()
        except (EOFError, OSError, ssl.SSLError, asyncio.LimitOverrunError):
            pass  # by the client, or by the script
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        finally:
            record.open -= 1
            writer.close()


class Dialogue:
    """One connection."""

    def __init__(
        self,
        host: ScriptedHost,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        number: int,
    ) -> None:
        self._host = host
        self._script = host.script
        self._reader = reader
        self._writer = writer
        self._number = number
        self._encrypted = False
        self._sender = ""
        self._recipients: list[str] = []
        self._begun = 0

    async def run(self) -> None:
        await self._answer("connect", f"220 {self._host.fqdn} ESMTP")
        while True:
            line = (await self._reader.readuntil(b"\r\n"))[:-2].decode("utf-8", "replace")
            self._host.record.commands.append(line)
            verb = line.partition(" ")[0].upper()
            if verb == "QUIT":
                await self._answer("QUIT", "221 2.0.0 Bye")
                return
            await self._command(verb, line)

    async def _command(self, verb: str, line: str) -> None:
        if verb == ("EHLO" if self._script.lmtp is None else "LHLO"):
            words = [self._host.fqdn, *self._script.extensions]
            if self._script.tls is not None and not self._encrypted:
                words.append("STARTTLS")
            lines = [f"250-{word}" for word in words]
            await self._answer(verb, "\r\n".join([*lines[:-1], f"250 {words[-1]}"]))
        elif verb in ("HELO", "NOOP", "RSET"):
            self._recipients = []
            await self._answer(verb, "250 2.0.0 Ok")
        elif verb == "STARTTLS":
            await self._starttls()
        elif verb == "MAIL":
            await self._mail(line)
        elif verb == "RCPT":
            await self._rcpt(line)
        elif verb == "DATA":
            if not self._recipients:
                await self._say("503 5.5.1 RCPT first")
            elif await self._answer("DATA", "354 Go on", good="354"):
                await self._data()
        else:
            await self._say("500 5.5.2 What?")

    async def _mail(self, line: str) -> None:
        self._begun += 1
        self._host.record.transactions += 1
        limit = self._script.transactions
        if limit is not None and self._begun > limit:
            await self._say("421 4.7.0 Too many messages on this connection")
            raise EOFError
        self._sender, self._recipients = line[line.index("<") + 1 : line.index(">")], []
        await self._answer("MAIL", "250 2.1.0 Ok")

    async def _rcpt(self, line: str) -> None:
        limit = self._script.recipients
        if limit is not None and len(self._recipients) >= limit:
            await self._say(self._script.too_many)
        elif await self._answer("RCPT", "250 2.1.5 Ok"):
            self._recipients.append(line[line.index("<") + 1 : line.index(">")])

    async def _starttls(self) -> None:
        plan = self._script.tls or {}
        if reply := plan.get("reply"):
            await self._say(reply)
            return
        handshake = plan.get("handshake")
        # in one segment, so that the client has both before its handshake
        said = "220 2.0.0 Go on\r\n" + "".join(f"{x}\r\n" for x in plan.get("inject", []))
        self._writer.write(said.encode())
        if handshake == "garbage":
            await self._reader.read(1 << 16)  # ClientHello
            self._writer.write(b"this is no TLS record at all\r\n")
        if handshake == "close":
            raise EOFError
        if handshake:
            await self._reader.read(-1)
            raise EOFError
        # no await since the reply: the handshake cannot have begun before this reads it
        await self._writer.start_tls(self._host.context(), ssl_handshake_timeout=10)
        self._encrypted = True
        self._recipients = []

    async def _data(self) -> None:
        wire = bytearray(b"\r\n")
        if do := self._script.at.get("content"):
            await self._perform(do)
        while (end := wire.find(_END)) < 0:
            data = await self._reader.read(1 << 16)
            if not data:
                raise EOFError
            wire += data
        content = bytes(wire[2 : end + 2]).replace(b"\r\n..", b"\r\n.")
        message = Message(self._sender, self._recipients, content, self._encrypted, self._number)
        self._recipients = []
        if self._script.lmtp is not None:
            await self._answer_each(message, self._script.lmtp)
            return
        if self._script.at.get("end of data", "2").startswith(("2", "drip")):
            self._host.record.kept.append(message)
        await self._answer("end of data", "250 2.0.0 Ok")

    async def _answer_each(self, message: Message, replies: list[str]) -> None:
        """Reply to the dot once for each recipient (RFC 2033, section 4.2)."""
        said = dict(zip(message.recipients, replies, strict=False))
        taken = [r for r in message.recipients if said.get(r, "250").startswith("2")]
        if taken:
            self._host.record.kept.append(replace(message, recipients=taken))
        for recipient in message.recipients:
            await self._perform(said.get(recipient, f"250 2.0.0 <{recipient}> Ok"))

    async def _answer(self, point: str, usual: str, good: str = "2") -> bool:
        """Do as the script says, otherwise reply as usual; return whether the reply is `good`."""
        do = self._script.at.get(point)
        if do == "drip":
            await self._drip(usual)
            return True
        if do is not None:
            await self._perform(do)
            return do.startswith(good)
        await self._say(usual)
        return True

    async def _perform(self, do: str) -> None:
        if do == "hang":
            await self._reader.read(-1)
            raise EOFError
        if do == "close":
            raise EOFError
        for reply in do.split("; then "):
            if reply == "close":
                raise EOFError
            await self._say(reply)

    async def _drip(self, reply: str) -> None:
        for octet in reply.encode() + b"\r\n":
            self._writer.write(bytes([octet]))
            await self._writer.drain()
            await take_time_async(DRIP)

    async def _say(self, reply: str) -> None:
        self._writer.write(reply.encode() + b"\r\n")
        await self._writer.drain()


class Hosts:
    """All hosts, served by one thread."""

    def __init__(self, cases: list[Case], authority: Authority, ports: dict[str, int]) -> None:
        self.seen: dict[str, list[str]] = {case.name: [] for case in cases}
        """Names of hosts by case, one for each connection."""
        self.hosts = {
            case.name: {
                name: ScriptedHost(case, name, authority, ports[case.name], self.seen[case.name])
                for name in case.hosts
            }
            for case in cases
        }
        self._thread = LoopThread()
        self._thread.do(self._start())

    async def _start(self) -> None:
        for case in self.hosts.values():
            for host in case.values():
                await host.start()

    def kept(self, case: str) -> Counter[str]:
        """Return the number of messages that each host of the case has."""
        return Counter({name: len(host.record.kept) for name, host in self.hosts[case].items()})

    def change(self, case: str, name: str, script: HostScript) -> None:
        """Give a host another script, and drop its server for a new one."""
        host = self.hosts[case][name]

        async def exchange() -> None:
            await host.stop()
            host._server, host._full, host._context = None, [], None
            host.script = script
            await host.start()

        self._thread.do(exchange())

    def stop(self) -> None:
        async def end() -> None:
            for case in self.hosts.values():
                for host in case.values():
                    await host.stop()

        self._thread.do(end())
        self._thread.end()
