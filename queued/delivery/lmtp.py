"""The end of data by LMTP: a reply for each recipient that was accepted (RFC 2033)."""

from __future__ import annotations

from pgmta.errors import DeliveryError, Stage
from pgmta.model import Reply
from queued.delivery.end_of_data import send_content
from queued.delivery.envelope import Envelope
from queued.delivery.protocol import ClientProtocol

_MORE = 3  # first digit of an intermediate reply


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
        if replies[-1].code // 100 == _MORE:
            connection.abort()
        try:
            reply = await connection.reply(Stage.END_OF_DATA, connection.timeouts.final)
        except DeliveryError as error:
            reply = Reply(0, error.line)
        replies.append(reply)
    connection.past_dot = False
    return replies
