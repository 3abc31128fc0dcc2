"""Say which suspension the rows of a message wait for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pgmta.command import instant, shorten
from pgmta.postgres.operator import OperatorConnection
from pgmta.states import WAITING
from pgmta.store.changes.overview import Overview
from pgmta.store.queries import feature_queries
from pgmta_features.suspensions.orders import SuspensionOrders
from queued.explaining.explainer import Ask, Explainer, Row, mail_of

if TYPE_CHECKING:
    from queued.routing.routes import Routes

_MAX_SHOWN_CHARACTERS = 60  # of the value of a suspension


async def _add_suspensions(
    db: OperatorConnection, rows: Sequence[Row], routes: Routes | None
) -> None:
    """Give each row its `suspension`, or None.

    It is the one for which the row was put off. Else it is one that the next attempt will meet.
    Without `routes` a next hop is not looked for.
    """
    for row in rows:
        row["suspension"] = None
    if not rows:
        return
    number = rows[0]["message_id"]
    orders = SuspensionOrders(db)
    known = {each["id"]: each for each in await orders.suspensions()}
    marks = await orders.marks(number)
    if not known:
        return
    meeting = [each for each in known.values() if each["condition"]]
    says = await Overview(db).verdict(number, [each["condition"] for each in meeting])
    for row in rows:
        if row["status"] not in WAITING:
            continue
        found = known.get(marks.get(row["id"], 0))
        for each, verdict in zip(meeting, says, strict=True):
            found = found or (each if row["id"] in verdict else None)
        for each in known.values():
            found = found or (each if _leads(row, each, routes) else None)
        if found:
            row["suspension"] = {key: found[key] for key in _KEYS}


_KEYS = ("id", "kind", "value", "reason", "tag", "created_by", "created_at", "until")


def _leads(row: Row, each: dict[str, Any], routes: Routes | None) -> bool:
    if each["kind"] == "mx":
        return row["domain"] in each["domains"]
    if each["kind"] != "next-hop" or routes is None:
        return False
    from pgmta_features.suspensions.suspended_mail import leads_to

    return leads_to(routes.find(mail_of(row)).destination, each["value"])


def _reason(row: Row) -> str:
    """Return for which suspension a row waits, in one phrase."""
    each = row["suspension"]
    if not each:
        return ""
    tag = f", tag {each['tag']}" if each["tag"] else ""
    key = f"{each['kind']} {shorten(' '.join(each['value'].split()), _MAX_SHOWN_CHARACTERS)}"
    return f"the end of suspension {each['id']} ({key}{tag}): {each['reason']}"


def _lines(row: Row) -> Iterator[tuple[str, str]]:
    """Yield when the suspension ends, and who made it."""
    if each := row["suspension"]:
        by = f"`queuectl suspend --end {each['id']}`"
        until = f"until {instant(each['until'])} or {by}" if each["until"] else f"until {by}"
        yield "suspended", f"{until}; by {each['created_by']}"


async def _reasons_for_keys(ask: Ask, rows: Sequence[int]) -> dict[int, str]:
    found = await ask(feature_queries("suspensions")["suspended_for"], {"rows": list(rows)})
    return {each["row_id"]: _reason_for_key(each) for each in found}


def _reason_for_key(each: Row) -> str:
    about = "" if each["value"] is None else f" of {each['kind']} {each['value']}"
    end = f" at {instant(each['until'])}" if each["until"] else ", by an operator"
    return f"the end of a suspension{about}{end}"


EXPLAINER = Explainer(
    add_facts=_add_suspensions, reason=_reason, lines=_lines, in_show=True,
    reasons_for_keys=_reasons_for_keys,
)  # fmt: skip
