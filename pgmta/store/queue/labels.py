"""The labels of mail by which claims leave out the mail of some routes, as SQL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pgmta.model import OTHER_MAIL, Selector


class Labels:
    """The label of a row, by the first of some selectors that takes it.

    Without selectors there are no labels, and all SQL is empty. Rows that no selector takes have
    the label of other mail. `busy` of a claim has the labels that it leaves out, beside domains.
    """

    def __init__(self, selectors: Sequence[Selector] = ()) -> None:
        self.params: dict[str, Any] = {}
        """The parameters of the SQL."""
        cases = [self._case(number, each) for number, each in enumerate(selectors)]
        other = f"'{OTHER_MAIL} ' || domain"
        self.expression = f"(CASE {' '.join(cases)} ELSE {other} END)" if cases else ""
        """The label of a row."""

    def parts(self) -> dict[str, str]:
        """Return what statements of claim.sql have in braces for it."""
        if not self.expression:
            return dict.fromkeys(("label_of_row", "label", "open", "where_open", "open_row"), "")
        busy = "<> ALL (%(busy)b::text[])"
        return {
            "label_of_row": f", {self.expression} AS label",
            "label": ", label",
            "open": f" AND label {busy}",
            "where_open": f" WHERE label {busy}",
            "open_row": f" AND {self.expression} {busy}",
        }

    def _case(self, number: int, selector: Selector) -> str:
        conditions = []
        for column, words in (
            ("domain", selector.domains),
            ("sender_domain", selector.sender_domains),
        ):
            if words is not None and "*" not in words:
                conditions.append(self._domains(column, words, f"{column}{number}"))
        if selector.senders is not None:
            senders = self._param(f"senders{number}", selector.senders)
            conditions.append(f"lower(sender) = ANY ({senders}::text[])")
        if selector.tenants is not None:
            tenants = self._param(f"tenants{number}", selector.tenants)
            conditions.append(f"tenant = ANY ({tenants}::text[])")
        for place, (key, values) in enumerate(selector.metadata):
            word = self._param(f"key{number}_{place}", key)
            texts = self._param(f"values{number}_{place}", values)
            conditions.append(f"metadata ->> {word}::text = ANY ({texts}::text[])")
        label = f"{self._param(f'label{number}', selector.label)}::text"
        if selector.by_domain:
            label += " || ' ' || domain"
        return f"WHEN {' AND '.join(conditions) or 'true'} THEN {label}"

    def _domains(self, column: str, patterns: Iterable[str], name: str) -> str:
        """Return the condition that a column has one of the domains, or is below `*.domain`."""
        exact = [pattern for pattern in patterns if not pattern.startswith("*.")]
        ends = [pattern[1:] for pattern in patterns if pattern.startswith("*.")]
        found = []
        if exact:
            found.append(f"{column} = ANY ({self._param(name, exact)}::text[])")
        if ends:
            like = ["%" + end.replace("_", r"\_") for end in ends]
            found.append(f"{column} LIKE ANY ({self._param(f'{name}_below', like)}::text[])")
        return f"({' OR '.join(found)})"

    def _param(self, name: str, value: str | Iterable[str]) -> str:
        """Keep a parameter, and return its place in the SQL."""
        self.params[name] = value if isinstance(value, str) else sorted(value)
        return f"%({name})b"
