"""Keys of queued.yaml: which tokens become mail, when, and how long tokens are kept."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Strict, model_validator

from pgmta.config.loader import Problem
from pgmta.config.types import Period, Section, Whole, at_least
from pgmta.config.urls import parse_public_url
from queued.config import QueuedConfig

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_CHANNEL = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}", re.ASCII)
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,99}")
_TEMPLATE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LONGEST_MONTH_S = 31 * 86400.0


def _pattern(pattern: re.Pattern[str], expected: str) -> BeforeValidator:
    def check(value: Any) -> str:
        if isinstance(value, str) and pattern.fullmatch(value):
            return value
        raise ValueError(f"{value!r} is no {expected}")

    return BeforeValidator(check)


class CollectorAction(Section):
    """The mail about one action."""

    template: Annotated[str, _pattern(_TEMPLATE, "name of a template")] = Field(
        description="name of its template, which has {{link}} or {{token}}, and of {{login}}, "
        "{{email}}, {{code}} and {{minutes}} what it likes"
    )
    priority: Whole | None = Field(
        default=None, ge=0, le=9, description="of the mail; absent: 4, and 1 for a recovery"
    )


class CollectorBudget(Section):
    """How much the collector may send, over all processes with the same key."""

    key: Annotated[str, _pattern(_KEY, "key of letters, digits and . _ : @ -")] | None = Field(
        default=None, description="key in the table budgets; absent: collector:NAME"
    )
    rate: Annotated[float, Strict()] | None = Field(
        default=None, gt=0, le=100_000, description="collected tokens per second, at most"
    )
    price: Annotated[float, Strict()] | None = Field(
        default=None, gt=0, le=1e9, description="price of 1,000 mails"
    )
    sum: Annotated[float, Strict()] | None = Field(
        default=None, gt=0, le=1e12, description="at most this is spent per calendar month in UTC; "
        "without a rate, mail is spread over 31 days"
    )  # fmt: skip

    @model_validator(mode="after")
    def _whole(self) -> CollectorBudget:
        if (self.price is None) != (self.sum is None):
            raise ValueError("price and sum need each other")
        if self.rate is None and self.price is None:
            raise ValueError("expected a rate, or price and sum")
        if self.month_most is not None and self.month_most < 1:
            raise ValueError("the sum is less than the price of one mail")
        return self

    @property
    def month_most(self) -> int | None:
        """How many mails the sum of a month pays for; None without a sum."""
        if self.price is None or self.sum is None:
            return None
        return int(self.sum / self.price * 1000 + 1e-6)

    @property
    def pace(self) -> float:
        """Mails per second."""
        spread = self.month_most / _LONGEST_MONTH_S if self.month_most else 100_000.0
        return min(self.rate or spread, 100_000.0)


class Collector(Section):
    """One collector: it makes mail of tokens, in batches."""

    needs_restart: ClassVar[bool] = True

    name: Annotated[str, _pattern(_NAME, "name of letters, digits and . _ -")] = Field(
        default="collector", description="unique name, in logs and in lifecycle.collections"
    )
    channel: Annotated[str, _pattern(_CHANNEL, "name of a channel of NOTIFY")] = Field(
        default="token_insert", description="channel that says that there are tokens"
    )
    limit: Whole = Field(
        default=10, ge=1, le=10_000, description="tokens that are collected at once"
    )
    timeout: Period = Field(default=5.0, description="fewer tokens are collected after this time")
    healthcheck: Period = Field(
        default=270.0, description="a connection that gives no answer for this long is made anew"
    )
    output: Literal["queue", "stdout"] = Field(
        default="queue", description="queue: mail; stdout: a line of JSON per batch"
    )
    url: Annotated[str, BeforeValidator(parse_public_url)] | None = Field(
        default=None, description="public.url of web.yaml, with which links begin; queue needs it"
    )
    tenant: str = Field(default="", description="tenant of its mail and templates")
    activation: CollectorAction | None = Field(
        default=None, description="mail about activations; absent: they are left to others"
    )
    recovery: CollectorAction | None = Field(
        default=None, description="mail about recoveries; absent: they are left to others"
    )
    budget: CollectorBudget | None = Field(
        default=None, description="of output queue; absent: no limit"
    )

    @model_validator(mode="after")
    def _whole(self) -> Collector:
        if self.healthcheck < self.timeout:
            raise ValueError("healthcheck is below timeout")
        if self.output == "queue" and not self.url:
            raise ValueError("output queue needs url")
        if self.output == "queue" and not self.actions:
            raise ValueError("expected activation, recovery or both")
        if self.output == "stdout" and self.budget:
            raise ValueError("output stdout has no budget: it bounds mail")
        return self

    @property
    def actions(self) -> dict[str, CollectorAction]:
        """The mail by action, as the database names actions."""
        both = {"activation": self.activation, "password_recovery": self.recovery}
        return {name: action for name, action in both.items() if action}

    @property
    def collected(self) -> list[str]:
        """The actions whose tokens it takes: all, if none has mail."""
        return list(self.actions or PURPOSES)

    @property
    def budget_key(self) -> str | None:
        """The key of its budget; None if it has none."""
        if self.budget is None:
            return None
        return self.budget.key or f"collector:{self.name}"


PRIORITIES = {"activation": 4, "password_recovery": 1}
"""The priority of mail whose action names none."""

PURPOSES = {"activation": "activate", "password_recovery": "recover"}
"""The purpose of the token of an action."""


def _distinct(collectors: list[Collector]) -> list[Collector]:
    names = [collector.name for collector in collectors]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two collectors are called {name!r}")
    return collectors


COLLECTORS: tuple[Any, Any] = (
    Annotated[list[Collector], AfterValidator(_distinct)],
    Field(default=[], description="what makes mail of tokens in the schema lifecycle"),
)
"""The key `collectors`."""


def collectors_of(config: QueuedConfig) -> list[Collector]:
    """Return the collectors of a configuration."""
    found: list[Collector] = config.value("collectors")
    return found


class LifecycleRetention(Section):
    """How long tokens are kept."""

    tokens: Annotated[Period, at_least("1h")] = Field(
        default=30 * 86400.0, description="tokens of the schema lifecycle, after they expired"
    )


def problems(config: QueuedConfig) -> list[Problem]:
    """Return the actions of collectors whose tokens no key signs."""
    keys = dict(config.tokens.purposes())
    found: list[Problem] = []
    for number, collector in enumerate(collectors_of(config)):
        for action in collector.collected:
            if not keys[PURPOSES[action]]:
                key = "recovery" if action == "password_recovery" else action
                reason = f"tokens.{PURPOSES[action]} has no key, which signs its links"
                found.append((("collectors", number, key), reason))
    return found
