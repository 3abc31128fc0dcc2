"""Hard bounces: a recipient who does not exist is suppressed in the commit of the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pgmta.mail.answer_class import AnswerClass
from pgmta.model import Outcome
from pgmta.postgres.binary import Bigints, Texts
from pgmta.states import Event
from pgmta.store.queries import feature_queries
from pgmta.store.queue.companion import SettleCompanion

_HARD = (AnswerClass.UNKNOWN_USER, AnswerClass.DISABLED, AnswerClass.BAD_DOMAIN)
"""The classes of SQL function is_hard_bounce()."""


def _bounced(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the recipients of failures for good that say that there is no such mailbox."""
    failed = (o.item for o in outcomes if o.event is Event.FAIL and o.answer_class in _HARD)
    items = [item.original or item for item in failed]
    if not items:
        return {}
    return {
        "bounced_rows": Bigints([item.id for item in items]),
        "bounced_recipients": Texts([item.recipient for item in items]),
        "bounced_tenants": Texts([item.tenant for item in items]),
        "bounced_messages": Bigints([item.message_id for item in items]),
    }


SETTLING = SettleCompanion(_bounced, after=feature_queries("suppressions")["settled"])
