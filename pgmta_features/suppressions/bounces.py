"""Failures for good that suppress: of mailboxes that do not exist, and of those full for long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pgmta.mail.answer_class import AnswerClass
from pgmta.model import ENHANCED, Item, Outcome
from pgmta.postgres.binary import Bigints, Texts
from pgmta.states import Event
from pgmta.store.queries import feature_queries
from pgmta.store.queue.companion import SettleCompanion
from queued.process.queued_process import QueuedProcess

from .config import SoftBounces, Suppressions

_HARD = (AnswerClass.UNKNOWN_USER, AnswerClass.DISABLED, AnswerClass.BAD_DOMAIN)
"""The classes of SQL function is_hard_bounce()."""

_FULL = ".2.2"  # RFC 3463, section 3.3, without its first digit

_SQL = feature_queries("suppressions")


class SoftBounceSettings:
    """The present settings of this process, which are the default until it has begun."""

    def __init__(self) -> None:
        self._process: QueuedProcess | None = None

    def use(self, process: QueuedProcess) -> None:
        """Use the configuration of a process from now on."""
        self._process = process

    def read(self) -> SoftBounces:
        """Return the settings."""
        if not self._process:
            return SoftBounces()
        return self._process.config.section(Suppressions).soft_bounces


_SETTINGS = SoftBounceSettings()

add_settings = _SETTINGS.use
"""A part of each process."""


def _columns(prefix: str, items: Sequence[Item]) -> dict[str, Any]:
    return {
        f"{prefix}_rows": Bigints([item.id for item in items]),
        f"{prefix}_recipients": Texts([item.recipient for item in items]),
        f"{prefix}_tenants": Texts([item.tenant for item in items]),
        f"{prefix}_messages": Bigints([item.message_id for item in items]),
    }


def _bounced(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the recipients of failures for good that say that there is no such mailbox."""
    failed = (o.item for o in outcomes if o.event is Event.FAIL and o.answer_class in _HARD)
    items = [item.original or item for item in failed]
    return _columns("bounced", items) if items else {}


def _soft_bounced(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the recipients of failures for good whose mailbox is full, with the settings."""
    items = [o.item.original or o.item for o in outcomes if o.event is Event.FAIL and _is_full(o)]
    if not items or not (settings := _SETTINGS.read()).number:
        return {}
    return _columns("soft", items) | {
        "soft_number": settings.number,
        "soft_days": settings.days,
        "soft_period": settings.period,
        "soft_lasts": settings.lasts,
    }


def _is_full(outcome: Outcome) -> bool:
    if outcome.answer_class != AnswerClass.EXPIRED:
        return outcome.answer_class == AnswerClass.MAILBOX_FULL
    # the last answer of mail that was deferred for too long
    found = ENHANCED.match(outcome.reply.text)
    return found is not None and found[0].strip()[1:] == _FULL


SETTLING = SettleCompanion(_bounced, after=_SQL["settled"])

SOFT_SETTLING = SettleCompanion(_soft_bounced, after=_SQL["soft_settled"])
