"""The schema of the database: its text, and its version compared with the one that is needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import version

from pgmta.errors import FormerDatabase, SchemaMismatch
from pgmta.features import features, folder
from pgmta.logs import get
from pgmta.postgres.fit_session import baseline, refuse_former
from pgmta.shipped import shipped

log = get("schema")

TOPICS = (
    "queue", "timelines", "messages", "schedules", "submit", "templates", "attachments",
    "submit_mail", "submit_mails", "mail_grammar", "mail_objects", "arguments", "days",
    "attempts", "transcripts", "reports", "status", "overview", "horizon", "queue_counts",
    "conditions", "changes", "rules", "daemons", "accounts", "dkim", "tls", "forgetting", "expiry",
)  # fmt: skip
"""The files of `sql/schema` whose tables come before those of features, in their order."""

ROLES_FILE = "roles"
"""The file of `sql/schema` that comes last, because it gives rights on all objects."""


@cache
def topics() -> dict[str, str]:
    """Return the text of the schema by topic, in the order in which a new database runs them.

    A topic of a feature has the name `FEATURE/FILE.sql`.
    """
    core = shipped("sql") / "schema"
    files = {name: core / f"{name}.sql" for name in TOPICS}
    files |= {
        f"{name}/{file}": folder(name) / file
        for name, feature in features().items()
        for file in feature.schema
    }
    files[ROLES_FILE] = core / f"{ROLES_FILE}.sql"
    return {name: file.read_text(encoding="utf-8") for name, file in files.items()}


@cache
def migrations() -> dict[str, str]:
    """Return the text of every migration by name, in the order of their application.

    The first one is the whole schema. Files of `sql/migrations` follow after the first
    release; until then there is no such folder.
    """
    files = sorted((shipped("sql") / "migrations").glob("*.sql"))
    later = {file.name: file.read_text(encoding="utf-8") for file in files}
    return {baseline(): "\n".join(topics().values())} | later


def program_version() -> str:
    """Return the version of this program."""
    return version("pgmta")


def mismatch(known: Sequence[str], there: set[str]) -> str:
    """Return why a program that knows some migrations does not fit a database; '' if it fits.

    Raises FormerDatabase.
    """
    refuse_former(there)
    if unknown := sorted(there.difference(known)):
        return (
            f"the database has migration {unknown[-1]}, this program ends with {known[-1]}: "
            "start the version that brought it"
        )
    if missing := sorted(set(known) - there):
        return f"the database lacks migration {missing[0]}: run `queuectl database migrate`"
    return ""


class Schema:
    """Remembers which schema the database has. A mismatch stops claims, changes and intake.

    Outcomes are written nevertheless: a delivery is a fact under any schema.
    """

    def __init__(self) -> None:
        self.known = list(migrations())
        """The migrations that the program knows."""
        self.problem = ""
        """Why this program and the database do not fit together; '' if they do."""

    @property
    def name(self) -> str:
        """The last migration that the program knows."""
        return self.known[-1]

    def learn(self, names: Iterable[str]) -> None:
        """Note which migrations the database has; a change is logged."""
        try:
            problem = mismatch(self.known, set(names))
        except FormerDatabase as error:  # with which the heartbeat ends the process
            self.problem = str(error)
            return
        if problem and problem != self.problem:
            log.error("the schema is of another version, no mail is taken", reason=problem)
        elif self.problem and not problem:
            log.info("the schema fits again")
        self.problem = problem

    def require(self) -> None:
        """Raise SchemaMismatch if the schema, as last learned, does not fit."""
        if self.problem:
            raise SchemaMismatch(self.problem)
