"""Webhooks: endpoints to which events are posted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated, Any

import psycopg
from psycopg import errors
from pydantic import AfterValidator, BaseModel, Field, Strict, model_validator

from pgmta.errors import AddressError
from pgmta.mail.address import parse_mailbox
from pgmta_features.events.kinds import check_kinds
from pgmta_features.http_api.api import Api
from pgmta_features.http_api.caller import Caller
from pgmta_features.http_api.intake.senders import Senders, tenant_of
from pgmta_features.http_api.operation import (
    Answer,
    Call,
    GivenTime,
    Id,
    Operation,
    Received,
    Time,
    id_of,
)
from pgmta_features.http_api.pages import Page, PageQuery, cut
from pgmta_features.http_api.problem import Problem, conflict, not_found
from pgmta_features.webhooks.config import WebhookKeys
from pgmta_features.webhooks.endpoint import NAME, EndpointUrl, read_condition
from pgmta_features.webhooks.reach import check_public
from pgmta_features.webhooks.signing import Secrets
from pgmta_features.webhooks.webhook_table import (
    DEFAULT_BATCH,
    MAX_BATCH,
    NO_EVENT,
    OF_OPERATOR,
    WebhookTable,
)

_SCOPE = "webhooks"
_MAX_EVENTS = 1000  # of a replay by ids


def _url(text: str) -> str:
    check_public(EndpointUrl.parse(text))
    return text


def _kind(text: str) -> str:
    check_kinds([text])
    return text


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise ValueError("expected up to 63 letters, digits and . _ -")
    return text


def _address(text: str) -> str:
    try:
        parse_mailbox(text)
    except AddressError as error:
        raise ValueError(str(error)) from None
    return text


class Condition(Received):
    """Some mail: the texts of a field are alternatives, and all fields have to hold.

    `*` stands for any text; those of metadata are `key=value`.
    """

    sender: list[str] = Field(default=[])
    recipient: list[str] = Field(default=[])
    domain: list[str] = Field(default=[])
    tenant: list[str] = Field(default=[])
    metadata: list[str] = Field(default=[])

    @model_validator(mode="after")
    def _readable(self) -> Condition:
        read_condition(self.texts())
        return self

    def texts(self) -> dict[str, list[str]]:
        """Return the fields that have texts."""
        return {name: texts for name, texts in self if texts}


_Kinds = Annotated[list[Annotated[str, AfterValidator(_kind)]], Field(min_length=1)]
_Url = Annotated[str, AfterValidator(_url), Field(description="https://…, where events are posted")]
_Owner = Annotated[str, AfterValidator(_address)]
_Batch = Annotated[int, Strict(), Field(ge=1, le=MAX_BATCH)]


class NewWebhook(Received):
    """An endpoint to be made. It gets the events that the key sees, from now on."""

    name: Annotated[str, AfterValidator(_name)]
    url: _Url
    kinds: _Kinds | None = Field(default=None, description="kinds of events; null: all")
    condition: Condition = Condition()
    owner: _Owner | None = Field(
        default=None, description="a sender of the key, which gets a mail if it is suspended"
    )
    batch: _Batch = Field(default=DEFAULT_BATCH, description="events of a request, at most")
    tenant: str | None = Field(default=None, description="for keys of any tenant")


class WebhookChange(Received):
    """What is to be changed; the rest stays as it is."""

    url: _Url | None = None
    kinds: _Kinds | None = Field(default=None, description="null: all")
    condition: Condition | None = None
    owner: _Owner | None = Field(default=None, description="null: nobody")
    batch: _Batch | None = None

    @model_validator(mode="after")
    def _some(self) -> WebhookChange:
        if not self.model_fields_set:
            raise ValueError("there is nothing to change")
        for name in ("url", "condition", "batch"):
            if name in self.model_fields_set and getattr(self, name) is None:
                raise ValueError(f"{name} can't be null")
        return self


class Replay(Received):
    """Which events are posted again: one of these keys."""

    since: GivenTime | None = Field(default=None, description="all since then, in order")
    events: Annotated[list[str], Field(min_length=1, max_length=_MAX_EVENTS)] | None = Field(
        default=None, description="those of these ids"
    )
    set_aside: bool = Field(default=False, description="those that the endpoint has refused")

    @model_validator(mode="after")
    def _one(self) -> Replay:
        if (self.since is not None) + (self.events is not None) + self.set_aside != 1:
            raise ValueError("give one of since, events and set_aside")
        return self


class Webhook(BaseModel):
    """An endpoint, and how it is."""

    id: Id
    name: str
    url: str = Field(description="of an endpoint of an operator, the scheme and the host alone")
    kinds: list[str] | None = None
    condition: dict[str, list[str]]
    owner: str | None = None
    batch: int
    tenant: str | None = None
    state: str
    state_at: Time
    reason: str
    failing_since: Time | None = None
    next_at: Time | None = None
    posted_at: Time | None = None
    lag: float | None = Field(default=None, description="seconds; absent: nothing waits")
    set_aside: int
    earlier_until: Time | None = None
    created_at: Time
    created_by: str


class NewSecret(BaseModel):
    """An endpoint with its secret, which is shown this once."""

    id: Id
    secret: str = Field(description="whsec_…, with which the receiver verifies signatures")
    earlier_until: Time | None = Field(
        default=None, description="until then requests have a signature by the earlier one, too"
    )


class Failure(BaseModel):
    """An event that the endpoint has refused, or whose replay was asked for."""

    event_id: str
    kind: str
    message_id: Id | None = None
    failed_at: Time
    reason: str
    asked_at: Time | None = Field(default=None, description="when its replay was asked for")


class Replayed(BaseModel):
    """What is posted again: all events since a time, or so many."""

    since: Time | None = None
    events: int | None = None


class WebhookResource:
    """Answers for the endpoints that the key sees."""

    def __init__(self, api: Api) -> None:
        self._api = api

    @asynccontextmanager
    async def _webhooks(self, caller: Caller) -> AsyncIterator[WebhookTable]:
        """Lend the endpoints of a key. Raises Problem."""
        try:
            async with self._api.database.acting(caller) as session:
                yield WebhookTable(session)
        except errors.NoDataFound:
            raise not_found("webhook") from None
        except psycopg.Error as error:
            if error.sqlstate == NO_EVENT:
                raise not_found("event") from None
            if error.sqlstate == OF_OPERATOR:
                raise Problem(
                    403, "webhook-of-operator", "An operator has made the webhook, and changes it."
                ) from None
            raise

    def _secrets(self) -> Secrets:
        return self._api.config.section(WebhookKeys).known_secrets()

    def _new_secret(self) -> tuple[str, str]:
        """Return the reference of a new secret, and the secret. Raises Problem."""
        secrets = self._secrets()
        reference = secrets.new_reference()
        secret = secrets.find(reference) if reference else None
        if not (reference and secret):
            raise Problem(
                409, "webhooks-keyless",
                "The installation has no key for secrets: its operator sets webhooks.keys.",
            )  # fmt: skip
        return reference, secret

    async def add(self, call: Call) -> Answer:
        """Make an endpoint."""
        body: NewWebhook = call.body
        reference, secret = self._new_secret()
        tenant_of(call.caller, body.tenant)
        _check_owner(call.caller, body.owner)
        try:
            async with self._webhooks(call.caller) as webhooks:
                number = await webhooks.add(
                    body.name, body.url, reference, kinds=body.kinds, owner=body.owner,
                    condition=body.condition.texts(), batch=body.batch, tenant=body.tenant,
                )  # fmt: skip
        except errors.UniqueViolation:
            raise Problem(
                409, "webhook-exists", "The key has a webhook of this name.", pointer="/name"
            ) from None
        except errors.ProgramLimitExceeded as error:
            raise Problem(
                409, "webhooks-full", f"{error.diag.message_primary}: remove one."
            ) from None
        location = {"Location": f"{self._api.site.base}/v1/webhooks/{number}"}
        return Answer(NewSecret(id=number, secret=secret), 201, location)

    async def list(self, call: Call) -> Answer:
        """Return a page of endpoints."""
        query: PageQuery = call.query
        async with self._webhooks(call.caller) as webhooks:
            rows = await webhooks.endpoints(after=query.after_id(), most=query.limit + 1)
        rows, place = cut(rows, query.limit, lambda row: row["id"])
        return Answer(Page[Webhook](data=[_shown(row) for row in rows], next=place))

    async def show(self, call: Call) -> Answer:
        """Return an endpoint."""
        async with self._webhooks(call.caller) as webhooks:
            rows = await webhooks.endpoints(number=_id(call))
        if not rows:
            raise not_found("webhook")
        return Answer(_shown(rows[0]))

    async def change(self, call: Call) -> Answer:
        """Change an endpoint."""
        body: WebhookChange = call.body
        _check_owner(call.caller, body.owner)
        changes = {name: getattr(body, name) for name in body.model_fields_set}
        if body.condition is not None:
            changes["condition"] = body.condition.texts()
        async with self._webhooks(call.caller) as webhooks:
            await webhooks.change(_id(call), changes)
        return await self.show(call)

    async def enable(self, call: Call) -> Answer:
        """Enable an endpoint."""
        async with self._webhooks(call.caller) as webhooks:
            await webhooks.enable(_id(call), enabled=True)
        return await self.show(call)

    async def disable(self, call: Call) -> Answer:
        """Disable an endpoint."""
        async with self._webhooks(call.caller) as webhooks:
            await webhooks.enable(_id(call), enabled=False)
        return await self.show(call)

    async def rotate(self, call: Call) -> Answer:
        """Give an endpoint another secret."""
        reference, secret = self._new_secret()
        async with self._webhooks(call.caller) as webhooks:
            try:
                until = await webhooks.rotate(_id(call), reference)
            except errors.ObjectNotInPrerequisiteState as error:
                raise conflict(error.diag.message_primary or "") from None
        return Answer(NewSecret(id=_id(call), secret=secret, earlier_until=until))

    async def remove(self, call: Call) -> Answer:
        """Remove an endpoint."""
        async with self._webhooks(call.caller) as webhooks:
            await webhooks.remove(_id(call))
        return Answer(status=204)

    async def replay(self, call: Call) -> Answer:
        """Have events posted again."""
        body: Replay = call.body
        since: datetime | None = body.since
        async with self._webhooks(call.caller) as webhooks:
            asked = await webhooks.replay(_id(call), since=since, events=body.events)
        return Answer(Replayed(since=since) if since else Replayed(events=asked), 202)

    async def failures(self, call: Call) -> Answer:
        """Return a page of events that were set aside."""
        query: PageQuery = call.query
        async with self._webhooks(call.caller) as webhooks:
            rows = await webhooks.failures(_id(call), after=query.after or "", most=query.limit + 1)
        rows, place = cut(rows, query.limit, lambda row: row["event_id"])
        return Answer(Page[Failure](data=[Failure(**row) for row in rows], next=place))


def _check_owner(caller: Caller, owner: str | None) -> None:
    """Raise Problem for an owner who need not be of the key's people: pgmta sends mail there."""
    if owner and not Senders.of(caller).may_send(*parse_mailbox(owner)):
        raise Problem(
            403, "sender-refused", "owner: Expected an address from which the key may send.",
            pointer="/owner",
        )  # fmt: skip


