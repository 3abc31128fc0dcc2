"""Load the named statements of `sql/queries/*.sql`."""

from __future__ import annotations

import re
from functools import cache

from pgmta.shipped import shipped

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@cache
def queries(name: str) -> dict[str, str]:
    """Return the statements of `sql/queries/NAME.sql` by their names."""
    text = (shipped("sql") / "queries" / f"{name}.sql").read_text(encoding="utf-8")
    parts = _NAME.split(text)[1:]
    return {key: body.strip() for key, body in zip(parts[::2], parts[1::2], strict=True)}


def escaped(condition: str) -> str:
    """A condition as it stands in a statement that has parameters."""
    return "(\n" + condition.replace("%", "%%") + "\n)"
