"""The replies of a session: counted, logged, and with consequences for the client."""

from __future__ import annotations

from smtpd.commands.commands import Commands
from smtpd.commands.tally import Consequence, Tally
from smtpd.protocol import replies
from smtpd.server.server import Server
from smtpd.session.connection import Connection

_AFTER_REFUSED_MAIL = (replies.NO_MAIL, replies.NO_RCPT)  # to pipelined commands


class Replier:
    """Replies to the client, and slows down or ends a session with too many errors."""

    def __init__(
        self, server: Server, connection: Connection, commands: Commands, tally: Tally
    ) -> None:
        self._server = server
        self._connection = connection
        self._commands = commands
        self._tally = tally
        self.owed = 0
        """How often the reply to the end of data is sent; 0 in SMTP, where it is sent once."""

    def reply(self, reply: str) -> None:
        """Send a reply; a 5xx counts as an error of the client."""
        self._connection.reply(reply)
        if reply[0] not in "45":
            return
        commands = self._commands
        self._server.figures.refuse(reply)
        self._server.refusals.note(
            reply,
            self._connection.log_values,
            address=commands.path,
            user=commands.login.user if commands.login else "",
        )
        if reply[0] == "5" and not (self._server.gate.closed and reply in _AFTER_REFUSED_MAIL):
            self._follow(self._tally.refusal(reply, login=bool(commands.login)))

    def count_useless(self) -> None:
        """Count a command that carries no mail."""
        self._follow(self._tally.junk(self._server.loop.time()))

    def _follow(self, consequence: Consequence) -> None:
        """Do what follows from an error."""
        if consequence is Consequence.END:
            self._connection.refuse(replies.TOO_MANY_ERRORS)
        elif consequence is Consequence.DELAY:
            self._connection.delay()

    def owe(self, number: int) -> None:
        """Send the next reply to the end of data so often: LMTP has one for each recipient."""
        self.owed = number

    def repeated(self, reply: str) -> str:
        """Return the reply to the end of data as often as it is owed; none is owed any more."""
        owed, self.owed = self.owed, 0
        return "\r\n".join([reply] * owed) if owed else reply
