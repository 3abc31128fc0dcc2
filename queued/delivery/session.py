"""An SMTP client session (RFC 5321), pipelining where the server can (RFC 2920)."""

from __future__ import annotations

from typing import NoReturn

from pgmta.errors import DeliveryError
from pgmta.model import Reply
from queued.config import Timeouts
from queued.delivery.envelope import DotStuffer, Envelope
from queued.delivery.protocol import ClientProtocol

_COPIED = 16384  # octets up to which one write of a copy is quicker than several writes
_OK = 2  # first digit of a positive reply
_MORE = 3  # first digit of an intermediate reply
_REFUSED = (4, 5)  # first digits of a negative reply
_DIGITS = 20  # of a SIZE that counts (RFC 1870, section 4)

Answer = tuple[Reply, str]
"""A reply and the command that it answers."""


class Session(ClientProtocol):
    """One connection: greeting and EHLO at `open`, then transactions, then `quit`."""

    def __init__(self, timeouts: Timeouts) -> None:
        super().__init__(timeouts)
        self._extensions: dict[str, str] = {}
        self.transactions = 0

    @property
    def usable(self) -> bool:
        """Whether another transaction may begin."""
        return not self.closed

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
            for line in self.lines[1:]:
                keyword, _, value = line.partition(" ")
                self._extensions[keyword.upper()] = value
        if reply.code != 250:
            self.quit()
            raise _host_error(reply, "EHLO")
        if self.closed:  # right after its reply
            raise DeliveryError(self._reason, command="EHLO")

    async def send(self, envelope: Envelope) -> list[Answer]:
        """Do one transaction and return an answer for each item, in order.

        An answer to the end of data that has the code 0 says how the connection ended after the
        dot. Raises DeliveryError where the connection fails before it (then it is `closed`), where
        replies are out of step with commands, or where the message can't go to this host at all.
        """
        self.transactions += 1
        mail = self._mail(envelope)
        commands = [mail, *(f"RCPT TO:<{item.recipient}>" for item in envelope.items)]
        exchange = self._piped if "PIPELINING" in self._extensions else self._lock_step
        replies, data = await exchange(commands)
        answers: list[Answer] = [(reply, "RCPT") for reply in replies[1:]]
        begun = replies[0].code // 100 == _OK
        accepted = [i for i, (reply, _) in enumerate(answers) if reply.code // 100 == _OK]
        if not begun:
            answers = [(replies[0], "MAIL")] * len(envelope.items)
        if data is not None and data.code == 354:
            if begun and accepted:
                final = await self._content(envelope)
                for i in accepted:
                    answers[i] = (final, "end of data")
            elif begun:
                await self._nothing()
            else:
                self.abort()  # a dot would send an empty message to whom it has accepted
        elif data and begun:
            for i in accepted:
                answers[i] = (data, "DATA")
        if any(reply.code == 421 for reply, _ in answers):
            self.quit()
        elif data is None or data.code != 354:
            await self._reset()
        return answers

    def _mail(self, envelope: Envelope) -> str:
        size = len(envelope.trace) + envelope.size
        command = f"MAIL FROM:<{envelope.sender}>"
        if "SIZE" in self._extensions:
            limit = _limit(self._extensions["SIZE"])
            if 0 < limit < size:
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
        group = "".join(f"{command}\r\n" for command in [*commands, "DATA"])
        self._write(group.encode(), len(commands) + 1)
        replies: list[Reply] = []
        for command in commands:
            # mostly they come together
            reply = self._next() or await self._reply(command[:4], self._timeouts.command)
            if reply.code // 100 == _MORE:
                self._out_of_step(reply, command[:4])
            replies.append(reply)
            if reply.code == 421:
                return _hung_up(replies, commands)
        go = self._next() or await self._reply("DATA", self._timeouts.data)
        return replies, self._go_on(go)

    async def _lock_step(self, commands: list[str]) -> tuple[list[Reply], Reply | None]:
        replies: list[Reply] = []
        for command in commands:
            self._write(f"{command}\r\n".encode(), 1)
            reply = await self._reply(command[:4], self._timeouts.command)
            if reply.code // 100 == _MORE:
                self._out_of_step(reply, command[:4])
            replies.append(reply)
            if reply.code == 421:
                return _hung_up(replies, commands)
            if replies[0].code // 100 != _OK:
                return replies, None
        if not any(reply.code // 100 == _OK for reply in replies[1:]):
            return replies, None
        self._write(b"DATA\r\n", 1)
        return replies, self._go_on(await self._reply("DATA", self._timeouts.data))

    def _go_on(self, reply: Reply) -> Reply:
        """Return 354 or a refusal. Raises DeliveryError for what can be no reply to DATA."""
        if reply.code != 354 and reply.code // 100 not in _REFUSED:
            self._out_of_step(reply, "DATA")
        return reply

    def _out_of_step(self, reply: Reply, command: str) -> NoReturn:
        """End a transaction whose replies may each answer another command than it seems."""
        self.violate(str(reply))
        raise DeliveryError(reply.text, code=reply.code, enhanced=reply.enhanced, command=command)

    async def _nothing(self) -> None:
        """End a DATA that the server opened for nobody, being pipelined (RFC 2920, section 3.1)."""
        self._write(b".\r\n", 1)
        reply = await self._leave("end of data", self._timeouts.final)
        if reply and reply.code // 100 == _MORE:
            self._out_of_step(reply, "DATA")

    async def _content(self, envelope: Envelope) -> Reply:
        stuffer = DotStuffer()
        if not isinstance(envelope.content, bytes):
            await self._stream(stuffer, envelope)
            last = [stuffer.end()]
        elif len(envelope.content) > _COPIED:
            last = [stuffer.feed(envelope.trace), stuffer.feed(envelope.content), stuffer.end()]
        else:
            last = [stuffer.feed(envelope.trace + envelope.content) + stuffer.end()]
        if self._unread():
            await self._listen()
        if not envelope.guard(envelope.items):
            self.abort()
            raise DeliveryError("lease lost before the final dot", command="lease")
        self.past_dot = True
        for part in last[:-1]:
            self._write(part)
        self._write(last[-1], 1)
        try:
            if self._full():
                await self._drain()
            reply = await self._reply("end of data", self._timeouts.final)
            if self._premature and await self._too_early():
                self.violate(f"reply before the end of data: {reply}")
                raise DeliveryError(self._reason)
        except DeliveryError as error:
            reply = Reply(0, error.line)
        if reply.code // 100 == _MORE:
            self.abort()  # nobody knows what the server waits for
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

    async def _reset(self) -> None:
        """Leave a transaction that did not come to its content."""
        if not self.closed:
            self._write(b"RSET\r\n", 1)
            reply = await self._leave("RSET", self._timeouts.command)
            if reply and reply.code // 100 != _OK:
                self._out_of_step(reply, "RSET")

    async def _leave(self, command: str, timeout: float) -> Reply | None:
        """Return the reply to what ends a transaction without content; None: no more came.

        The answers before stand in any case, unless the server breaks the protocol.
        """
        try:
            reply = await self._reply(command, timeout)
        except DeliveryError:
            if self.violated:
                raise
            return None
        if reply.code == 421:
            self.quit()
            return None
        return reply

    async def _command(self, line: str) -> Reply:
        self._write(f"{line}\r\n".encode(), 1)
        return await self._reply(line[:4], self._timeouts.command)


def _hung_up(replies: list[Reply], commands: list[str]) -> tuple[list[Reply], Reply]:
    """421 answers what was not yet answered, too: the server closes (RFC 5321, section 3.8)."""
    return replies + replies[-1:] * (len(commands) - len(replies)), replies[-1]


def _host_error(reply: Reply, command: str) -> DeliveryError:
    return DeliveryError(reply.text, code=reply.code, enhanced=reply.enhanced, command=command)


def _limit(value: str) -> int:
    """Return the SIZE that a server announces; 0, which means none, for what is no number."""
    value = value.strip()
    return int(value) if value.isascii() and value.isdigit() and len(value) <= _DIGITS else 0
