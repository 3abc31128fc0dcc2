"""Say of rows under way what their connections wait for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from pgmta.command import age
from pgmta.errors import PgmtaError
from pgmta.postgres.operator import OperatorConnection
from pgmta.states import Status
from pgmta_features.inquiries.asking import ask
from pgmta_features.inquiries.store import INSPECT
from queued.explaining.explainer import Explainer, Row
from queued.routing.routes import Routes


async def _add_connections(
    db: OperatorConnection, rows: Sequence[Row], routes: Routes | None
) -> None:
    """Give each row under way its `connections`, if its process answers.

    A login without pgmta_operator may not ask the processes.
    """
    now = datetime.now(UTC)
    for row in rows:
        if row["status"] != Status.SENDING or (row["lease_until"] or now) <= now:
            continue
        try:
            answers = (await ask(db, INSPECT, row["domain"])).answers.values()
        except PgmtaError:
            return
        found = [
            each
            for answer in answers
            for destination in answer["destinations"]
            for each in destination["connections"]
        ]
        own = [each for each in found if row["id"] in each["row_ids"]]
        row["connections"] = own or [each for each in found if not each["message_id"]]


def _reason(row: Row) -> str:
    for each in row.get("connections", ()):
        return (
            f"{row['waits_for']}: {each['phase']} of {each['host']} for {age(each['seconds'])} "
            f"(`queuectl inspect --disconnect {each['id']}` ends it)"
        )
    return ""


EXPLAINER = Explainer(add_facts=_add_connections, reason=_reason)
