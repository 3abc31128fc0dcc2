"""One mail transaction of a session: what MAIL and RCPT say (RFC 5321, section 3.3)."""

from __future__ import annotations

from collections.abc import Callable

from aiosmtpd.smtp import Envelope

from pgmta.mail.address import unquoted
from pgmta.model import NewMessage, Options, Origin


def recipient_key(mailbox: str, domain: str) -> tuple[str, str]:
    """Return the key of a recipient with this normalised domain in a transaction."""
    local = mailbox.rpartition("@")[0]
    return unquoted(local) if local[:1] == '"' else local, domain


class Transaction:
    """An aiosmtpd envelope, and what smtpd has found out about its addresses."""

    held: list[tuple[str, str]] | None = None
    """Keys of recipients whose rows go on hold at once."""
    decide: Callable[[NewMessage], None] | None = None
    """Brings the message in line with decisions of hooks before its commit, if there are any."""
    chunked = False
    """Whether content has come with BDAT: it is too late for RCPT and DATA."""
    broken = False
    """Whether another command came between its chunks: no further chunk is taken."""
    priority = 5
    """Priority of the rows, 0 (first) to 9."""
    priority_given: int | None = None
    """The same in the client's terms, if it asked for another (RFC 6710)."""
    options: Options | None = None
    """Parameters of MAIL, if there are rare ones."""
    dsn: dict[tuple[str, str], tuple[str | None, str | None]] | None = None
    """NOTIFY and ORCPT of recipients by their keys (RFC 3461)."""

    def __init__(self) -> None:  # rare values have their default in the class
        self.envelope = Envelope()
        self.sender = ""
        """Reverse-path as it was judged; empty for the null reverse-path."""
        self.sender_domain = ""
        """Normalised domain of the reverse-path."""
        self.trace = ""
        """The trace field up to the message id."""
        self.trusted = False
        """Whether the client may send to any address."""
        self.origin: Origin = "stranger"
        """How the mail comes in; `login` becomes `user` if From has addresses of the user."""
        self.recipients: dict[tuple[str, str], str] = {}
        """Mailboxes by unquoted local part and normalised domain, each recipient once."""

    def add(self, mailbox: str, domain: str, limit: int, *, hold: bool) -> bool:
        """Add a recipient, each once; return False if there would be more than `limit`."""
        key = recipient_key(mailbox, domain)
        if key in self.recipients:
            return True
        if len(self.recipients) >= limit:
            return False
        if hold:
            self.held = [*(self.held or ()), key]
        self.recipients[key] = mailbox
        self.envelope.rcpt_tos.append(mailbox)
        return True
