"""The errors of pgmta.

::

    PgmtaError
    ├── ConfigError        a configuration file is wrong; stops the start
    ├── AddressError       a mailbox does not follow RFC 5321
    ├── StoreUnavailable   PostgreSQL can't do it now; passes by itself
    │   ├── Undecided      and nobody knows whether it did
    │   │   └── AnswerLost for the connection broke
    │   ├── ServerRefused  the embedded server can't run until an operator mends a folder
    │   └── SchemaMismatch the schema is of another version than this program
    ├── MigrationError     the schema and the migrations do not fit together
    ├── PartitionError     a change of the partitions was refused; nothing was changed
    └── DeliveryError      one SMTP transaction went wrong; becomes an Outcome
"""

from __future__ import annotations

from datetime import datetime

type Backend = tuple[int, datetime]
"""A process of PostgreSQL and when it began: together nobody else's."""


class PgmtaError(Exception):
    """Root of everything that pgmta raises on purpose."""


class ConfigError(PgmtaError):
    """One or more mistakes in a configuration file, one `file:line: key: reason` each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class AddressError(PgmtaError):
    """A path or mailbox is not of the form of RFC 5321, section 4.1.2."""


class StoreUnavailable(PgmtaError):
    """PostgreSQL can't be reached, or can't do it now: it is read-only, full, or ends.

    Nothing was done, unless it is an Undecided.
    """


class Undecided(StoreUnavailable):
    """There was no answer: the statement may be done, now or later."""


class AnswerLost(Undecided):
    """The connection broke before the answer.

    `backend` is the process of the server that was to do it.
    """

    def __init__(self, reason: str, backend: Backend) -> None:
        super().__init__(reason)
        self.backend = backend


class ServerRefused(StoreUnavailable):
    """The embedded PostgreSQL may not run as things stand; the text says what to mend."""


class SchemaMismatch(StoreUnavailable):
    """The schema of the database is of another version than this program; nothing was changed."""


class MigrationError(PgmtaError):
    """An applied migration was changed, or the database is newer than this code."""


class PartitionError(PgmtaError):
    """A partition can't be made, split or dropped as asked; the database is as it was before."""


class DeliveryError(PgmtaError):
    """A failed SMTP dialogue, or one that never started.

    `code` is the three-digit reply code (RFC 5321, section 4.2), or 0 where no reply was had;
    `enhanced` the status code of RFC 3463; `command` what was under way; `line` the reply's
    text. `unknown` marks a connection that ended after the final dot and before its reply.
    """

    def __init__(
        self,
        line: str,
        *,
        permanent: bool = False,
        code: int = 0,
        enhanced: str = "",
        command: str = "",
        unknown: bool = False,
    ) -> None:
        super().__init__(line)
        self.line = line
        self.permanent = permanent
        self.code = code
        self.enhanced = enhanced
        self.command = command
        self.unknown = unknown

    @property
    def passing(self) -> bool:
        """Whether the same mail may simply be tried on another connection at once."""
        return not self.permanent and not self.unknown and self.command != "lease"
