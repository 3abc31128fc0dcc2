"""Templates: a PUT makes a version, as `queuectl template put` does."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from email.utils import parseaddr
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from pgmta.compose.mime import MessageIdentity, compose_head
from pgmta.compose.parts import NamedMailbox
from pgmta.compose.template import Template, TemplateSource, compile_template
from pgmta.compose.words import MAX_FIELD_CHARACTERS
from pgmta.errors import AddressError, PgmtaError, TemplateError
from pgmta.mail.address import parse_mailbox
from pgmta.mail.names import check_name
from pgmta.store.changes.templates import NamedTemplate, StoredTemplate, TemplateTable
from pgmta_features.http_api.api import Api
from pgmta_features.http_api.caller import Caller
from pgmta_features.http_api.checking import HeaderFields
from pgmta_features.http_api.intake.senders import Senders, address_of, tenant_of
from pgmta_features.http_api.operation import (
    Answer,
    Call,
    Operation,
    Received,
    Time,
    Version,
)
from pgmta_features.http_api.pages import Page, PageQuery, TenantQuery, cut
from pgmta_features.http_api.problem import Problem, not_found, pointer_of, sentences

_SCOPE = "templates"
_MAX_BODY_OCTETS = 5 << 20  # text and html of 2^20 characters each
_EXAMPLE_ID = "<0.0000000000000000@localhost>"


class TemplateBody(Received):
    """A template as it is written. `{{name}}` is a word, `{{{{` is `{{`."""

    model_config = ConfigDict(strict=True)

    sender: str | None = Field(
        default=None, description="envelope sender; the address in from without it"
    )
    from_: str = Field(alias="from", description="`NAME <ADDRESS>` or ADDRESS")
    reply_to: str | None = Field(default=None, description="a mailbox, as in from")
    subject: str
    body: str | None = Field(default=None, description="plain text")
    html: str | None = None
    headers: HeaderFields = Field(
        default_factory=dict, description="further fields of the header, by name"
    )
    unsubscribe: str | None = Field(
        default=None, description="list from which recipients unsubscribe by one click"
    )


class TemplateQuery(TenantQuery):
    """Which version of a template it is."""

    version: Version | None = Field(default=None, description="the last one without it")


class TemplatePages(TenantQuery, PageQuery):
    """Which templates are listed."""


class StoredVersion(BaseModel):
    """The version that a template has now; 201 if it is new."""

    name: str
    version: int
    words: dict[str, list[str]] = Field(description="the words, each with its places")


class ListedTemplate(BaseModel):
    """The last version of a template."""

    name: str
    version: int
    subject: str
    words: dict[str, list[str]]
    created_at: Time
    created_by: str


class ShownTemplate(ListedTemplate):
    """A version of a template."""

    model_config = ConfigDict(populate_by_name=True)

    tenant: str
    sender: str
    from_: str = Field(alias="from")
    reply_to: str | None = None
    body: str | None = None
    html: str | None = None
    headers: dict[str, str]
    unsubscribe: str | None = None


class Rendering(Received):
    """Values with which a template is tried. Nothing is stored or sent."""

    params: dict[str, Any] = Field(
        default_factory=dict, description="the words: texts, numbers, true or false"
    )
    # parseaddr() takes time by the square of the length
    recipient: str | None = Field(
        default=None, max_length=MAX_FIELD_CHARACTERS, description="`NAME <ADDRESS>` or ADDRESS"
    )


class RenderedMail(BaseModel):
    """The mail that a template makes. Date and Message-ID are examples."""

    subject: str
    body: str | None = None
    html: str | None = None
    size: int = Field(description="octets of the content")
    content: str = Field(description="the whole content (RFC 5322)")


class _Templates:
    def __init__(self, api: Api) -> None:
        self._database = api.database
        # one thread at a time, so that other requests have half of the CPU
        self._alone = asyncio.Lock()

    async def put(self, call: Call) -> Answer:
        """Store a version, unless the last one is equal."""
        tenant = tenant_of(call.caller, call.query.tenant)
        try:
            name = check_name(call.path["name"])
        except ValueError as error:
            raise Problem(422, "invalid", f"The name: {sentences(str(error))}") from None
        source = _source(call.body)
        async with self._alone:
            given = NamedTemplate(tenant, name, source, await asyncio.to_thread(_compiled, source))
        _check_senders(call.caller, source)
        async with self._database.operating(call.caller) as db:
            try:
                ((version, is_new),) = await TemplateTable(db, call.caller.acting).put([given])
            except PgmtaError as error:  # a scope that was not declared
                raise Problem(
                    422, "invalid", sentences(str(error)), pointer="/unsubscribe"
                ) from None
        return Answer(
            StoredVersion(name=name, version=version, words=given.words), 201 if is_new else 200
        )

    async def list(self, call: Call) -> Answer:
        """List the last versions by name."""
        tenant, query = tenant_of(call.caller, call.query.tenant), call.query
        async with self._database.operating(call.caller) as db:
            table = TemplateTable(db, call.caller.acting)
            rows = await table.rows(tenant, query.after, query.limit + 1)
        rows, place = cut(rows, query.limit, lambda row: row["name"])
        found = [ListedTemplate(**row) for row in rows]
        return Answer(Page[ListedTemplate](data=found, next=place))

    async def show(self, call: Call) -> Answer:
        """Show a version."""
        found = await self._find(call)
        return Answer(ShownTemplate(**{**found.row, "from": found.source.from_}))

    async def render(self, call: Call) -> Answer:
        """Compose a mail, which goes nowhere."""
        found = await self._find(call)
        async with self._alone:
            return Answer(await asyncio.to_thread(_rendered, found.source, call.body))

    async def _find(self, call: Call) -> StoredTemplate:
        tenant = tenant_of(call.caller, call.query.tenant)
        async with self._database.operating(call.caller) as db:
            table = TemplateTable(db, call.caller.acting)
            found = await table.find(tenant, call.path["name"], call.query.version)
        if found is None:
            raise not_found("template")
        return found


def _source(body: TemplateBody) -> TemplateSource:
    sender = address_of(body.from_).strip() if body.sender is None else body.sender
    return TemplateSource(
        sender=sender, from_=body.from_, reply_to=body.reply_to or None, subject=body.subject,
        body=body.body or None, html=body.html or None, headers=body.headers,
        unsubscribe=body.unsubscribe or None,
    )  # fmt: skip


def _compiled(source: TemplateSource) -> Template:
    """Return the compiled template. Raises Problem."""
    try:
        return compile_template(source)
    except TemplateError as error:
        part, _, field = error.part.partition(".")
        line = f", line {error.line}" if part in ("body", "html") else ""
        advice = sentences(error.advice)
        detail = f"{error.part}{line}: {advice}" if part else advice
        pointer = pointer_of(part, field) if field else pointer_of(part) if part else ""
        raise Problem(422, "invalid", detail, pointer=pointer) from None


def _rendered(source: TemplateSource, given: Rendering) -> RenderedMail:
    """Return the mail. Raises Problem."""
    to = [_mailbox(given.recipient)] if given.recipient else []
    try:
        parts = _compiled(source).fill(given.params, to)
    except ValueError as error:
        raise Problem(422, "invalid", sentences(str(error)), pointer="/params") from None
    octets = compose_head(parts, MessageIdentity(_EXAMPLE_ID, datetime.now(UTC)))
    return RenderedMail(
        subject=parts.subject, body=parts.body, html=parts.html, size=len(octets),
        content=octets.decode(),
    )  # fmt: skip


def _check_senders(caller: Caller, source: TemplateSource) -> None:
    """Raise Problem for an address from which the key may not send.

    An address that is a word is checked when a mail has its value.
    """
    senders = Senders.of(caller)
    address = address_of(source.from_).strip()
    if not address.startswith("{{"):
        senders.check(address, "from")
    senders.check(source.sender, "sender")


def _mailbox(text: str) -> NamedMailbox:
    name, address = parseaddr(text)
    try:
        parse_mailbox(address, utf8=True)
    except AddressError as error:
        raise Problem(422, "invalid", f"recipient: {error}.", pointer="/recipient") from None
    return name, address


def operations(api: Api) -> list[Operation]:
    """Return the operations."""
    templates = _Templates(api)
    path = "/v1/templates/{name}"
    return [
        Operation(
            method="GET",
            path="/v1/templates",
            scope=_SCOPE,
            summary="List the last version of each template",
            handler=templates.list,
            query=TemplatePages,
            answers={200: Page[ListedTemplate]},
            problems=("tenant-refused",),
        ),
        Operation(
            method="PUT",
            path=path,
            scope=_SCOPE,
            summary="Store a version of a template",
            handler=templates.put,
            body=TemplateBody,
            query=TenantQuery,
            max_body=_MAX_BODY_OCTETS,
            answers={200: StoredVersion, 201: StoredVersion},
            problems=("sender-refused", "tenant-refused"),
        ),
        Operation(
            method="GET",
            path=path,
            scope=_SCOPE,
            summary="Show a template",
            handler=templates.show,
            query=TemplateQuery,
            answers={200: ShownTemplate},
            problems=("tenant-refused", "not-found"),
        ),
        Operation(
            method="POST",
            path=f"{path}/render",
            scope=_SCOPE,
            summary="Compose a mail from a template, and send nothing",
            handler=templates.render,
            body=Rendering,
            query=TemplateQuery,
            answers={200: RenderedMail},
            problems=("tenant-refused", "not-found"),
        ),
    ]
