"""The labels of mail by which claims leave out the mail of some routes, as SQL."""

from __future__ import annotations

from collections.abc import Sequence

from pgmta.model import OTHER_MAIL, Labelled, NamedHop, RouteLimit
from pgmta.selection import quoted


class Labels:
    """The label of a row, by the first selection that has it.

    Without selections there are no labels, and all SQL is empty. Rows that are in none have the
    label of other mail. `busy` of a claim has the labels that it leaves out, beside domains. Mail
    with a limit has another label for that, likewise.
    """

    def __init__(self, mail: Sequence[Labelled] = (), limits: Sequence[RouteLimit] = ()) -> None:
        cases = [
            f"WHEN {each.selection.condition()} THEN "
            + quoted(f"{each.label} " if each.by_domain else each.label)
            + (" || domain" if each.by_domain else "")
            for each in mail
        ]
        other = f"'{OTHER_MAIL} ' || domain"
        self.expression = f"(CASE {' '.join(cases)} ELSE {other} END)" if cases else ""
        """The label of a row, for a statement without parameters."""
        cases = [
            f"WHEN {each.selection.condition()} THEN "
            + (quoted(each.label("")) if each.name else "''")
            + (f" || {_field(each.by)}" if each.by else "")
            for each in limits
        ]
        self.limit = f"(CASE {' '.join(cases)} ELSE '' END)" if cases else ""
        """The label of a row by its limit; '' if it has none."""

    def parts(self) -> dict[str, str]:
        """Return what statements of claim.sql have in braces for it."""
        both = {"label": self.expression, "limit_label": self.limit}
        labels = {name: sql.replace("%", "%%") for name, sql in both.items() if sql}
        busy = "<> ALL (%(busy)b::text[])"
        free = " AND ".join(f"{name} {busy}" for name in labels)
        return {
            "label_of_row": "".join(f", {sql} AS {name}" for name, sql in labels.items()),
            "label": "".join(f", {name}" for name in labels),
            "open": f" AND {free}" if free else "",
            "where_open": f" WHERE {free}" if free else "",
            "open_row": "".join(f" AND {sql} {busy}" for sql in labels.values()),
        }


def _field(by: str) -> str:
    """Return the SQL of a field of a row as text."""
    key = by.removeprefix("metadata.")
    return by if key == by else f"coalesce(metadata ->> {quoted(key)}, '')"


def next_hop_of(hops: Sequence[NamedHop]) -> str:
    """Return the SQL of the next hop of a row, for a statement with parameters.

    The first of `hops` that has a row names it; a row of none has its domain.
    """
    cases = "".join(
        f" WHEN {each.selection.condition()} THEN {quoted(each.name) if each.name else 'domain'}"
        for each in hops
    )
    return f"(CASE{cases} ELSE domain END)".replace("%", "%%") if cases else "domain"
