"""The labels of mail by which claims leave out the mail of some routes, as SQL."""

from __future__ import annotations

from collections.abc import Sequence

from pgmta.model import OTHER_MAIL, Labelled
from pgmta.selection import quoted


class Labels:
    """The label of a row, by the first selection that has it.

    Without selections there are no labels, and all SQL is empty. Rows that are in none have the
    label of other mail. `busy` of a claim has the labels that it leaves out, beside domains.
    """

    def __init__(self, mail: Sequence[Labelled] = ()) -> None:
        cases = [
            f"WHEN {each.selection.condition()} THEN "
            + quoted(f"{each.label} " if each.by_domain else each.label)
            + (" || domain" if each.by_domain else "")
            for each in mail
        ]
        other = f"'{OTHER_MAIL} ' || domain"
        self.expression = f"(CASE {' '.join(cases)} ELSE {other} END)" if cases else ""
        """The label of a row, for a statement without parameters."""

    def parts(self) -> dict[str, str]:
        """Return what statements of claim.sql have in braces for it."""
        if not self.expression:
            return dict.fromkeys(("label_of_row", "label", "open", "where_open", "open_row"), "")
        busy = "<> ALL (%(busy)b::text[])"
        label = self.expression.replace("%", "%%")
        return {
            "label_of_row": f", {label} AS label",
            "label": ", label",
            "open": f" AND label {busy}",
            "where_open": f" WHERE label {busy}",
            "open_row": f" AND {label} {busy}",
        }
