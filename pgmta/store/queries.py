"""The named statements of the core and of features, and the one way to put text into them."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from pathlib import Path

from psycopg import sql

from pgmta.features import folder
from pgmta.shipped import shipped

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_BRACES = re.compile(rb"\{(\w+)\}")
_MAX_FILLED = 256  # statements in memory: a process has one per condition and action


class Statement(bytes):
    """One statement, in the form that psycopg takes for SQL from outside the code.

    Words in braces mark the places for a condition or for a part of a statement. Run a statement
    with a place with parameters, `{}` if it has none, because a condition has `%` doubled.
    """

    __slots__ = ()

    def fill(self, **parts: str | bytes) -> Statement:
        """Return the statement with SQL in place of some words in braces.

        The parts are SQL of ours, other statements or conditions that `bracketed` returned. Words
        in braces inside a part are not replaced, nor are those that `parts` does not name.
        """
        return _filled(self, tuple(parts.items()))

    def format(self, **parts: sql.Composable) -> sql.Composed:
        """Return the statement with names and literals in its braces, to be run without parameters.

        Raises KeyError if a word in braces has no part.
        """
        return sql.SQL(self.decode()).format(**parts)


@lru_cache(maxsize=_MAX_FILLED)
def _filled(statement: bytes, parts: tuple[tuple[str, str | bytes], ...]) -> Statement:
    texts = {
        name.encode(): text.encode() if isinstance(text, str) else text for name, text in parts
    }
    # in one pass, because a condition may itself contain such a word in braces
    return Statement(_BRACES.sub(lambda match: texts.get(match[1], match[0]), statement))


@cache
def queries(name: str) -> dict[str, Statement]:
    """Return the statements of `sql/queries/NAME.sql` by their names."""
    return _read(shipped("sql") / "queries" / f"{name}.sql")


@cache
def feature_queries(feature: str) -> dict[str, Statement]:
    """Return the statements of `pgmta_features/FEATURE/queries.sql` by their names."""
    return _read(folder(feature) / "queries.sql")


def _read(file: Path) -> dict[str, Statement]:
    parts = _NAME.split(file.read_text(encoding="utf-8"))[1:]
    return {
        key: Statement(body.strip().encode())
        for key, body in zip(parts[::2], parts[1::2], strict=True)
    }


def bracketed(condition: str) -> str:
    """Return an expression in brackets, for a statement that is run with parameters.

    The line ends keep a comment inside. Each `%` is doubled, because psycopg halves them.
    """
    return "(\n" + condition.replace("%", "%%") + "\n)"
