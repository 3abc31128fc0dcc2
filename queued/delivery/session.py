"""An SMTP client session (RFC 5321), pipelining where the server can (RFC 2920)."""

from __future__ import annotations

from termios import FIONREAD
from typing import NoReturn

from pgmta.errors import DeliveryError, Stage
from pgmta.model import Reply
from queued.delivery.envelope import Envelope
from queued.delivery.protocol import ClientProtocol, waiting
from queued.delivery.reply import Result
from queued.delivery.wire import DotStuffer, stuffed

_COPIED = 16384  # octets up to which one write of a copy is quicker than several writes
_OK = 2  # first digit of a positive reply
_MORE = 3  # first digit of an intermediate reply
_REFUSED = (4, 5)  # first digits of a negative reply
_DIGITS = 20  # of a SIZE that counts (RFC 1870, section 4)


class Session:
    """One dialogue with `host`: greeting and EHLO at `open`, transactions, then `quit`.

    The session has a connection. Whether that is closed, and whether the server broke the
    protocol, is known there.
    """

    def __init__(self, connection: ClientProtocol, host: str) -> None:
        self.connection = connection
        self.host = host
        self.transactions = 0
        self._extensions: dict[str, str] = {}
        self._limit = 0  # octets of a message; 0: none
        self._timeouts = connection.timeouts

    async def open(self, hostname: str) -> None:
        """Take the greeting and say EHLO, or HELO to a server that does not know EHLO.

        Raises DeliveryError. A 5xx here concerns the host and not the mail, so it is never
        permanent (RFC 5321, section 3.8, and the practice since).
        """
        connection = self.connection
        greeting = await connection.reply(Stage.GREETING, self._timeouts.greeting)
        if greeting.code != 220:
            connection.quit()
            raise DeliveryError(greeting.text, Stage.GREETING, code=greeting.code)
        reply = await self._greet(Stage.EHLO, hostname)
        if reply.code // 100 == 5:
            reply = await self._greet(Stage.HELO, hostname)
        elif reply.code == 250:
            for line in connection.lines[1:]:
                keyword, _, value = line.partition(" ")
                self._extensions[keyword.upper()] = value
            self._limit = _size_limit(self._extensions.get("SIZE", ""))
        if reply.code != 250:
            connection.quit()
            raise DeliveryError(reply.text, Stage.EHLO, code=reply.code)
        if connection.closed:  # right after its reply
            raise DeliveryError(connection.reason, Stage.EHLO)

    async def _greet(self, stage: Stage, hostname: str) -> Reply:
        self.connection.write(f"{stage} {hostname}\r\n".encode(), 1)
        return await self.connection.reply(stage, self._timeouts.command)

    async def send(self, envelope: Envelope) -> list[Result]:
        """Do one transaction and return a result for each item, in order.

        A result of the end of data with the code 0 says how the connection ended after the dot.
        Raises DeliveryError if the connection ends before the dot (then it is `closed`), if replies
        are out of step with commands, or if the message can't go to this host at all.
        """
        self.transactions += 1
        host = self.host
        commands = [self._mail(envelope)]
        commands += [f"RCPT TO:<{item.recipient}>" for item in envelope.items]
        exchange = self._pipelined if "PIPELINING" in self._extensions else self._lock_step
        replies, data = await exchange(commands)
        begun = replies[0].code // 100 == _OK
        if begun:
            results = [Result(reply, host, Stage.RCPT) for reply in replies[1:]]
        else:
            results = [Result(replies[0], host, Stage.MAIL)] * len(envelope.items)
        accepted = [i for i, reply in enumerate(replies[1:]) if reply.code // 100 == _OK]
        go_on = data is not None and data.code == 354
        if go_on and begun and accepted:
            final = Result(await self._content(envelope), host, Stage.END_OF_DATA)
            for i in accepted:
                results[i] = final
        elif go_on and begun:
            await self._no_content()
        elif go_on:
            self.connection.abort()  # a dot would send an empty message to accepted recipients
        elif data and begun:
            for i in accepted:
                results[i] = Result(data, host, Stage.DATA)
        if any(result.reply.code == 421 for result in results):
            self.connection.quit()
        elif not go_on:
            await self._reset()
        return results

    def _mail(self, envelope: Envelope) -> str:
        """Return the command MAIL. Raises DeliveryError if the server can't take the message."""
        size = len(envelope.trace) + envelope.size
        command = f"MAIL FROM:<{envelope.sender}>"
        if "SIZE" in self._extensions:
            if 0 < self._limit < size:
                raise DeliveryError(
                    f"5.3.4 message of {size} octets is over the next hop's limit of {self._limit}",
                    Stage.EHLO,
                    permanent=True,
                )
            command += f" SIZE={size}"
        if "8BITMIME" in self._extensions and not (
            isinstance(envelope.content, bytes) and envelope.content.isascii()
        ):
            command += " BODY=8BITMIME"
        if envelope.utf8:
            if "SMTPUTF8" not in self._extensions:
                raise DeliveryError(
                    "5.6.7 the next hop does not know SMTPUTF8", Stage.EHLO, permanent=True
                )
            command += " SMTPUTF8"
        return command

    async def _pipelined(self, commands: list[str]) -> tuple[list[Reply], Reply | None]:
        """Send all commands and DATA in one write; return their replies and the one to DATA."""
        connection = self.connection
        group = "".join(f"{command}\r\n" for command in [*commands, "DATA"])
        connection.write(group.encode(), len(commands) + 1)
        waits = self._timeouts.command
        replies: list[Reply] = []
        stage = Stage.MAIL
        while len(replies) < len(commands):
            # mostly they come together
            come = connection.replies
            reply = come.popleft() if come else await connection.reply(stage, waits)
            if reply.code // 100 == _MORE:
                self._out_of_step(reply, stage)
            replies.append(reply)
            if reply.code == 421:
                return _hung_up(replies, commands)
            stage = Stage.RCPT
        come = connection.replies
        go = come.popleft() if come else await connection.reply(Stage.DATA, self._timeouts.data)
        if go.code != 354 and go.code // 100 not in _REFUSED:
            self._out_of_step(go, Stage.DATA)
        return replies, go

    async def _lock_step(self, commands: list[str]) -> tuple[list[Reply], Reply | None]:
        """Send one command after the other; return their replies and the one to DATA, if sent."""
        connection = self.connection
        replies: list[Reply] = []
        stage = Stage.MAIL
        for command in commands:
            connection.write(f"{command}\r\n".encode(), 1)
            reply = await connection.reply(stage, self._timeouts.command)
            if reply.code // 100 == _MORE:
                self._out_of_step(reply, stage)
            replies.append(reply)
            if reply.code == 421:
                return _hung_up(replies, commands)
            if replies[0].code // 100 != _OK:
                return replies, None
            stage = Stage.RCPT
        if not any(reply.code // 100 == _OK for reply in replies[1:]):
            return replies, None
        connection.write(b"DATA\r\n", 1)
        go = await connection.reply(Stage.DATA, self._timeouts.data)
        if go.code != 354 and go.code // 100 not in _REFUSED:
            self._out_of_step(go, Stage.DATA)
        return replies, go

    def _out_of_step(self, reply: Reply, stage: Stage) -> NoReturn:
        """End a transaction whose replies may each answer another command than it seems."""
        self.connection.violate(str(reply))
        raise DeliveryError(reply.text, stage, code=reply.code)

    async def _no_content(self) -> None:
        """End a DATA that the server opened without a recipient (RFC 2920, section 3.1)."""
        self.connection.write(b".\r\n", 1)
        reply = await self._leave(Stage.END_OF_DATA, self._timeouts.final)
        if reply and reply.code // 100 == _MORE:
            self._out_of_step(reply, Stage.DATA)

    async def _content(self, envelope: Envelope) -> Reply:
        """Send trace, content and final dot, and return the reply to the dot.

        Before the dot it checks that the server has said nothing and that the leases still hold.
        Raises DeliveryError for what happens before the dot.
        """
        connection, content = self.connection, envelope.content
        if not isinstance(content, bytes):
            last = [await self._stream(envelope)]
        elif len(content) > _COPIED:
            stuffer = DotStuffer()
            last = [stuffer.feed(envelope.trace), stuffer.feed(content), stuffer.end()]
        else:
            last = [stuffed(envelope.trace + content)]
        if connection.closed or waiting(connection.descriptor, FIONREAD):
            await connection.listen()
        if not envelope.guard.valid(envelope.items):
            connection.abort()
            raise DeliveryError("lease lost before the final dot", Stage.LEASE)
        connection.past_dot = True
        for part in last[:-1]:
            connection.write(part)
        connection.write(last[-1], 1)
        try:
            if connection.closed or not connection.can_write.is_set():
                await connection.drain()
            reply = await connection.reply(Stage.END_OF_DATA, self._timeouts.final)
            if connection.premature and await connection.too_early():
                connection.violate(f"reply before the end of data: {reply}")
                raise DeliveryError(connection.reason)
        except DeliveryError as error:
            reply = Reply(0, error.line)
        if reply.code // 100 == _MORE:
            connection.abort()  # it is open what the server waits for
        connection.past_dot = False
        return reply

    async def _stream(self, envelope: Envelope) -> bytes:
        """Send trace and content as they come, and return the end of data."""
        connection, stuffer = self.connection, DotStuffer()
        assert not isinstance(envelope.content, bytes)  # noqa: S101 - for the type checker
        try:
            connection.write(stuffer.feed(envelope.trace))
            async for part in envelope.content:
                connection.write(stuffer.feed(part))
                await connection.drain()
        except BaseException:
            connection.abort()  # without the dot nothing has happened
            raise
        return stuffer.end()

    async def _reset(self) -> None:
        """Leave a transaction that did not come to its content."""
        if not self.connection.closed:
            self.connection.write(b"RSET\r\n", 1)
            reply = await self._leave(Stage.RSET, self._timeouts.command)
            if reply and reply.code // 100 != _OK:
                self._out_of_step(reply, Stage.RSET)

    async def _leave(self, stage: Stage, timeout: float) -> Reply | None:
        """Return the reply that ends a transaction without content, None if the server closed.

        The results before it count in any case, unless the server breaks the protocol.
        """
        try:
            reply = await self.connection.reply(stage, timeout)
        except DeliveryError:
            if self.connection.violated:
                raise
            return None
        if reply.code == 421:
            self.connection.quit()
            return None
        return reply


def _hung_up(replies: list[Reply], commands: list[str]) -> tuple[list[Reply], Reply]:
    """Let 421 answer all open commands: the server closes (RFC 5321, section 3.8)."""
    return replies + replies[-1:] * (len(commands) - len(replies)), replies[-1]


def _size_limit(value: str) -> int:
    """Return the SIZE that a server announces; 0, which means none, for any other text."""
    value = value.strip()
    return int(value) if value.isascii() and value.isdigit() and len(value) <= _DIGITS else 0
