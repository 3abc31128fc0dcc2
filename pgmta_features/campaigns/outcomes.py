"""What becomes of recipients of campaigns with the attempts for their mail."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from pgmta.mail.answer_class import HARD_BOUNCES
from pgmta.model import ENHANCED, Item, Outcome
from pgmta.postgres.binary import Bigints, Booleans, Instants, Integers, Texts
from pgmta.states import Event, after
from pgmta.store.queries import feature_queries
from pgmta.store.queue.companion import BeginCompanion, SettleCompanion

_SQL = feature_queries("campaigns")

_CAMPAIGN = '"_campaign"'
"""Is in the metadata of each row of a campaign: campaign, number of the recipient, job."""

_HTTP_STATUS = re.compile(r"[245]\.[\d.]+ HTTP (\d{3})\b")
"""The status in a reply by HTTP. The error code and sub type of the provider follow it.

SQL reads such replies by `reply_word()`.
"""
_CODE, _SUB_TYPE = (
    re.compile(rf" {name}=(.+?)(?: error_sub_type=| error_text=| \(given up |$)")
    for name in ("error", "error_sub_type")
)
_STATES = {
    Event.DELIVERED: "sent",
    Event.FAIL: "failed",
    Event.DEFER: "deferred",
    Event.SUPPRESS: "invalid",
}


def _is_of_campaign(item: Item) -> bool:
    return item.metadata is not None and _CAMPAIGN in item.metadata


def _outcomes(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the outcomes of recipients of campaigns, as arrays of columns.

    Rows whose metadata was made by hand name no recipient. An attempt that never began is left
    out.
    """
    told = [o for o in outcomes if o.item.metadata and _CAMPAIGN in o.item.metadata]
    found = [
        (*path, o.item.message_id, o.item.id, state, _bounced(o), *_codes(o), o.started, o.ended)
        for o in told
        if (state := _state(o)) and (path := _path(o.item.metadata))
    ]
    if not found:
        return {}
    columns = list(zip(*found, strict=True))
    campaigns, numbers, mails, rows, states, bounces, codes, sub_types, started, ended = columns
    return {
        "of_campaigns": Bigints(campaigns),
        "of_numbers": Integers(numbers),
        "of_mails": Bigints(mails),
        "of_rows": Bigints(rows),
        "of_states": Texts(states),
        "of_bounces": Booleans(bounces),
        "of_codes": Texts(codes),
        "of_sub_types": Texts(sub_types),
        "of_started": Instants(started),
        "of_ended": Instants(ended),
    }


def _path(metadata: str | None) -> tuple[int, int] | None:
    try:
        campaign, number, _ = str(json.loads(metadata or "{}")["_campaign"]).split(".")
        path = int(campaign), int(number)
    except (ValueError, KeyError, TypeError):
        return None
    return path if 0 < path[0] < 1 << 63 and 0 < path[1] < 1 << 31 else None


def _state(outcome: Outcome) -> str:
    """Return the recipient's state, or nothing for an attempt that never began."""
    if outcome.event is not Event.UNKNOWN:
        return _STATES.get(outcome.event, "")
    item = outcome.item
    status = after(outcome.event, once=item.once, on_failed=item.on_failed, report="")
    return "deferred" if status else "unknown"


def _bounced(outcome: Outcome) -> bool:
    return outcome.event is Event.FAIL and outcome.answer_class in HARD_BOUNCES


def _codes(outcome: Outcome) -> tuple[str, str]:
    """Return the reply code of a failure, and its enhanced status code and class.

    By HTTP they are the error code and sub type of the provider, as far as its answer has them.
    """
    if outcome.event is Event.DELIVERED:
        return "", ""
    if outcome.event is Event.SUPPRESS:
        return outcome.event.value, ""
    enhanced = found[0] if (found := ENHANCED.match(outcome.reply.text)) else ""
    sub_type = f"{enhanced} {outcome.answer_class}".strip()
    code = str(outcome.reply.code) if outcome.reply.code else outcome.event.value
    text = outcome.reply.text
    if not (found := _HTTP_STATUS.match(text)):
        return code, sub_type
    own, exact = _CODE.search(text), _SUB_TYPE.search(text)
    return own[1] if own else found[1], exact[1] if exact else sub_type


SETTLING = SettleCompanion(_outcomes, after=_SQL["settled"])

BEGINNING = BeginCompanion(_is_of_campaign, condition=_SQL["may_begin"])
