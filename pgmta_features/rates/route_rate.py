"""The rate of a route: its budgets, and which of them mail uses (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from pgmta.mail.address import domain_of
from pgmta.mail.metadata import values_of
from pgmta.model import RouteLimit
from queued.config import ShownLimit

from .rate import rate_text
from .reservations import Budget

BUDGET = '"_budget"'
"""Is in the metadata of a row that waits for a time of a budget."""

_METADATA = "metadata."
_KEY = re.compile(r"[A-Za-z0-9._:@-]+")  # as the table of budgets has them
_MAX_KEY_CHARACTERS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRate(RouteLimit):
    """At most `rate` transactions a second for each value of a field, over all workers."""

    route: str
    rate: float
    burst: float

    @property
    def shown(self) -> str:
        """The rate in words."""
        burst = f", {self.burst:g} at once" if self.burst > 1 else ""
        return f"{rate_text(self.rate)}{burst}{f' for each {self.by}' if self.by else ''}"

    def budget(self, mail: Any) -> Budget:
        """Return the budget of mail with the fields of a row."""
        value = self._value(mail)
        return Budget(budget_key(self.route, value), self.rate, self.burst, self.label(value))

    def _value(self, mail: Any) -> str:
        by = self.by
        if by == "sender_domain":
            return domain_of(mail.sender)
        if by.startswith(_METADATA):
            value = values_of(mail.metadata or "{}").get(by.removeprefix(_METADATA))
            text = "" if value is None else str(value)
            return text.lower() if isinstance(value, bool) else text
        return str(getattr(mail, by)) if by else ""


def budgets_of(limits: Sequence[RouteLimit], mail: Any) -> tuple[Budget, ...]:
    """Return the budgets of a row whose route has these; that of its metadata comes last."""
    found = [each.budget(mail) for each in limits if isinstance(each, RouteRate)]
    if mail.metadata and BUDGET in mail.metadata:
        key = values_of(mail.metadata).get("_budget")
        if isinstance(key, str):  # metadata that was inserted by hand may have another value
            found.append(Budget(key))
    return tuple(found)


def budget_key(route: str, value: str) -> str:
    """Return the key of a budget; a value that no key may have has its hash there."""
    key = f"route:{route}:{value}" if value else f"route:{route}"
    if len(key) <= _MAX_KEY_CHARACTERS and (not value or _KEY.fullmatch(value)):
        return key
    return f"route:{route}:{sha256(value.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


def _rate(limits: Sequence[RouteLimit]) -> RouteRate | None:
    return next((each for each in limits if isinstance(each, RouteRate)), None)


def _text(limits: Sequence[RouteLimit]) -> str | None:
    return rate.shown if (rate := _rate(limits)) else None


def _facts(limits: Sequence[RouteLimit]) -> dict[str, Any]:
    rate = _rate(limits)
    return {
        "rate": rate.rate if rate else None,
        "burst": rate.burst if rate else None,
        "per": rate.by or None if rate else None,
    }


SHOWN = ShownLimit("rate", _text, _facts)
