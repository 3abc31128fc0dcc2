"""The next hops of all cases: each follows a script from a file, and keeps what it gets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.loop_thread import LoopThread
from tests.support.submit import unstuff
from tests.support.waiting import free_port

EXTENSIONS = ["PIPELINING", "8BITMIME", "SMTPUTF8", "ENHANCEDSTATUSCODES", "SIZE 104857600"]
_END = b"\r\n.\r\n"


@dataclass
class Kept:
    """A message that a host took."""

    mail: str  # the command
    recipients: list[str]
    content: bytes


@dataclass
class Host:
    """A server with a script.

    `replies` are by 'POINT', or 'POINT words' if the words are in the command. The points are
    connect, EHLO, MAIL, RCPT, DATA and 'end of data'. A list has one reply for each time; the last
    one repeats, and '' is the usual reply. With `lmtp` it speaks LMTP, and 'end of data words' is
    for recipients. It does not listen if `refuses` is set. `once_reported` is instead of `replies`
    as soon as the sender has a DSN.
    """

    extensions: list[str] = field(default_factory=lambda: list(EXTENSIONS))
    replies: dict[str, str | list[str]] = field(default_factory=dict)
    once_reported: dict[str, str | list[str]] = field(default_factory=dict)
    lmtp: bool = False
    refuses: bool = False
    port: int = field(default_factory=free_port)
    commands: list[str] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    reported: Callable[[], object] = lambda: False
    _times: Counter[str] = field(default_factory=Counter)

    def reply(self, point: str, command: str, usual: str) -> str:
        """Return the reply at a point of the dialogue."""
        for key, replies in (self.once_reported if self.reported() else self.replies).items():
            if not key.startswith(point):
                continue
            if (words := key[len(point) :].strip()) and words not in command:
                continue
            self._times[key] += 1
            if isinstance(replies, str):
                return replies or usual
            return replies[min(self._times[key], len(replies)) - 1] or usual
        return usual

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Speak until the client ends."""
        try:
            await _Dialogue(self, reader, writer).run()
        except (EOFError, OSError):
            pass  # by the client, or by the script
        finally:
            writer.close()


class _Dialogue:
    def __init__(
        self, host: Host, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._host = host
        self._reader = reader
        self._writer = writer
        self._mail = ""
        self._recipients: list[str] = []

    async def run(self) -> None:
        await self._say("connect", "", "220 host.test ESMTP")
        while line := await self._reader.readline():
            command = line.decode("utf-8", "replace").rstrip("\r\n")
            self._host.commands.append(command)
            verb = command.partition(" ")[0].upper()
            if verb == "QUIT":
                return
            await self._command(verb, command)

    async def _command(self, verb: str, command: str) -> None:
        if verb == ("LHLO" if self._host.lmtp else "EHLO"):
            lines = ["host.test", *self._host.extensions]
            usual = "\r\n".join([*(f"250-{line}" for line in lines[:-1]), f"250 {lines[-1]}"])
            await self._say("EHLO", command, usual)
        elif verb == "MAIL":
            self._mail, self._recipients = command, []
            await self._say(verb, command, "250 2.1.0 Ok")
        elif verb == "RCPT":
            if await self._say(verb, command, "250 2.1.5 Ok"):
                self._recipients.append(command[command.index("<") + 1 : command.index(">")])
        elif verb == "DATA":
            if not self._recipients:
                await self._say("503", command, "503 5.5.1 RCPT first")
            elif await self._say(verb, command, "354 Go on"):
                await self._content()
        else:
            await self._say(verb, command, "250 2.0.0 Ok")

    async def _content(self) -> None:
        wire = bytearray(b"\r\n")
        searched = 0
        while (end := wire.find(_END, searched)) < 0:
            searched = max(0, len(wire) - len(_END) + 1)
            data = await self._reader.read(1 << 18)
            if not data:
                raise EOFError
            wire += data
        content = unstuff(bytes(wire[2 : end + 2]))
        replies = {
            recipient: self._host.reply("end of data", recipient, "250 2.0.0 Ok")
            for recipient in (self._recipients if self._host.lmtp else [""])
        }
        if taken := [recipient for recipient, reply in replies.items() if reply[0] == "2"]:
            recipients = taken if self._host.lmtp else self._recipients
            self._host.kept.append(Kept(self._mail, recipients, content))
        for reply in replies.values():
            await self._write(reply)

    async def _say(self, point: str, command: str, usual: str) -> bool:
        """Reply as the script says; return whether that is positive."""
        reply = self._host.reply(point, command, usual)
        await self._write(reply)
        return reply[0] in "23"

    async def _write(self, reply: str) -> None:
        if reply == "close":
            raise EOFError
        self._writer.write(reply.encode() + b"\r\n")
        await self._writer.drain()


class Hosts:
    """All hosts, served by one thread."""

    def __init__(self, hosts: list[Host]) -> None:
        self._hosts = hosts
        self._servers: list[asyncio.Server] = []
        self._thread = LoopThread()
        self._thread.do(self._start())

    async def _start(self) -> None:
        for host in self._hosts:
            if not host.refuses:
                self._servers.append(
                    await asyncio.start_server(host.serve, "127.0.0.1", host.port, limit=1 << 20)
                )

    def close(self) -> None:
        """End the hosts."""

        async def end() -> None:
            for server in self._servers:
                server.close()

        self._thread.do(end())
        self._thread.end()
