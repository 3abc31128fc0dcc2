"""An SMTP client connection (RFC 5321), pipelining where the server can (RFC 2920)."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import cast

from queued.config.queued import Timeouts
from queued.delivery.envelope import DotStuffer, Envelope
from queued.errors import DeliveryError
from queued.model import Reply

_MAX_REPLY = 65536  # octets of one reply, all its lines together
_COPIED = 16384  # octets up to which one write of a copy is quicker than several writes
_OK = 2  # first digit of a positive reply

Answer = tuple[Reply, str]
"""A reply and the command that it answers."""


class Session(asyncio.Protocol):
    """One connection: greeting and EHLO at `open`, then transactions, then `quit`."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._lines: list[str] = []
        self._replies: deque[Reply] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._extensions: dict[str, str] = {}
        self._reason = ""
        self.closed = False
        self.transactions = 0
        self.past_dot = False

    @property
    def usable(self) -> bool:
        """Whether another transaction may begin: no, if the server has spoken unasked (421)."""
        return not self.closed and not self._replies and not self._lines

    # -- asyncio.Protocol --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Collect lines into replies (RFC 5321, section 4.2.1)."""
        self._buffer += data
        while not self.closed and (end := self._buffer.find(b"\n")) >= 0:
            line = bytes(self._buffer[:end]).rstrip(b"\r")
            del self._buffer[: end + 1]
            self._line(line.decode("utf-8", "replace").replace("\0", "\ufffd"))
        if len(self._buffer) + sum(map(len, self._lines)) > _MAX_REPLY:
            self._break("reply is too long")

    def _line(self, line: str) -> None:
        code, more, text = line[:3], line[3:4], line[4:]
        if not (len(code) == 3 and code.isascii() and code.isdigit() and more in ("", " ", "-")):
            self._break(f"not an SMTP reply: {line[:100]!r}")
            return
        self._lines.append(text)
        if more != "-":
            text = " ".join(self._lines) if code != "250" else "\n".join(self._lines)
            self._replies.append(Reply(int(code), text))
            self._lines = []
            self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """Note the end and wake whoever waits."""
        self.closed = True
        self._reason = self._reason or (str(error) if error else "connection closed by peer")
        self._can_write.set()
        self._wake()

    def eof_received(self) -> bool:
        """A server that says no more is of no use: close."""
        return False

    def pause_writing(self) -> None:
        """The socket is full."""
        self._can_write.clear()

    def resume_writing(self) -> None:
        """The socket has room."""
        self._can_write.set()

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    def _break(self, reason: str) -> None:
        self._reason = reason
        self.closed = True
        self.abort()
        self._wake()

    def abort(self) -> None:
        """Drop the connection at once, without QUIT."""
        self.closed = True
        if self._transport:
            self._transport.abort()

    # -- dialogue --

    async def open(self, hostname: str) -> None:
        """Take the greeting and say EHLO, or HELO to those that do not know it.

        Raises DeliveryError; a 5xx here concerns the host and not the mail, so it is never
        permanent (RFC 5321, section 3.8, and the practice since).
        """
        greeting = await self._reply("greeting", self._timeouts.greeting)
        if greeting.code != 220:
            self.quit()
            raise _host_error(greeting, "greeting")
        reply = await self._command(f"EHLO {hostname}")
        if reply.code // 100 == 5:
            reply = await self._command(f"HELO {hostname}")
        elif reply.code == 250:
            for line in reply.text.split("\n")[1:]:
                keyword, _, value = line.partition(" ")
                self._extensions[keyword.upper()] = value
        if reply.code != 250:
            self.quit()
            raise _host_error(reply, "EHLO")

    async def send(self, envelope: Envelope) -> list[Answer]:
        """Do one transaction and return an answer for each item, in order.

        Raises DeliveryError where the connection fails (then it is `closed`), or where the
        message can't go to this host at all.
        """
        self.transactions += 1
        mail = self._mail(envelope)
        commands = [mail, *(f"RCPT TO:<{item.recipient}>" for item in envelope.items)]
        exchange = self._piped if "PIPELINING" in self._extensions else self._lock_step
        replies, data = await exchange(commands)
        answers: list[Answer] = [(reply, "RCPT") for reply in replies[1:]]
        if replies[0].code // 100 != _OK:
            answers = [(replies[0], "MAIL")] * len(envelope.items)
        accepted = [i for i, (reply, _) in enumerate(answers) if reply.code // 100 == _OK]
        opened = data is not None and data.code == 354
        if opened and not accepted:
            await self._nothing()
        elif opened:
            final = await self._content(envelope)
            for i in accepted:
                answers[i] = (final, "end of data")
        elif data:
            for i in accepted:
                answers[i] = (data, "DATA")
        if any(reply.code == 421 for reply, _ in answers):
            self.quit()
        elif not opened:
            await self._reset(data)
        return answers

    def _mail(self, envelope: Envelope) -> str:
        size = len(envelope.trace) + envelope.size
        command = f"MAIL FROM:<{envelope.sender}>"
        if "SIZE" in self._extensions:
            limit = self._extensions["SIZE"].strip()
            if limit.isdigit() and 0 < int(limit) < size:
                raise DeliveryError(
                    f"5.3.4 message of {size} octets is over the next hop's limit of {limit}",
                    permanent=True, command="EHLO",
                )  # fmt: skip
            command += f" SIZE={size}"
        if "8BITMIME" in self._extensions and not (
            isinstance(envelope.content, bytes) and envelope.content.isascii()
        ):
            command += " BODY=8BITMIME"
        if envelope.utf8:
            if "SMTPUTF8" not in self._extensions:
                raise DeliveryError(
                    "5.6.7 the next hop does not know SMTPUTF8", permanent=True, command="EHLO"
                )
            command += " SMTPUTF8"
        return command

    async def _piped(self, commands: list[str]) -> tuple[list[Reply], Reply | None]:
        self._write("".join(f"{command}\r\n" for command in [*commands, "DATA"]).encode())
        replies: list[Reply] = []
        for command in commands:
            replies.append(await self._reply(command[:4], self._timeouts.command))
            if replies[-1].code == 421:
                return _hung_up(replies, commands)
        return replies, await self._reply("DATA", self._timeouts.data)

    async def _lock_step(self, commands: list[str]) -> tuple[list[Reply], Reply | None]:
        replies: list[Reply] = []
        for command in commands:
            replies.append(await self._command(command))
            if replies[-1].code == 421:
                return _hung_up(replies, commands)
            if replies[0].code // 100 != _OK:
                return replies, None
        if not any(reply.code // 100 == _OK for reply in replies[1:]):
            return replies, None
        self._write(b"DATA\r\n")
        return replies, await self._reply("DATA", self._timeouts.data)

    async def _nothing(self) -> None:
        """End a DATA that the server opened for nobody, being pipelined (RFC 2920, section 3.1)."""
        self._write(b".\r\n")
        with suppress(DeliveryError):  # the answers stand in any case
            await self._reply("end of data", self._timeouts.final)

    async def _content(self, envelope: Envelope) -> Reply:
        stuffer = DotStuffer()
        if not isinstance(envelope.content, bytes):
            await self._stream(stuffer, envelope)
            last = [stuffer.end()]
        elif len(envelope.content) > _COPIED:
            last = [stuffer.feed(envelope.trace), stuffer.feed(envelope.content), stuffer.end()]
        else:
            last = [stuffer.feed(envelope.trace + envelope.content) + stuffer.end()]
        if not envelope.guard(envelope.items):
            self.abort()
            raise DeliveryError("lease lost before the final dot", command="lease")
        self.past_dot = True
        for part in last:
            self._write(part)
        try:
            await self._drain()
            reply = await self._reply("end of data", self._timeouts.final)
        except DeliveryError as error:
            raise DeliveryError(error.line, command="end of data", unknown=True) from None
        self.past_dot = False
        return reply

    async def _stream(self, stuffer: DotStuffer, envelope: Envelope) -> None:
        assert not isinstance(envelope.content, bytes)  # noqa: S101 - for the type checker
        try:
            self._write(stuffer.feed(envelope.trace))
            async for piece in envelope.content():
                self._write(stuffer.feed(piece))
                await self._drain()
        except BaseException:
            self.abort()  # without the dot nothing has happened
            raise

    async def _reset(self, data: Reply | None) -> None:
        """Leave a transaction that did not come to its content; its answers stand in any case."""
        if data and data.code // 100 not in (4, 5):
            self.abort()  # neither 354 nor a refusal: who knows what the server expects now
        elif not self.closed:
            with suppress(DeliveryError):  # then it is closed
                if (await self._command("RSET")).code // 100 != _OK:
                    self.quit()

    def quit(self) -> None:
        """Say goodbye and close; the answer to QUIT is not waited for."""
        if self._transport and not self.closed:
            self._transport.write(b"QUIT\r\n")
            self._transport.close()
        self.closed = True

    async def _command(self, line: str) -> Reply:
        self._write(f"{line}\r\n".encode())
        return await self._reply(line[:4], self._timeouts.command)

    def _write(self, data: bytes) -> None:
        if self._transport and not self.closed:
            self._transport.write(data)

    async def _drain(self) -> None:
        if not self._can_write.is_set():
            try:
                async with asyncio.timeout(self._timeouts.block):
                    await self._can_write.wait()
            except TimeoutError:
                self._break("timeout while sending content")
        if self.closed and not self._replies:
            raise DeliveryError(self._reason, command="DATA")

    async def _reply(self, command: str, timeout: float) -> Reply:
        if not self._replies and not self.closed:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(timeout, self._break, f"timeout, no reply to {command}")
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        if self._replies:
            return self._replies.popleft()
        raise DeliveryError(self._reason, command=command)


def _hung_up(replies: list[Reply], commands: list[str]) -> tuple[list[Reply], Reply]:
    """421 answers what was not yet answered, too: the server closes (RFC 5321, section 3.8)."""
    return replies + replies[-1:] * (len(commands) - len(replies)), replies[-1]


def _host_error(reply: Reply, command: str) -> DeliveryError:
    return DeliveryError(reply.text, code=reply.code, enhanced=reply.enhanced, command=command)
