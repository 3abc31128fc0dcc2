"""Say why the rows of a message will end before their next attempt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pgmta.postgres.operator import OperatorConnection
from pgmta.states import WAITING, Status
from pgmta.store.queries import feature_queries
from queued.explaining.explainer import Explainer, Row

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
        ends = row["status"] in (*WAITING, Status.HOLD)
        row["suppressed"] = words.get(row["id"]) if ends else None


def _lines(row: Row) -> Iterator[tuple[str, str]]:
    if words := row["suppressed"]:
        end = "once it is released" if row["status"] == Status.HOLD else "before its next attempt"
        yield "suppressed", f"{words.removeprefix('suppressed ')}; it ends {end}"


EXPLAINER = Explainer(add_facts=_add_suppressions, reason=lambda row: "", lines=_lines)
