"""Say for which budget the rows of a message wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pgmta.command import instant
from pgmta.postgres.operator import OperatorConnection
from pgmta.states import WAITING, Status
from queued.explaining.explainer import Explainer, Row, mail_of

from .budget_table import BudgetTable
from .rate import LOST, rate_text
from .route_rate import budgets_of

if TYPE_CHECKING:
    from queued.routing.routes import Routes


async def _add_budgets(db: OperatorConnection, rows: Sequence[Row], routes: Routes | None) -> None:
    """Give each row that is tried its `budgets`, if the routes are known."""
    if routes is None:
        return
    for row in rows:
        if row["status"] not in (*WAITING, Status.SENDING):
            continue
        mail = mail_of(row)
        keys = [budget.key for budget in budgets_of(routes.limits_of(mail), mail)]
        if keys:
            found = await BudgetTable(db).rows(keys)
            row["budgets"] = [entry for entry in found if entry["key"] in keys]


def _reason(row: Row) -> str:
    """Return which budget has no time for a row that is due."""
    late = max(row.get("budgets", ()), key=lambda entry: entry["next_at"], default=None)
    due = row["next_attempt"] <= datetime.now(UTC) and not row["rules"]
    if not late or not due or late["free"]:
        return ""
    at = f"{rate_text(late['rate'])}, and its next time is {instant(late['next_at'])}"
    return f"a time of budget {late['key']}: it has {at}"


def _lines(row: Row) -> Iterator[tuple[str, str]]:
    for budget in row.get("budgets", ()):
        free = "now" if budget["free"] else instant(budget["next_at"])
        yield "budget", f"{budget['key']}: {rate_text(budget['rate'])}, next time {free}"
        if share := budget["lost_share"]:
            yield "", f"it loses {share:.0%} of its times: {LOST[budget['lost_why']]}"


EXPLAINER = Explainer(add_facts=_add_budgets, reason=_reason, lines=_lines)
