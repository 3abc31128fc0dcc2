"""Failures for good that suppress: of mailboxes that do not exist, and of those full for long."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pgmta.errors import Stage
from pgmta.mail.address import with_domain
from pgmta.mail.answer_class import HARD_BOUNCES, AnswerClass
from pgmta.model import Item, Outcome
from pgmta.postgres.binary import Bigints, Texts
from pgmta.states import Event
from pgmta.store.queries import feature_queries
from pgmta.store.queue.companion import SettleCompanion
from queued.process.queued_process import QueuedProcess

from .config import SoftBounces, Suppressions

_NO_SUCH_DOMAIN = (".1.2", ".1.10")  # RFC 3463, section 3.2, and RFC 7505: also our own findings
_TAKES_NO_MAIL = 556  # RFC 7504, of a domain

_POLICY = ".7."  # RFC 3463, section 3.8
_POLICY_OR_NO_USER = (".7.0", ".7.1", ".7.17")
"""Codes with which hosts also say that there is no such mailbox; .7.17 is of RFC 7293."""

_REQUEST_REFUSED = re.compile(r"[45]\.[0-9.]+ HTTP 40[1-4]\b")
"""A provider's status for a login, an account without money, a right that lacks, a wrong URL."""

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
        f"{prefix}_recipients": Texts([with_domain(item.recipient, item.domain) for item in items]),
        f"{prefix}_tenants": Texts([item.tenant for item in items]),
        f"{prefix}_messages": Bigints([item.message_id for item in items]),
    }


def _bounced(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the recipients of failures for good that say that there is no such mailbox."""
    items = [o.item.original or o.item for o in outcomes if o.event is Event.FAIL and _is_hard(o)]
    return _columns("bounced", items) if items else {}


def _soft_bounced(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the recipients of failures for good whose mailbox is full, with the settings."""
    items = [o.item.original or o.item for o in outcomes
             if o.event is Event.FAIL and _is_full(o) and _is_of_recipient(o)]  # fmt: skip
    if not items or not (settings := _SETTINGS.read()).number:
        return {}
    return _columns("soft", items) | {
        "soft_number": settings.number,
        "soft_days": settings.days,
        "soft_period": settings.period,
        "soft_lasts": settings.lasts,
    }


def _is_of_recipient(outcome: Outcome) -> bool:
    """Return whether an answer is about this recipient.

    Any other may be about our host, our login, the sender or the mail, whatever its words are: a
    login that was blocked would suppress everybody.
    """
    if not outcome.reply.code:
        return True
    if outcome.stage is Stage.END_OF_DATA and not outcome.shared:
        return not _REQUEST_REFUSED.match(outcome.reply.text)
    return outcome.stage is Stage.RCPT


def _is_hard(outcome: Outcome) -> bool:
    """Return whether an answer proves that there is no such mailbox.

    SQL function bounce_proven() has the same rules for mail that comes back.
    """
    if outcome.answer_class not in HARD_BOUNCES or not _is_of_recipient(outcome):
        return False
    detail = outcome.reply.enhanced[1:]
    if outcome.answer_class == AnswerClass.BAD_DOMAIN:  # or our host may not relay there
        return outcome.reply.code == _TAKES_NO_MAIL or detail in _NO_SUCH_DOMAIN
    if outcome.answer_class == AnswerClass.DISABLED:
        return not detail.startswith(_POLICY)
    return not detail.startswith(_POLICY) or detail in _POLICY_OR_NO_USER


def _is_full(outcome: Outcome) -> bool:
    return AnswerClass.MAILBOX_FULL in (outcome.answer_class, outcome.expired_class)


SETTLING = SettleCompanion(_bounced, after=_SQL["settled"])

SOFT_SETTLING = SettleCompanion(_soft_bounced, after=_SQL["soft_settled"])
