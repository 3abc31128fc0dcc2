"""The errors of pgmta.

::

    PgmtaError
    ├── ConfigError        a configuration file is wrong; stops the start
    │   └── FormerDatabase the database that it names has the schema of another commit
    ├── FeatureError       the features in use do not fit together
    ├── AddressError       a mailbox does not follow RFC 5321
    ├── TemplateError      a template is refused
    ├── SubmissionError    an argument of a mail is refused; nothing of that mail was stored
    ├── NotBegun           the client was closed before the call began
    ├── StoreUnavailable   PostgreSQL can't execute it now; this passes by itself
    │   ├── Undecided      and it is open whether PostgreSQL executed it
    │   │   └── AnswerLost because the connection broke
    │   ├── LoginRefused   PostgreSQL refuses the login, or the login lacks its role
    │   ├── ServerRefused  the embedded server can't run until an operator repairs a folder
    │   └── SchemaMismatch the schema is of another version than this program
    ├── MigrationError     the schema and the migrations do not fit together
    ├── PartitionError     a change of the partitions was refused; nothing was changed
    └── DeliveryError      an SMTP transaction failed; it becomes an Outcome
        └── NoHostLeft     no host of the destination is left that was not tried
"""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from enum import StrEnum

type Backend = tuple[int, datetime]
"""The number of a PostgreSQL process and its start time, which together identify it."""


class PgmtaError(Exception):
    """Root of every error that pgmta raises on purpose."""


class ConfigError(PgmtaError):
    """One or more mistakes in a configuration file, one `file:line: key: reason` each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class FormerDatabase(ConfigError):
    """The database has the schema of another commit. Nothing works on it."""

    def __init__(self) -> None:
        super().__init__([
            "the database has the schema of another commit of pgmta, and nothing migrates it "
            "before the first release: deliver its mail with the commit that made it, then give "
            "pgmta a new database"
        ])  # fmt: skip


class FeatureError(PgmtaError):
    """A feature lacks another one that it needs, or gives a name that is given already."""


class AddressError(PgmtaError):
    """A path or mailbox is not of the form of RFC 5321, section 4.1.2."""


class TemplateError(PgmtaError):
    """A template is refused.

    `part` is the text with the mistake: sender, from, reply_to, subject, headers.NAME, body or
    html; '' for the template as a whole. `line` is the line of that text, from 1 on.
    """

    def __init__(self, part: str, line: int, reason: str, hint: str = "") -> None:
        self.part, self.line, self.reason, self.hint = part, line, reason, hint
        where = f"{part}, line {line}: " if part else ""
        super().__init__(f"{where}{self.advice}")

    @property
    def advice(self) -> str:
        """The reason, and the hint if there is one."""
        return f"{self.reason}; {self.hint}" if self.hint else self.reason


class SubmissionError(PgmtaError):
    """An argument of a mail is refused, and nothing of that mail was stored.

    `argument` is its name, or '' if the mail as a whole is refused. `reason` says why, and `detail`
    and `hint` say more, or are ''. `sqlstate` is '' if PostgreSQL did not see the mail.
    """

    def __init__(
        self, argument: str, reason: str, detail: str = "", hint: str = "", sqlstate: str = ""
    ) -> None:
        super().__init__(argument, reason, detail, hint, sqlstate)  # pickle makes the copy of these
        self.argument, self.reason = argument, reason
        self.detail, self.hint, self.sqlstate = detail, hint, sqlstate

    def __str__(self) -> str:
        first = f"{self.argument}: {self.reason}" if self.argument else self.reason
        return ". ".join(text.rstrip(".") for text in (first, self.detail, self.hint) if text)


class NotBegun(PgmtaError):
    """The client was closed before the call began; nothing of its mail was stored."""


class StoreUnavailable(PgmtaError):
    """PostgreSQL can't be reached, or can't execute it now: it is read-only, full, or ends.

    Nothing was changed, unless the error is an Undecided.
    """


class Blocked(StoreUnavailable):
    """A statement took too long, most likely because another session has a lock; the text names it.

    PostgreSQL itself runs.
    """


class Undecided(StoreUnavailable):
    """No answer came: the statement may have been executed, or may be later."""


class AnswerLost(Undecided):
    """The connection broke before the answer.

    `backend` is the PostgreSQL process that had the statement.
    """

    def __init__(self, reason: str, backend: Backend) -> None:
        super().__init__(reason)
        self.backend = backend


class LoginRefused(StoreUnavailable):
    """PostgreSQL refuses the login, the login lacks its role, or a pooler is in the way.

    An operator has to act.
    """


class ServerRefused(StoreUnavailable):
    """The embedded PostgreSQL can't run until an operator acts; the text names the repair."""


class SchemaMismatch(StoreUnavailable):
    """The schema of the database is of another version than this program; nothing was changed."""


class MigrationError(PgmtaError):
    """An applied migration was changed, or the database is newer than this code."""


class PartitionError(PgmtaError):
    """A partition can't be made, split or dropped as asked; the database is as it was before."""


class Stage(StrEnum):
    """The step of a delivery in which a reply or an error came, as `attempts.command` has it."""

    NONE = ""  # before the first step, or by an error of this program
    MX = "MX"  # the mail exchangers of the domain are looked up
    ADDRESS = "DNS"  # the addresses of a host are looked up
    CONNECT = "connect"
    GREETING = "greeting"
    EHLO = "EHLO"
    HELO = "HELO"
    TLS = "STARTTLS"  # the command, the handshake, or a policy that asks for TLS
    LHLO = "LHLO"  # the EHLO of LMTP (RFC 2033)
    AUTH = "AUTH"
    MAIL = "MAIL"
    RCPT = "RCPT"
    DATA = "DATA"
    CONTENT = "content"  # the content is read from the database
    LEASE = "lease"  # the lease is checked before the final dot
    END_OF_DATA = "end of data"
    RSET = "RSET"


@dataclass(eq=False)
class DeliveryError(PgmtaError):
    """A failed SMTP dialogue, or one that never started.

    `stage` is the step that failed, `line` the reply's text or the reason, and `code` the reply
    code (RFC 5321, section 4.2), 0 if no reply came. `unknown` marks a connection that ended after
    the final dot and before its reply. `retry_elsewhere` marks an attempt that had no effect and
    says nothing about the mail: the same mail may be sent over another connection at once. `hold`
    marks mail that an operator has to mend, so that it goes on hold whatever its `on_failed` says.
    `host` and `address` are those that the error concerns, as outcomes have them.
    `facts` are those of the connection that failed, for the log of attempts.
    """

    line: str
    stage: Stage = Stage.NONE
    _: KW_ONLY
    code: int = 0
    permanent: bool = False
    unknown: bool = False
    retry_elsewhere: bool = False
    hold: bool = False
    host: str = ""
    address: str = ""
    facts: object = field(default=None, init=False)

    def __str__(self) -> str:
        return self.line


class NoHostLeft(DeliveryError):
    """Every host that may be tried for a destination was tried."""


def system_reason(error: OSError) -> str:
    """Return the reason of an error as the system has it: asyncio says `Connect call failed`."""
    number = error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or str(error)
