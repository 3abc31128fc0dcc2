"""The exchange of MAIL, RCPT and DATA, at once where the server can (RFC 2920)."""

from __future__ import annotations

from typing import NoReturn

from pgmta.errors import DeliveryError, Stage
from pgmta.model import Reply
from queued.delivery.smtp.protocol import ClientProtocol

_OK = 2  # first digit of a positive reply
_MORE = 3  # first digit of an intermediate reply
_REFUSED = (4, 5)  # first digits of a negative reply


async def pipelined(
    connection: ClientProtocol, commands: list[str]
) -> tuple[list[Reply], Reply | None]:
    """Send all commands and DATA in one write; return their replies and the one to DATA.

    Raises DeliveryError if the connection ends, or if replies are out of step with commands.
    """
    group = "".join(f"{command}\r\n" for command in [*commands, "DATA"])
    connection.write(group.encode(), len(commands) + 1)
    waits = connection.timeouts.command
    replies: list[Reply] = []
    stage = Stage.MAIL
    while len(replies) < len(commands):
        # mostly they come together
        come = connection.replies
        reply = come.popleft() if come else await connection.reply(stage, waits)
        if reply.code // 100 == _MORE:
            out_of_step(connection, reply, stage)
        replies.append(reply)
        if reply.code == 421:
            return _hung_up(replies, commands)
        stage = Stage.RCPT
    come = connection.replies
    go = come.popleft() if come else await connection.reply(Stage.DATA, connection.timeouts.data)
    if go.code != 354 and go.code // 100 not in _REFUSED:
        out_of_step(connection, go, Stage.DATA)
    return replies, go


async def lock_step(
    connection: ClientProtocol, commands: list[str]
) -> tuple[list[Reply], Reply | None]:
    """Send one command after the other; return their replies and the one to DATA, if sent.

    Raises DeliveryError, as `pipelined`.
    """
    replies: list[Reply] = []
    stage = Stage.MAIL
    for command in commands:
        connection.write(f"{command}\r\n".encode(), 1)
        reply = await connection.reply(stage, connection.timeouts.command)
        if reply.code // 100 == _MORE:
            out_of_step(connection, reply, stage)
        replies.append(reply)
        if reply.code == 421:
            return _hung_up(replies, commands)
        if replies[0].code // 100 != _OK:
            return replies, None
        stage = Stage.RCPT
    if not any(reply.code // 100 == _OK for reply in replies[1:]):
        return replies, None
    connection.write(b"DATA\r\n", 1)
    go = await connection.reply(Stage.DATA, connection.timeouts.data)
    if go.code != 354 and go.code // 100 not in _REFUSED:
        out_of_step(connection, go, Stage.DATA)
    return replies, go


async def reset(connection: ClientProtocol) -> None:
    """Leave a transaction that did not come to its content.

    Raises DeliveryError if the server breaks the protocol.
    """
    if not connection.closed:
        connection.write(b"RSET\r\n", 1)
        reply = await leave(connection, Stage.RSET, connection.timeouts.command)
        if reply and reply.code // 100 != _OK:
            out_of_step(connection, reply, Stage.RSET)


async def leave(connection: ClientProtocol, stage: Stage, timeout: float) -> Reply | None:
    """Return the reply that ends a transaction without content, None if the server closed.

    The results before it count in any case, unless the server breaks the protocol.
    """
    try:
        reply = await connection.reply(stage, timeout)
    except DeliveryError:
        if connection.violated:
            raise
        return None
    if reply.code == 421:
        connection.quit()
        return None
    return reply


def out_of_step(connection: ClientProtocol, reply: Reply, stage: Stage) -> NoReturn:
    """End a transaction whose replies may each answer another command than it seems.

    Raises DeliveryError.
    """
    connection.violate(str(reply))
    raise DeliveryError(reply.text, stage, code=reply.code)


def _hung_up(replies: list[Reply], commands: list[str]) -> tuple[list[Reply], Reply]:
    """Let 421 answer all open commands: the server closes (RFC 5321, section 3.8)."""
    return replies + replies[-1:] * (len(commands) - len(replies)), replies[-1]
