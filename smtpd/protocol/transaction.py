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
    """An aiosmtpd envelope, and what smtpd has found out about its addresses.

    Its fields are written here alone (`make lint`). Hooks write in the envelope.
    """

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

    # values that are rarely set have their default in the class
    def __init__(self, *, trusted: bool = False, origin: Origin = "stranger") -> None:
        self.envelope = Envelope()
        self.sender = ""
        """Reverse-path as it was judged; empty for the null reverse-path."""
        self.sender_domain = ""
        """Normalised domain of the reverse-path."""
        self.trusted = trusted
        """Whether the client may send to any address."""
        self.origin = origin
        """How the mail comes in; `login` becomes `user` if From has addresses of the user."""
        self.recipients: dict[tuple[str, str], str] = {}
        """Mailboxes by unquoted local part and normalised domain, each recipient once."""

    def set_envelope(self, envelope: Envelope) -> None:
        """Go on with the envelope that hooks have left."""
        self.envelope = envelope

    def set_sender(self, mailbox: str, domain: str) -> None:
        """Take the reverse-path; its envelope may have another spelling."""
        self.sender, self.sender_domain = mailbox, domain

    def set_priority(self, row: int, given: int | None) -> None:
        """Take the priority of the rows; `given` is it in the client's terms, if it is another."""
        self.priority, self.priority_given = row, given

    def rare_options(self) -> Options:
        """Return the options, which most transactions do without."""
        self.options = self.options or Options()
        return self.options

    def set_decisions(self, decide: Callable[[NewMessage], None] | None) -> None:
        """Take what brings the message in line with decisions of hooks."""
        self.decide = decide

    def begin_chunks(self) -> None:
        """Note that content has come with BDAT."""
        self.chunked = True

    def break_chunks(self) -> None:
        """Take no further chunk."""
        self.broken = True

    def add_recipient(self, mailbox: str, domain: str, limit: int, *, hold: bool) -> bool:
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

    def set_recipients(
        self, recipients: dict[tuple[str, str], str], held: list[tuple[str, str]] | None
    ) -> None:
        """Put other recipients in the place of these, and of those in the envelope."""
        self.recipients, self.held = recipients, held
        self.envelope.rcpt_tos = list(recipients.values())

    def take_last(self) -> tuple[tuple[str, str], str]:
        """Remove the last recipient; return its key and mailbox. The envelope keeps it."""
        key, mailbox = self.recipients.popitem()
        if self.held and key in self.held:
            self.held.remove(key)
        return key, mailbox

    def set_dsn(self, key: tuple[str, str], dsn: tuple[str | None, str | None]) -> None:
        """Note NOTIFY and ORCPT of a recipient."""
        self.dsn = self.dsn or {}
        self.dsn[key] = dsn
