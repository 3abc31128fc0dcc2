"""Say why the rows of a message will end before their next attempt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pgmta.postgres.operator import OperatorConnection
from pgmta.states import WAITING
from pgmta.store.queries import feature_queries
from queued.cli.options.explainer import Explainer, Row

if TYPE_CHECKING:
    from queued.routing.routes import Routes


async def _add_suppressions(
    db: OperatorConnection, rows: Sequence[Row], routes: Routes | None
) -> None:
    """Give each row `suppressed`: why its recipient gets no mail, or None."""
    if not rows:
        return
    statement = feature_queries("suppressions")["of_message"]
    found = await db.rows(statement, {"message": rows[0]["message_id"]})
    words = {each["id"]: each["words"] for each in found}
    for row in rows:
        row["suppressed"] = words.get(row["id"]) if row["status"] in WAITING else None


def _lines(row: Row) -> Iterator[tuple[str, str]]:
    if words := row["suppressed"]:
        yield "suppressed", f"{words.removeprefix('suppressed ')}; it ends before its next attempt"


EXPLAINER = Explainer(add_facts=_add_suppressions, reason=lambda row: "", lines=_lines)
