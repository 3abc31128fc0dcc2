"""Messages: what became of them, why they wait, and their cancellation, hold and release."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from pgmta.config.types import hint
from pgmta.states import WAITING
from pgmta.store.queries import feature_queries
from pgmta_features.http_api.api import Api
from pgmta_features.http_api.database import ApiSession
from pgmta_features.http_api.intake.senders import tenant_of
from pgmta_features.http_api.operation import (
    MAX_ID,
    Answer,
    Call,
    GivenTime,
    Id,
    Operation,
    Received,
    Time,
    collected,
    id_of,
)
from pgmta_features.http_api.pages import Page, PageQuery, cut, no_place, words_of_list
from pgmta_features.http_api.problem import Problem, not_found, pointer_of
from queued.explaining.explainer import explainers
from queued.explaining.waits import waits_for

STATES = (
    "scheduled", "queued", "deferred", "sending", "held", "delivered", "failed", "unknown",
    "cancelled", "expired", "suppressed",
)  # fmt: skip
"""The states of a recipient: those of message_status, with `expired` as the event has it."""

_SQL = feature_queries("http_api")
_SCOPE, _CHANGE_SCOPE = "messages", "messages:change"
_MAX_IDS = 100  # that a search names
_FIRST_RECIPIENTS = 100  # that the answer about a message has
_MAX_RECIPIENTS = 1000  # that a change names
_LEEWAY = timedelta(days=1)  # clocks differ
_SEARCH_S = 2.0
_TIMEOUT_S = 5.0  # of a search that looked at its clock just before
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def _ids(text: str) -> str:
    words = text.split(",")
    if len(words) > _MAX_IDS or not all(map(id_of, words)):
        raise ValueError(f"expected up to {_MAX_IDS} ids of messages, separated by commas")
    return text


class Search(PageQuery):
    """Which recipients are listed. Several conditions have to hold all."""

    id: Annotated[str, AfterValidator(_ids)] | None = Field(
        default=None, description="of these messages, separated by commas"
    )
    recipient: str | None = Field(default=None, description="with this address")
    state: Annotated[str, AfterValidator(words_of_list(STATES, "state"))] | None = Field(
        default=None,
        description=f"in these states, separated by commas: {', '.join(STATES)}; "
        "held also finds failed mail on hold, which has the state of its outcome",
    )
    sender: str | None = Field(default=None, description="with this envelope sender")
    message_id_header: str | None = Field(
        default=None, description="with this Message-ID, with or without its <>"
    )
    tag: str | None = Field(default=None, description="the same as metadata.tag")
    metadata: dict[str, str] | None = Field(
        default=None, description="`metadata.KEY=VALUE`, as often as you like"
    )
    tenant: str | None = Field(default=None, description="of this tenant")
    since: GivenTime | None = Field(
        default=None, description="in their state, or tried, since then; without it mail in the "
        "queue whatever its age, and what has left it within a day, or with an id or recipient all"
    )  # fmt: skip
    until: GivenTime | None = Field(default=None, description="accepted, or tried, before then")

    @model_validator(mode="before")
    @classmethod
    def _collect(cls, fields: Any) -> Any:
        return collected(fields, "metadata")


class _Outcome(BaseModel):
    state: str = Field(description=f"one of {', '.join(STATES)}")
    at: Time = Field(description="since when it is in this state")
    attempts: int
    next_attempt: Time | None = None
    code: int | None = Field(default=None, description="of the last reply")
    enhanced: str | None = Field(default=None, description="enhanced status code of it")
    reply: str | None = Field(default=None, description="its text, or what went wrong")
    class_: str | None = Field(
        default=None, alias="class", description="why it failed, in a word such as unknown_user"
    )

    model_config = ConfigDict(populate_by_name=True)


class FoundRecipient(_Outcome):
    """A recipient of a message that a search has found."""

    id: Id = Field(description="of the message")
    recipient: str
    sender: str
    tenant: str
    message_id_header: str | None = None
    metadata: dict[str, Any] | None = None


class FoundRecipients(Page[FoundRecipient]):
    """A page of a search, the latest messages first."""

    complete: bool = Field(
        description="false: the search ended after 2 s, and `next` goes on where it stopped"
    )


class Recipient(_Outcome):
    """A recipient of a message, and what became of the mail."""

    recipient: str
    host: str | None = Field(default=None, description="next hop of the last attempt")
    waits_for: str | None = Field(
        default=None, description="for what it waits, in words; none if it has its outcome"
    )
    suppressed: str | None = Field(
        default=None, description="why it gets no mail, before its next attempt"
    )
    returned_at: Time | None = Field(default=None, description="when the mail came back")
    returned: str | None = Field(default=None, description="status and reply of what came back")
    complained_at: Time | None = Field(default=None, description="when the recipient complained")


class StoredMessage(BaseModel):
    """A message with its first recipients."""

    id: Id
    accepted_at: Time | None = Field(
        default=None, description="none once its last recipient has left the queue"
    )
    size: int | None = Field(
        default=None, description="in octets, of mail made from parts those of the parts; none as "
        "accepted_at"
    )  # fmt: skip
    sender: str
    tenant: str
    message_id_header: str | None = None
    submitted_by: str | None = None
    template: str | None = None
    version: int | None = None
    metadata: dict[str, Any] | None = None
    recipients: list[Recipient]
    next: str | None = Field(
        default=None, description="there are more: for `after` of /v1/messages/{id}/recipients"
    )


class Attempt(BaseModel):
    """An entry of the log."""

    recipient: str
    attempt: int = Field(description="counts those of the recipient")
    event: str
    started_at: Time
    ended_at: Time
    code: int | None = None
    enhanced: str | None = None
    reply: str | None = None
    class_: str | None = Field(default=None, alias="class")
    command: str | None = Field(default=None, description="that was answered")
    host: str | None = None
    tls_version: str | None = None
    tls_verified: str | None = None
    returned_at: Time | None = None
    returned: str | None = None
    confirmed_at: Time | None = None
    complained_at: Time | None = None

    model_config = ConfigDict(populate_by_name=True)


class Change(Received):
    """Which recipients are changed, and why."""

    recipients: list[str] | None = Field(
        default=None, min_length=1, max_length=_MAX_RECIPIENTS,
        description="only these; all of the message without it",
    )  # fmt: skip
    reason: str | None = Field(
        default=None, max_length=500, description="for the log, without control characters"
    )


class Changed(BaseModel):
    """How many recipients were changed, and what became of all that were meant."""

    changed: int
    states: dict[str, int] = Field(
        description="how many of them are now in which state, such as `delivered`; of the first "
        "1,000 without `recipients`"
    )


class _Messages:
    def __init__(self, api: Api) -> None:
        self._database = api.database

    async def search(self, call: Call) -> Answer:
        """List recipients."""
        wanted: Search = call.query
        if wanted.tenant is not None and call.caller.sees != "all":
            tenant_of(call.caller, wanted.tenant)
        if wanted.since and wanted.until and wanted.since >= wanted.until:
            reason = "It is not before until."
            raise Problem(400, "invalid", f"since: {reason}",
                          errors=[{"parameter": "since", "detail": reason}])  # fmt: skip
        before, after = wanted.after_numbers(2) or (MAX_ID, 0)
        now = datetime.now(UTC)
        words = {**(wanted.metadata or {}), **({"tag": wanted.tag} if wanted.tag else {})}
        params = {
            "states": wanted.state.split(",") if wanted.state else None,
            "ids": [int(each) for each in wanted.id.split(",")] if wanted.id else None,
            "recipients": _spellings(wanted.recipient) if wanted.recipient else None,
            "sender": wanted.sender,
            "header": _in_brackets(wanted.message_id_header) if wanted.message_id_header else None,
            "words": json.dumps(words) if words else None,
            "tenant": wanted.tenant,
            "since": wanted.since,
            "until": wanted.until or now + _LEEWAY,
            "before": before,
            "after": after,
            "most": wanted.limit,
            "seconds": _SEARCH_S,
        }
        async with self._database.acting(
            call.caller, timeout_s=_TIMEOUT_S, places=self._database.searches
        ) as session:
            rows = await session.rows(_SQL["search"], params)
        place, complete = None, True
        if rows and rows[-1]["recipient"] is None:
            last = rows.pop()
            place, complete = f"{last['message_id']}.{last['row_id']}", last["state"] is None
        found = [FoundRecipient(**{**row, "id": row["message_id"]}) for row in rows]
        return Answer(FoundRecipients(data=found, next=place, complete=complete))

    async def message(self, call: Call) -> Answer:
        """Show a message."""
        number = _message(call)
        async with self._database.acting(call.caller) as session:
            row = await _seen(session, number)
            rows = await _rows(session, number, 0, _FIRST_RECIPIENTS)
        found, place = _recipients(rows, _FIRST_RECIPIENTS)
        return Answer(StoredMessage(id=number, **row, recipients=found, next=place))

    async def recipients(self, call: Call) -> Answer:
        """List the recipients of a message."""
        number, after = _message(call), call.query.after_id()
        async with self._database.acting(call.caller) as session:
            await _seen(session, number)
            rows = await _rows(session, number, after, call.query.limit)
        found, place = _recipients(rows, call.query.limit)
        return Answer(Page[Recipient](data=found, next=place))

    async def attempts(self, call: Call) -> Answer:
        """List the attempts of a message."""
        number, limit = _message(call), call.query.limit
        at, row_id, token = _entry(call.query)
        params = {"id": number, "at": at, "row": row_id, "token": token, "most": limit + 1}
        async with self._database.acting(call.caller) as session:
            await _seen(session, number)
            rows = await session.rows(_SQL["attempts"], params)
        rows, place = cut(rows, limit, _place_of)
        return Answer(Page[Attempt](data=[Attempt(**each) for each in rows], next=place))

    async def cancel(self, call: Call) -> Answer:
        """Cancel what waits."""
        return await self._change("cancel", call)

    async def hold(self, call: Call) -> Answer:
        """Hold what waits."""
        return await self._change("hold", call)

    async def release(self, call: Call) -> Answer:
        """Release what keys hold."""
        return await self._change("release", call)

    async def _change(self, action: str, call: Call) -> Answer:
        body: Change = call.body
        params = {"action": action, "id": _message(call), "recipients": body.recipients,
                  "reason": body.reason}  # fmt: skip
        async with self._database.acting(call.caller) as session:
            row = await session.row(_SQL["change"], params)
        if row is None or row["changed"] is None:
            raise not_found("message")
        if absent := row["absent"]:
            place = (body.recipients or []).index(absent[0])
            detail = f"The message has no recipient {absent[0][:100]}; " + hint(
                absent[0], (row["known"] or [])[:20]
            )
            raise Problem(422, "invalid", detail, pointer=pointer_of("recipients", place))
        return Answer(Changed(changed=row["changed"], states=row["states"] or {}))


async def _seen(session: ApiSession, number: int) -> dict[str, Any]:
    """Return a message that the key sees. Raises Problem if there is none."""
    row = await session.row(_SQL["message"], {"id": number})
    if row is None:
        raise not_found("message")
    return row


async def _rows(session: ApiSession, number: int, after: int, limit: int) -> list[dict[str, Any]]:
    """Return the rows of a message behind one, to one beyond the limit, with what features say."""
    params = {"id": number, "after": after, "most": limit + 1}
    rows = await session.rows(_SQL["recipients"], params)
    reasons: dict[int, str] = {}
    if waiting := [row["row_id"] for row in rows if row["status"] in WAITING]:
        for each in explainers():
            if each.reasons_for_keys:
                reasons = {**await each.reasons_for_keys(session.rows, waiting), **reasons}
    return [{**row, "reason": reasons.get(row["row_id"])} for row in rows]


def _recipients(rows: list[dict[str, Any]], most: int) -> tuple[list[Recipient], str | None]:
    """Return the recipients of a page, and the place of the next one."""
    now = datetime.now(UTC)
    page, place = cut(rows, most, lambda row: row["row_id"])
    return [Recipient(**row, waits_for=_wait(row, now)) for row in page], place


def _wait(row: Mapping[str, Any], now: datetime) -> str | None:
    """Return for what a recipient waits, as `queuectl explain` says it without names of workers."""
    reason: str | None = row["reason"]
    if reason or row["status"] is None:
        return reason
    some = ["a worker"] if row["worker"] else []
    return waits_for({**row, "lease_owner": "queued", "workers": some, "rules": []}, now, {})


def _message(call: Call) -> int:
    """Return the id in the path. Raises Problem."""
    if not (number := id_of(call.path["id"])):
        raise not_found("message")
    return number


def _place_of(row: Mapping[str, Any]) -> str:
    """Return the place of an entry of the log."""
    micros = (row["ended_at"] - _EPOCH) // _MICROSECOND
    return f"{micros}.{row['row_id']}.{row['lease_token']}"


def _entry(query: PageQuery) -> tuple[datetime | None, int | None, int | None]:
    """Return the entry of the log behind which a page begins. Raises Problem."""
    if not (numbers := query.after_numbers(3)):
        return None, None, None
    try:
        return _EPOCH + numbers[0] * _MICROSECOND, numbers[1], numbers[2]
    except OverflowError:
        raise no_place() from None


def _spellings(address: str) -> list[str]:
    """Return an address as it may be in the queue: domains are stored as they were given."""
    local, at, domain = address.rpartition("@")
    return list(dict.fromkeys([address, f"{local}{at}{domain.lower()}", address.lower()]))


def _in_brackets(text: str) -> str:
    return text if text.startswith("<") else f"<{text}>"


def operations(api: Api) -> list[Operation]:
    """Return the operations."""
    messages = _Messages(api)
    changes = [
        ("cancel", messages.cancel, "Cancel a message, or some of its recipients"),
        ("hold", messages.hold, "Hold a message, or some of its recipients"),
        ("release", messages.release, "Release what a key of this tenant has held"),
    ]
    return [
        Operation(
            method="GET",
            path="/v1/messages",
            scope=_SCOPE,
            summary="Search recipients of mail, the latest messages first",
            handler=messages.search,
            query=Search,
            answers={200: FoundRecipients},
            problems=("tenant-refused",),
        ),
        Operation(
            method="GET",
            path="/v1/messages/{id}",
            scope=_SCOPE,
            summary="Show a message, its recipients and why they wait",
            handler=messages.message,
            answers={200: StoredMessage},
            problems=("not-found",),
        ),
        Operation(
            method="GET",
            path="/v1/messages/{id}/recipients",
            scope=_SCOPE,
            summary="List the recipients of a message",
            handler=messages.recipients,
            query=PageQuery,
            answers={200: Page[Recipient]},
            problems=("not-found",),
        ),
        Operation(
            method="GET",
            path="/v1/messages/{id}/attempts",
            scope=_SCOPE,
            summary="List the log of a message",
            handler=messages.attempts,
            query=PageQuery,
            answers={200: Page[Attempt]},
            problems=("not-found",),
        ),
        *(
            Operation(
                method="POST",
                path=f"/v1/messages/{{id}}/{word}",
                scope=_CHANGE_SCOPE,
                summary=summary,
                handler=handler,
                body=Change,
                answers={200: Changed},
                problems=("not-found",),
            )
            for word, handler, summary in changes
        ),
    ]
