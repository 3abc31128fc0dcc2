"""Whether the database has the schema that this program was written for."""

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
    """Text of every migration by file name, in the order in which they are applied."""
    files = sorted((shipped("sql") / "migrations").glob("*.sql"))
    return {file.name: file.read_text(encoding="utf-8") for file in files}


def program_version() -> str:
    """Version of this program."""
    return version("pgmta")


def mismatch(known: Sequence[str], there: set[str]) -> str:
    """Why a program with these migrations does not fit a database with those; empty if it does."""
    if unknown := sorted(there.difference(known)):
        return (
            f"the database has migration {unknown[-1]}, this program ends with {known[-1]}: "
            "start the version that brought it"
        )
    if missing := sorted(set(known) - there):
        return f"the database lacks migration {missing[0]}: run `queuectl migrate`"
    return ""


class Schema:
    """What one process knows of the schema. A mismatch stops claims, sweeps and intake.

    Outcomes are written all the same: what has been delivered is a fact under any schema.
    """

    def __init__(self) -> None:
        self._known = list(migrations())
        self.problem = ""
        """Why this program and the database do not fit together; empty where they do."""

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
        """Raise SchemaMismatch where the schema, as last learned, does not fit."""
        if self.problem:
            raise SchemaMismatch(self.problem)