def _id(call: Call) -> int:
    if not (number := id_of(call.path["id"])):
        raise not_found("webhook")
    return number


def _shown(row: Mapping[str, Any]) -> Webhook:
    return Webhook(**{name: row[name] for name in Webhook.model_fields})


def operations(api: Api) -> list[Operation]:
    """Return the operations."""
    resource = WebhookResource(api)
    one, known = "/v1/webhooks/{id}", ("not-found",)
    changed = (*known, "webhook-of-operator")
    return [
        Operation(
            method="POST", path="/v1/webhooks", scope=_SCOPE,
            summary="Make an endpoint, and show its secret once", handler=resource.add,
            body=NewWebhook, answers={201: NewSecret},
            problems=(
                "sender-refused", "tenant-refused", "webhook-exists", "webhooks-full",
                "webhooks-keyless",
            ),
        ),
        Operation(
            method="GET", path="/v1/webhooks", scope=_SCOPE, summary="List endpoints",
            handler=resource.list, query=PageQuery, answers={200: Page[Webhook]}, problems=known,
        ),
        Operation(
            method="GET", path=one, scope=_SCOPE, summary="Show an endpoint",
            handler=resource.show, answers={200: Webhook}, problems=known,
        ),
        Operation(
            method="PATCH", path=one, scope=_SCOPE, summary="Change an endpoint",
            handler=resource.change, body=WebhookChange, answers={200: Webhook},
            problems=(*changed, "sender-refused"),
        ),
        Operation(
            method="DELETE", path=one, scope=_SCOPE, summary="Remove an endpoint",
            handler=resource.remove, answers={204: None}, problems=changed,
        ),
        Operation(
            method="POST", path=f"{one}/enable", scope=_SCOPE,
            summary="Post to an endpoint again, from where it stopped", handler=resource.enable,
            answers={200: Webhook}, problems=changed,
        ),
        Operation(
            method="POST", path=f"{one}/disable", scope=_SCOPE,
            summary="Post nothing to an endpoint until it is enabled", handler=resource.disable,
            answers={200: Webhook}, problems=changed,
        ),
        Operation(
            method="POST", path=f"{one}/rotate", scope=_SCOPE,
            summary="Give an endpoint another secret; the earlier one signs for a day, too",
            handler=resource.rotate, answers={200: NewSecret},
            problems=(*changed, "conflict", "webhooks-keyless"),
        ),
        Operation(
            method="POST", path=f"{one}/replay", scope=_SCOPE, summary="Post events again",
            handler=resource.replay, body=Replay, answers={202: Replayed},
            problems=changed,
        ),
        Operation(
            method="GET", path=f"{one}/failures", scope=_SCOPE,
            summary="List events that the endpoint has refused", handler=resource.failures,
            query=PageQuery, answers={200: Page[Failure]}, problems=known,
        ),
    ]  # fmt: skip
