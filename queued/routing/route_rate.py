"""The rate of a route: its budgets, and which of them mail uses (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from pgmta.config.rates import rate_text
from pgmta.mail.address import domain_of
from pgmta.mail.metadata import BUDGET, values_of
from pgmta.model import Rated
from pgmta.store.records.reservations import Budget
from queued.config import ShapingRoute

_METADATA = "metadata."
_KEY = re.compile(r"[A-Za-z0-9._:@-]+")  # as the table of budgets has them
_LONGEST = 100


@dataclass(frozen=True, slots=True)
class RouteRate:
    """At most `rate` transactions a second for each value of a field, over all workers."""

    rated: Rated
    rate: float
    burst: float

    @classmethod
    def of(cls, entry: ShapingRoute, *, by_domain: bool) -> RouteRate | None:
        """Return that of a route of the file; `by_domain`: each domain is a destination."""
        if entry.rate is None or entry.name is None:  # which check refuses
            return None
        by = {"route": "", "destination": "domain" if by_domain else ""}.get(entry.per, entry.per)
        return cls(Rated(entry.mail, entry.name, by), entry.rate, entry.burst)

    @property
    def shown(self) -> str:
        """The rate in words."""
        burst = f", {self.burst:g} at once" if self.burst > 1 else ""
        by = self.rated.by
        return f"{rate_text(self.rate)}{burst}{f' for each {by}' if by else ''}"

    def budget(self, mail: Any) -> Budget:
        """Return the budget of mail with the fields of a row."""
        value = self._value(mail)
        return Budget(
            budget_key(self.rated.name, value), self.rate, self.burst, self.rated.label(value)
        )

    def _value(self, mail: Any) -> str:
        by = self.rated.by
        if by == "sender_domain":
            return domain_of(mail.sender)
        if by.startswith(_METADATA):
            value = values_of(mail.metadata or "{}").get(by.removeprefix(_METADATA))
            text = "" if value is None else str(value)
            return text.lower() if isinstance(value, bool) else text
        return str(getattr(mail, by)) if by else ""


def budgets_of(rates: Sequence[RouteRate], mail: Any) -> list[Budget]:
    """Return the budgets of a row whose route has these; that of its metadata comes last."""
    found = [rate.budget(mail) for rate in rates]
    if mail.metadata and BUDGET in mail.metadata:
        key = values_of(mail.metadata).get("_budget")
        if isinstance(key, str):  # others are made by hand
            found.append(Budget(key))
    return found


def budget_key(route: str, value: str) -> str:
    """Return the key of a budget; a value that no key may have has its hash there."""
    key = f"route:{route}:{value}" if value else f"route:{route}"
    if len(key) <= _LONGEST and (not value or _KEY.fullmatch(value)):
        return key
    return f"route:{route}:{sha256(value.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"
