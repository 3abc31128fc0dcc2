"""MAIL, RCPT and DATA, at once where the server can (RFC 2920), and what their replies mean."""

from __future__ import annotations

from typing import NoReturn

from pgmta.errors import DeliveryError, Stage
from pgmta.model import Reply
from pgmta.states import Event
from queued.delivery.smtp.connection import ClientProtocol
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.result import Again, Result

_POSITIVE_DIGIT = 2  # the first of a positive reply
_INTERMEDIATE_DIGIT = 3  # the first of an intermediate reply
_PERMANENT_DIGIT = 5  # the first of a negative reply for good
_NEGATIVE_DIGITS = (4, _PERMANENT_DIGIT)  # the first of a negative reply

_MAIL_STAGES = (Stage.MAIL, Stage.RCPT, Stage.DATA, Stage.END_OF_DATA)
"""Stages in which a 5xx concerns this mail; before them it concerns the host, and may pass."""

_SESSION_CODES = (500, 501, 502, 503, 504, 530, 538)
"""Codes for commands that the host does not take in this order, without TLS, or without a login."""

_HOST_STAGES = (Stage.EHLO, Stage.MAIL, Stage.RCPT, Stage.DATA, Stage.END_OF_DATA, Stage.RSET)
"""Stages of failures that another host may not have; the others are failures of pgmta."""

_TOO_MANY_RECIPIENTS = {452: ("", "4.5.3"), 552: ("", "4.5.3", "5.5.3")}
"""Replies to RCPT for too many recipients, with their enhanced codes (RFC 5321, 4.5.3.1.10)."""

_PARAMETER_CODES = (500, 501, 504, 555)
"""Codes for parameters that a host does not take (RFC 5321, section 4.2.4), or a line too long."""


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
        # mostly all replies come together
        come = connection.replies
        reply = come.popleft() if come else await connection.reply(stage, waits)
        if reply.code // 100 == _INTERMEDIATE_DIGIT:
            out_of_step(connection, reply, stage)
        replies.append(reply)
        if reply.code == 421:
            return _hung_up(replies, commands)
        stage = Stage.RCPT
    come = connection.replies
    go = come.popleft() if come else await connection.reply(Stage.DATA, connection.timeouts.data)
    if go.code != 354 and go.code // 100 not in _NEGATIVE_DIGITS:
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
        if reply.code // 100 == _INTERMEDIATE_DIGIT:
            out_of_step(connection, reply, stage)
        replies.append(reply)
        if reply.code == 421:
            return _hung_up(replies, commands)
        if replies[0].code // 100 != _POSITIVE_DIGIT:
            return replies, None
        stage = Stage.RCPT
    if not any(reply.code // 100 == _POSITIVE_DIGIT for reply in replies[1:]):
        return replies, None
    connection.write(b"DATA\r\n", 1)
    go = await connection.reply(Stage.DATA, connection.timeouts.data)
    if go.code != 354 and go.code // 100 not in _NEGATIVE_DIGITS:
        out_of_step(connection, go, Stage.DATA)
    return replies, go


async def reset(connection: ClientProtocol) -> None:
    """Leave a transaction that did not come to its content.

    Raises DeliveryError if the server breaks the protocol.
    """
    if not connection.closed:
        connection.write(b"RSET\r\n", 1)
        reply = await leave(connection, Stage.RSET, connection.timeouts.command)
        if reply and reply.code // 100 != _POSITIVE_DIGIT:
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


def result_of(reply: Reply, host: str, stage: Stage) -> Result:
    """Return the result of a reply of this host.

    Only 2xx to the end of data is a delivery. After the final dot any reply but 2xx, 4xx and 5xx
    leaves open whether the server has the message. Before it, any reply but 5xx is a failure for
    now: a server that breaks the protocol gets another chance. So does one that refuses the session
    and not the mail: that is said of an address only by the enhanced codes 5.1.x.
    """
    code = reply.code
    first = code // 100
    event = Event.DEFER
    if stage is Stage.END_OF_DATA and first not in (4, _PERMANENT_DIGIT):
        event = Event.DELIVERED if first == _POSITIVE_DIGIT else Event.UNKNOWN
    elif first == _PERMANENT_DIGIT and stage in _MAIL_STAGES:
        passes = code in _SESSION_CODES and not reply.text.startswith("5.1.")
        passes = passes or (code == 552 and reply.enhanced == "5.5.3")
        event = Event.DEFER if passes else Event.FAIL
    return Result(event, reply, host, stage)


def mark_again(results: list[Result], asked: Envelope | None = None) -> list[Again | None]:
    """Mark the recipients of a transaction that are tried again at once, and return the marks.

    `asked` is the envelope if the host got its DSN parameters. Recipients are too many only after
    one that was accepted and whose result counts. So each transaction has fewer of them than the
    one before, or no parameters.
    """
    taken = False
    for index, result in enumerate(results):
        if asked and _refuses_parameters(result, asked, index):
            result.again = Again.BARE
            continue
        accepted = result.stage in (Stage.DATA, Stage.END_OF_DATA)
        event = result.event
        if taken and result.stage is Stage.RCPT and _too_many(result.reply):
            result.again = Again.NEXT
        elif result.stage in _HOST_STAGES and (
            event is Event.DEFER or (event is Event.FAIL and result.stage is Stage.EHLO)
        ):
            result.again = Again.ELSEWHERE
        else:
            taken = taken or (accepted and event is not Event.UNKNOWN)
    return [result.again for result in results]


def _too_many(reply: Reply) -> bool:
    return reply.enhanced in _TOO_MANY_RECIPIENTS.get(reply.code, ())


def _refuses_parameters(result: Result, envelope: Envelope, index: int) -> bool:
    item, reply = envelope.items[index], result.reply
    given = {
        Stage.MAIL: envelope.message.ret or envelope.message.envid,
        Stage.RCPT: item.notify or item.orcpt,
    }
    if not given.get(result.stage) or reply.text.startswith("5.1."):
        return False
    return reply.code in _PARAMETER_CODES or (
        reply.code // 100 == _PERMANENT_DIGIT and reply.enhanced == "5.5.4"
    )


def hung_up(results: list[Result]) -> bool:
    """Return whether the server closed before it had the message (RFC 5321, section 3.8)."""
    return any(
        result.reply.code == 421 and result.stage is not Stage.END_OF_DATA for result in results
    )
