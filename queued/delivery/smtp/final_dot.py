"""The content of a transaction, its dots, the final one, and the reply to that."""

from __future__ import annotations

from termios import FIONREAD

from stringzilla import find

from pgmta.errors import DeliveryError, Stage
from pgmta.mail.octets import replace
from pgmta.model import Reply
from queued.delivery.smtp.connection import ClientProtocol, waiting
from queued.delivery.smtp.exchange import leave, out_of_step
from queued.delivery.smtp.mail_commands import NO_EIGHTBIT
from queued.delivery.transport.envelope import Envelope

_MAX_COPIED_OCTETS = 16384  # up to this size one write of a copy is quicker than several writes
_INTERMEDIATE_DIGIT = 3  # the first of an intermediate reply
_CRLF = b"\r\n"
_DOTTED = b"\r\n."


async def send_content(
    connection: ClientProtocol, envelope: Envelope, replies: int = 1, *, ascii_only: bool = False
) -> Reply:
    """Send trace, content and final dot, and return the first of the replies to the dot.

    The code 0 says how the connection ended after the dot. Before the dot it checks that the server
    has said nothing and that the leases still hold. Raises DeliveryError for what happens before
    the dot.
    """
    content = envelope.content
    if not isinstance(content, bytes):
        last = [await _stream(connection, envelope, ascii_only)]
    elif len(content) > _MAX_COPIED_OCTETS:
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
    connection.write(last[-1], replies)
    try:
        if connection.closed or not connection.can_write.is_set():
            await connection.drain()
        reply = await connection.reply(Stage.END_OF_DATA, connection.timeouts.final)
        if connection.premature and await connection.too_early():
            connection.violate(f"reply before the end of data: {reply}")
            raise DeliveryError(connection.reason)
    except DeliveryError as error:
        reply = Reply(0, error.line)
    if reply.code // 100 == _INTERMEDIATE_DIGIT:
        connection.abort()  # because nobody knows what the server waits for
    connection.past_dot = False
    return reply


async def _stream(connection: ClientProtocol, envelope: Envelope, ascii_only: bool) -> bytes:
    """Send trace and content as they come, and return the end of data.

    Raises DeliveryError if the content can't be read, or with `ascii_only` is beyond ASCII.
    """
    stuffer = DotStuffer()
    assert not isinstance(envelope.content, bytes)  # noqa: S101 - for the type checker
    try:
        connection.write(stuffer.feed(envelope.trace))
        async for part in envelope.content:
            if ascii_only and not part.isascii():
                raise DeliveryError(NO_EIGHTBIT, Stage.EHLO, permanent=True)
            connection.write(stuffer.feed(part))
            await connection.drain()
    except BaseException:
        connection.abort()  # without the dot the server has no message
        raise
    return stuffer.end()


async def send_nothing(connection: ClientProtocol) -> None:
    """End a DATA that the server opened without a recipient (RFC 2920, section 3.1).

    Raises DeliveryError if the server breaks the protocol.
    """
    connection.write(b".\r\n", 1)
    reply = await leave(connection, Stage.END_OF_DATA, connection.timeouts.final)
    if reply and reply.code // 100 == _INTERMEDIATE_DIGIT:
        out_of_step(connection, reply, Stage.DATA)


async def send_by_lmtp(
    connection: ClientProtocol, envelope: Envelope, accepted: int, *, ascii_only: bool = False
) -> list[Reply]:
    """Send the content as `send_content`, and return a reply for each accepted recipient.

    The code 0 says how the connection ended before the recipient's reply came: whether it has the
    message is open then, and the replies before count. Raises DeliveryError for what happens before
    the dot.
    """
    replies = [await send_content(connection, envelope, accepted, ascii_only=ascii_only)]
    connection.past_dot = True
    while len(replies) < accepted:
        if replies[-1].code // 100 == _INTERMEDIATE_DIGIT:
            connection.abort()
        try:
            reply = await connection.reply(Stage.END_OF_DATA, connection.timeouts.final)
        except DeliveryError as error:
            reply = Reply(0, error.line)
        replies.append(reply)
    connection.past_dot = False
    return replies


def stuffed(content: bytes) -> bytes:
    """Return whole content with its transparency dots (RFC 5321, section 4.5.2) and end of data."""
    if content[:1] == b".":
        content = b"." + content
    if find(content, _DOTTED) >= 0:
        content = replace(content, _DOTTED, b"\r\n..")
    return content + (b".\r\n" if content.endswith(_CRLF) or not content else b"\r\n.\r\n")


class DotStuffer:
    """Adds the transparency dots of RFC 5321, section 4.5.2, part by part.

    Only a dot after CRLF is doubled: a bare CR or LF ends no line.
    """

    def __init__(self) -> None:
        self._tail = _CRLF

    def feed(self, part: bytes) -> bytes:
        """Return the part as it goes over the wire."""
        stuffed = replace(part, _DOTTED, b"\r\n..")
        if self._tail == _CRLF and part[:1] == b".":
            stuffed = b"." + stuffed
        elif self._tail[-1:] == b"\r" and part[:2] == b"\n.":
            stuffed = b"\n." + stuffed[1:]
        self._tail = part[-2:] if len(part) > 1 else (self._tail + part)[-2:]
        return stuffed

    def end(self) -> bytes:
        """Return the end of data, with the CRLF that the content may lack."""
        return b".\r\n" if self._tail == _CRLF else b"\r\n.\r\n"
