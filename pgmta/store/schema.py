"""The version of the database's schema, compared with the one that this program needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import version

from pgmta.errors import SchemaMismatch
from pgmta.logs import get
from pgmta.shipped import shipped

log = get("schema")


@cache
def migrations() -> dict[str, str]:
    """Return the text of every migration by file name, in the order of their application."""
    files = sorted((shipped("sql") / "migrations").glob("*.sql"))
    return {file.name: file.read_text(encoding="utf-8") for file in files}


def program_version() -> str:
    """Return the version of this program."""
    return version("pgmta")


def mismatch(known: Sequence[str], there: set[str]) -> str:
    """Return why a program that knows some migrations does not fit a database; '' if it fits."""
    if unknown := sorted(there.difference(known)):
        return (
            f"the database has migration {unknown[-1]}, this program ends with {known[-1]}: "
            "start the version that brought it"
        )
    if missing := sorted(set(known) - there):
        return f"the database lacks migration {missing[0]}: run `queuectl migrate`"
    return ""


class Schema:
    """Remembers which schema the database has. A mismatch stops claims, changes and intake.

    Outcomes are written nevertheless: a delivery is a fact under any schema.
    """

    def __init__(self) -> None:
        self._known = list(migrations())
        self.problem = ""
        """Why this program and the database do not fit together; '' if they do."""

    @property
    def name(self) -> str:
        """The last migration that the program knows."""
        return self._known[-1]

    def learn(self, names: Iterable[str]) -> None:
        """Note which migrations the database has; a change is logged."""
        problem = mismatch(self._known, set(names))
        if problem and problem != self.problem:
            log.error("the schema is of another version, no mail is taken", reason=problem)
        elif self.problem and not problem:
            log.info("the schema fits again")
        self.problem = problem

    def require(self) -> None:
        """Raise SchemaMismatch if the schema, as last learned, does not fit."""
        if self.problem:
            raise SchemaMismatch(self.problem)
