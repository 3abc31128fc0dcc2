"""LMTP sessions: SMTP with LHLO, and a reply for each recipient (RFC 2033)."""

from __future__ import annotations

from smtpd.protocol import replies
from smtpd.session.session import SmtpSession

_LHLO = b"LHLO"
_SMTP_ONLY = frozenset((b"EHLO", b"HELO", b"BDAT"))
_FRESH = frozenset((b"EHLO", b"MAIL", b"RSET"))


class LmtpSession(SmtpSession):
    """Repeats the reply to the end of data for each RCPT that it has accepted (section 4.2).

    One commit writes all recipients of a message, so their replies are the same. A recipient that
    can't get mail is refused at RCPT.
    """

    _word = b""  # the command under way
    _content = False  # the next reply is that to the end of data

    def line(self, line: bytes) -> None:
        """Do the command in a line; LHLO is EHLO, and there is no other (section 4.1)."""
        if self.reader:
            super().line(line)
            return
        self._word = line.partition(b" ")[0].upper()
        if self._word in _SMTP_ONLY:
            self.reply(replies.UNKNOWN_COMMAND)
            return
        if self._word == _LHLO:
            line, self._word = b"EHLO" + line[len(_LHLO) :], b"EHLO"
        super().line(line)

    def reply(self, reply: str) -> None:
        """Send a reply; that to the end of data goes out for each recipient."""
        if self._content:
            super().reply(self.repeated(reply))
            return
        if reply[0] == "2":
            if self._word in _FRESH:
                self.copies = 0
            elif self._word == b"RCPT":
                self.copies += 1
        self._content = reply is replies.DATA_GO
        super().reply(reply)

    def repeated(self, reply: str) -> str:
        """Return the reply to the end of data as often as there are recipients."""
        copies, self.copies, self._content = self.copies, 0, False
        return "\r\n".join([reply] * copies)
