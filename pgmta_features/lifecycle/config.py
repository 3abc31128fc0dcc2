"""Keys of queued.yaml: which tokens become mail, when, and how long tokens are kept."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Strict, model_validator

from pgmta.compose.token import ACTION_NAME, Purpose
from pgmta.config.loader import Problem
from pgmta.config.types import Period, Section, Whole, at_least, refuse_twice
from pgmta.config.urls import parse_public_url
from queued.config import QueuedConfig

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_CHANNEL = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}", re.ASCII)
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,99}")
_LONGEST_MONTH_S = 31 * 86400.0


def _pattern(pattern: re.Pattern[str], expected: str) -> BeforeValidator:
    def check(value: Any) -> str:
        if isinstance(value, str) and pattern.fullmatch(value):
            return value
        raise ValueError(f"{value!r} is no {expected}")

    return BeforeValidator(check)


_Action = Annotated[str, _pattern(ACTION_NAME, "name of an action")]


def _few(actions: list[str]) -> list[str]:
    if not actions:
        raise ValueError("expected names of actions; without the key it takes all")
    for name in actions:
        if actions.count(name) > 1:
            raise ValueError(f"{name} is there twice")
    return actions


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
        default=500, ge=1, le=10_000, description="tokens that are collected at once, at most"
    )
    timeout: Period | None = Field(
        default=None,
        description="fewer tokens are collected after this time; null: it follows the load, up to "
        "0.25 s",
    )
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
    actions: Annotated[list[_Action], AfterValidator(_few)] | None = Field(
        default=None, description="names in lifecycle.actions; null: all"
    )
    budget: CollectorBudget | None = Field(
        default=None, description="of output queue; absent: no limit"
    )

    @model_validator(mode="after")
    def _whole(self) -> Collector:
        if self.healthcheck < (self.timeout or 0.0):
            raise ValueError("healthcheck is below timeout")
        if self.output == "queue" and not self.url:
            raise ValueError("output queue needs url")
        if self.output == "stdout" and self.budget:
            raise ValueError("output stdout has no budget: it bounds mail")
        return self

    @property
    def budget_key(self) -> str | None:
        """The key of its budget; None if it has none."""
        if self.budget is None:
            return None
        return self.budget.key or f"collector:{self.name}"


PURPOSES = {"activation": Purpose.ACTIVATE, "password_recovery": Purpose.RECOVER}
"""The purposes of the first two actions, in mailroom's order; that of all others is CONFIRM."""


def _distinct(collectors: list[Collector]) -> list[Collector]:
    refuse_twice("collectors", [collector.name for collector in collectors])
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
    """Return the actions of collectors whose tokens no key signs.

    `check_collectors` says it of actions that only the database knows.
    """
    keys = dict(config.tokens.purposes())
    found: list[Problem] = []
    for number, collector in enumerate(collectors_of(config)):
        if missing := [
            no_key(action)
            for action in collector.actions or PURPOSES
            if not keys[purpose_of(action)]
        ]:
            found.append((("collectors", number, "actions"), "; ".join(missing)))
    return found


def purpose_of(action: str) -> Purpose:
    """Return the purpose of the tokens of an action."""
    return PURPOSES.get(action, Purpose.CONFIRM)


def no_key(action: str) -> str:
    """Return the text of a mistake: the tokens of an action have no key."""
    return f"tokens.{purpose_of(action)} has no key, which signs the links of {action}"
