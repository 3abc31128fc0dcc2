"""Campaigns of the tenant of a key, by what `queuectl campaign` calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal
from urllib.parse import quote

from aiohttp import web
from pydantic import AfterValidator, BaseModel, Field, model_validator

from pgmta.compose.template import Template, compile_template
from pgmta.errors import ConfigError, PgmtaError, TemplateError
from pgmta.http.server_connection import connection_of
from pgmta.postgres.operator import OperatorConnection
from pgmta_features.campaigns.campaign_table import CampaignTable
from pgmta_features.campaigns.list_import import import_rows
from pgmta_features.campaigns.list_table import OUTCOMES, CampaignTemplate, ListTable
from pgmta_features.campaigns.lists.row_check import (
    RECIPIENT,
    RowCheck,
    read_mapping,
    words_of,
)
from pgmta_features.campaigns.lists.sources import SEPARATORS, csv_in
from pgmta_features.campaigns.waits import reasons, without_commands
from pgmta_features.http_api.api import Api
from pgmta_features.http_api.caller import Caller
from pgmta_features.http_api.intake.senders import (
    Senders,
    address_of,
    check_credential,
    priority_of,
    tenant_of,
)
from pgmta_features.http_api.operation import (
    Answer,
    Call,
    GivenTime,
    Nothing,
    Operation,
    Received,
    Time,
    Version,
    collected,
)
from pgmta_features.http_api.pages import Page, PageQuery, TenantQuery, cut, words_of_list
from pgmta_features.http_api.problem import Problem, conflict, not_found, sentences
from pgmta_features.http_api.spooled import (
    CSV_TYPE,
    MAX_LINES_LEFT_OUT,
    MAX_LIST_OCTETS,
    PIECE_OCTETS,
    WORK_TIMEOUT_S,
    LineLeftOut,
    spooled,
)

NDJSON_TYPE = "application/x-ndjson"

_SCOPE = "campaigns"
_PATH = "/v1/campaigns"
_ONE = f"{_PATH}/{{name}}"
_USUAL_PRIORITY = 7  # as of `queuectl campaign create`
_PATIENCE_S = 30.0  # for a client that does not take the next piece
_RENEW_INTERVAL_S = 1.0
_MAX_LINES_IN_ERRORS = 20


def _clock(text: str) -> str:
    hours, _, minutes = text.partition(":")
    ok = text.isascii() and len(text) == 5 and hours.isdecimal() and minutes.isdecimal()
    if not ok or int(minutes) > 59 or (int(hours), int(minutes)) > (24, 0):
        raise ValueError("expected a time such as 09:00")
    return text


type _Clock = Annotated[str, AfterValidator(_clock)]


class CampaignPages(TenantQuery, PageQuery):
    """Which campaigns are listed."""


class NewCampaign(TenantQuery):
    """A campaign without recipients."""

    name: str
    template: str = Field(description="name of the template of its mail")
    version: Version | None = Field(default=None, description="the last one without it")
    credential: str = Field(
        description="name by which routes and budgets know its mail: metadata.credential"
    )
    sender: str | None = Field(
        default=None, description="envelope sender; that of the template without it"
    )
    scope: str = Field(default="", description="kind of mail that recipients unsubscribe from")
    priority: int | None = Field(
        default=None, ge=0, le=9, description="0 is first, 9 is last; 7 without it"
    )
    visible_at: GivenTime | None = Field(default=None, description="it begins then")
    deadline: GivenTime | None = Field(default=None, description="nothing is sent after it")
    opens: _Clock | None = Field(
        default=None, description="its mail begins from this time of a day on, such as 09:00"
    )
    closes: _Clock | None = Field(default=None, description="and before this one")
    days: list[Annotated[int, Field(ge=1, le=7)]] | None = Field(
        default=None, description="on these days of the week: 1 is Monday"
    )
    zone: str | None = Field(default=None, description="time zone of these; UTC without it")
    zone_column: str | None = Field(
        default=None, description="column of its lists with the time zone of each recipient"
    )


class ImportQuery(TenantQuery):
    """How a list is written. Separator and encoding are recognised if they are not named."""

    separator: Literal["comma", "semicolon", "tab"] | None = None
    encoding: str | None = Field(default=None, description="such as windows-1250")
    column: dict[str, str] | None = Field(
        default=None,
        description="`column.WORD=COLUMN` for each word whose column has another name",
    )

    @model_validator(mode="before")
    @classmethod
    def _collect(cls, fields: Any) -> Any:
        return collected(fields, "column")


class RecipientsQuery(TenantQuery):
    """Which recipients are written."""

    state: Annotated[str, AfterValidator(words_of_list(OUTCOMES, "state"))] | None = Field(
        default=None, description=f"in these states, separated by commas: {', '.join(OUTCOMES)}"
    )
    words: bool = Field(default=False, description="with the words of each")


class Start(Received):
    """How a campaign begins."""

    jobs: int = Field(default=1, ge=1, le=1000, description="parts that stop separately")
    part: Decimal | None = Field(
        default=None, gt=0, description="send this share below 1, or so many, first"
    )
    pause: float | None = Field(
        default=None, ge=0, le=10**7, description="seconds until the rest follows"
    )


class Resume(Received):
    """How a campaign goes on."""

    halted: bool = Field(
        default=False, description="although bounces have halted it; they no longer count"
    )


class Retry(Resume):
    """What is sent again."""

    unknown: bool = Field(
        default=False, description="also mail that may have arrived: maybe twice then"
    )


class Copy(Received):
    """A campaign like another one, with its recipients; its times are given anew."""

    name: str
    states: list[str] | None = Field(
        default=None, description=f"only recipients in these states: {', '.join(OUTCOMES)}"
    )
    recipients: bool = Field(default=True, description="false: copy none")
    visible_at: GivenTime | None = Field(default=None, description="it begins then")
    deadline: GivenTime | None = Field(default=None, description="nothing is sent after it")


class Exchange(Received):
    """Another template, or version of it, for mail that is not in the queue yet."""

    template: str
    version: Version | None = Field(default=None, description="the last one without it")
    reason: str | None = Field(default=None, description="why; needed after the start")


class CreatedCampaign(BaseModel):
    """A campaign that was made, and the columns that its lists have to have."""

    name: str
    template: str
    version: int
    columns: list[str]


class ListedCampaign(BaseModel):
    """How far a campaign is: recipients by state."""

    name: str
    tenant: str
    status: str = Field(description="not started, halted, or the statuses of its jobs")
    recipients: int
    unsent: int
    queued: int
    sent: int
    errored: int
    invalid: int
    unknown: int
    bounced: int
    unsubscribed: int
    complained: int
    done: bool
    credential: str
    halted_reason: str | None = None
    created_at: Time


class Failures(BaseModel):
    """How many recipients failed alike."""

    state: str
    class_: str | None = Field(default=None, alias="class")
    code: str | None = None
    number: int


class Campaign(ListedCampaign):
    """The books of a campaign, as `queuectl campaign show` has them."""

    rate: float | None = Field(default=None, description="mails per second of its credential")
    wait: float | None = Field(default=None, description="seconds that the rest takes at it")
    failures: list[Failures]
    waits_for: list[str] = Field(description="why it does not move")


class ImportedList(BaseModel):
    """What became of the rows of a list."""

    rows: int
    imported: int
    suppressed: int = Field(description="of those that were imported: they get nothing")
    bad: int
    duplicates: int
    encoding: str
    separator: str
    columns: dict[str, str] = Field(description="the column of each word")
    left_out: list[str] = Field(description="columns that no word has")
    problems: list[LineLeftOut] = Field(
        description=f"the first {MAX_LINES_LEFT_OUT} lines left out"
    )


class _Problems:
    def __init__(self) -> None:
        self.found: list[LineLeftOut] = []

    def add(self, line: int, reason: str) -> None:
        if len(self.found) < MAX_LINES_LEFT_OUT:
            self.found.append(LineLeftOut(line=line, detail=reason))


class _Unseen:
    def show(self, position: int, number: int) -> None:
        """Show nothing."""


class _Campaigns:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._database = api.database

    async def list(self, call: Call) -> Answer:
        """List the campaigns of the tenant, the newest first."""
        tenant, limit = tenant_of(call.caller, call.query.tenant), call.query.limit
        async with self._database.operating(call.caller) as db:
            states = await CampaignTable(db, call.caller.acting).states(
                tenant, None, limit + 1, call.query.after_id() or None
            )
        states, place = cut(states, limit, lambda each: each.id)
        found = [
            ListedCampaign(**{**asdict(each), "status": each.status, "done": each.done})
            for each in states
        ]
        return Answer(Page[ListedCampaign](data=found, next=place))

    async def create(self, call: Call) -> Answer:
        """Make a campaign."""
        given = call.body.model_dump()
        given["tenant"] = tenant_of(call.caller, call.body.tenant)
        check_credential(call.caller, given["credential"], ("credential",))
        given["priority"] = priority_of(call.caller, given["priority"], _USUAL_PRIORITY)
        async with self._database.operating(call.caller) as db:
            table = ListTable(db, call.caller.acting)
            async with table.creating(given) as made:
                template = await _compiled(made)
                _check_senders(call.caller, made, given["sender"])
        zone = [given["zone_column"]] if given["zone_column"] else []
        columns = list(dict.fromkeys([RECIPIENT, *words_of(template), *zone]))
        body = CreatedCampaign(name=given["name"], template=made.row["template"],
                               version=made.row["version"], columns=columns)  # fmt: skip
        return Answer(body, 201, self._location(given["name"], call.body.tenant))

    async def show(self, call: Call) -> Answer:
        """Show the books of a campaign."""
        async with self._campaign(call) as (db, number):
            return await _books(call, db, number)

    async def start(self, call: Call) -> Answer:
        """Begin to send; the rate is that of its credential."""
        body: Start = call.body
        async with self._campaign(call, sends=True) as (db, number):
            table = CampaignTable(db, call.caller.acting)
            await table.start(number, None, body.jobs, body.part, body.pause)
            return await _books(call, db, number)

    async def stop(self, call: Call) -> Answer:
        """Stop its jobs."""
        async with self._campaign(call) as (db, number):
            await CampaignTable(db, call.caller.acting).stop(number)
            return await _books(call, db, number)

    async def resume(self, call: Call) -> Answer:
        """Go on with the rest."""
        async with self._campaign(call, sends=True) as (db, number):
            table = CampaignTable(db, call.caller.acting)
            await table.resume(number, halted=call.body.halted)
            return await _books(call, db, number)

    async def retry(self, call: Call) -> Answer:
        """Send again what failed."""
        body: Retry = call.body
        async with self._campaign(call, sends=True) as (db, number):
            table = CampaignTable(db, call.caller.acting)
            await table.retry(number, unknown=body.unknown, halted=body.halted)
            return await _books(call, db, number)

    async def exchange(self, call: Call) -> Answer:
        """Give it another template."""
        async with self._campaign(call, sends=True, timeout_s=WORK_TIMEOUT_S) as (db, number):
            table = ListTable(db, call.caller.acting)
            async with table.exchanging(number, call.body.model_dump()) as (found, _):
                await _compiled(found)
                _check_senders(call.caller, found, found.row["reverse_path"])
            return await _books(call, db, number)

    async def copy(self, call: Call) -> Answer:
        """Make another one like it."""
        body: Copy = call.body
        async with self._campaign(call, sends=True, timeout_s=WORK_TIMEOUT_S) as (db, number):
            table = CampaignTable(db, call.caller.acting)
            settings = await table.settings(number)
            priority_of(call.caller, settings["priority"], _USUAL_PRIORITY)  # it has the same
            await table.copy(number, body.model_dump())
            answer = await _books(call, db, await table.find(_tenant(call), body.name), body.name)
        return replace(answer, status=201, headers=self._location(body.name, call.query.tenant))

    async def delete(self, call: Call) -> Answer:
        """Delete it with its books."""
        async with self._campaign(call, sends=True, timeout_s=WORK_TIMEOUT_S) as (db, number):
            await CampaignTable(db, call.caller.acting).delete(number)
        return Answer(status=204)

    async def import_list(self, call: Call) -> Answer:
        """Add the recipients of a list."""
        query: ImportQuery = call.query
        problems = _Problems()
        async with (
            spooled(call, self._api.config.limits.request, self._api.lists) as file,
            self._campaign(call, sends=True, timeout_s=WORK_TIMEOUT_S) as (db, number),
        ):
            table = ListTable(db, call.caller.acting)
            campaign = await table.campaign(number)
            zones = await table.zones(campaign)
            with ExitStack() as stack:
                try:
                    given = await asyncio.to_thread(
                        stack.enter_context, csv_in(file, "list", query.separator, query.encoding)
                    )
                    template = await _compiled(campaign)
                    columns = [f"{word}={name}" for word, name in (query.column or {}).items()]
                    mapping = read_mapping(columns, template, campaign.row["zone_column"])
                    check = RowCheck(template, given.columns, mapping, given.encoding, zones)
                    counts = await import_rows(
                        table, campaign, given, check, problems, lambda *_: nullcontext(_Unseen())
                    )
                except ConfigError as error:
                    detail = "; ".join(error.problems).replace("--column ", "column.")
                    raise Problem(422, "invalid", sentences(detail)) from None
                except PgmtaError as error:
                    if type(error) is PgmtaError:  # nobody is left, or another import was first
                        raise _none_left(str(error), problems.found) from None
                    raise
        form = given.form
        assert form  # noqa: S101 - for the type checker: it is no query
        return Answer(ImportedList(
            **counts, encoding=form.encoding.name, separator=form.separator, columns=check.columns,
            left_out=check.left_out, problems=problems.found,
        ))  # fmt: skip

    async def recipients(self, call: Call) -> web.StreamResponse:
        """Write the recipients, as CSV or as lines of JSON.

        They wait in a file: the database keeps no snapshot for a slow client.
        """
        query: RecipientsQuery = call.query
        as_json = CSV_TYPE not in call.request.headers.get("Accept", "")
        connection = connection_of(call.request)
        with self._api.lists.file(call) as file:
            async with self._campaign(call, timeout_s=WORK_TIMEOUT_S) as (db, number):
                table = ListTable(db, call.caller.acting)
                words = (
                    words_of(await _compiled(await table.campaign(number))) if query.words else ()
                )
                states = query.state.split(",") if query.state else ()
                rows = table.export(number, states, words, as_json=as_json, spreadsheet=not as_json)
                async with aclosing(rows) as blocks:
                    async for block in blocks:
                        file.write(block)
            file.seek(0)
            response = web.StreamResponse(headers=self._api.site.answers.bare_fields(
                {"Content-Type": NDJSON_TYPE if as_json else f"{CSV_TYPE}; charset=utf-8"}
            ))  # fmt: skip
            await response.prepare(call.request)
            renewed = time.monotonic()
            with suppress(ConnectionError):
                while piece := file.read(PIECE_OCTETS):
                    connection.allow_time(_PATIENCE_S)
                    if time.monotonic() > renewed + _RENEW_INTERVAL_S:
                        await call.renew()
                        renewed = time.monotonic()
                    await response.write(piece)
                await response.write_eof()
        return response

    def _location(self, name: str, tenant: str | None) -> dict[str, str]:
        more = f"?tenant={quote(tenant)}" if tenant else ""
        return {"Location": f"{self._api.site.base}{_PATH}/{quote(name)}{more}"}

    @asynccontextmanager
    async def _campaign(
        self, call: Call, *, sends: bool = False, timeout_s: float = 2.0
    ) -> AsyncIterator[tuple[OperatorConnection, int]]:
        """Lend a connection and the id of the campaign in the path.

        Whoever has mail sent needs a key with its senders. Raises Problem.
        """
        tenant = _tenant(call)
        if timeout_s == WORK_TIMEOUT_S:
            connection_of(call.request).allow_time(timeout_s)
        async with self._database.operating(call.caller, timeout_s=timeout_s) as db:
            table = CampaignTable(db, call.caller.acting)
            try:
                number = await table.find(tenant, call.path["name"])
            except PgmtaError:
                raise not_found("campaign") from None
            if sends:
                campaign = await ListTable(db, call.caller.acting).campaign(number)
                settings = await table.settings(number)
                _check_senders(call.caller, campaign, settings["sender"])
                check_credential(call.caller, campaign.row["credential"], ())
            yield db, number


def _none_left(reason: str, lines: Sequence[LineLeftOut]) -> Problem:
    """Return the problem of a list of which nothing was imported, with the first bad lines."""
    errors = [
        {"detail": f"Line {each.line}: {sentences(each.detail)}"}
        for each in lines[:_MAX_LINES_IN_ERRORS]
    ]
    detail = sentences(reason, *[each["detail"] for each in errors[:1]])
    return Problem(409, "conflict", detail, errors=errors)


def _tenant(call: Call) -> str:
    return tenant_of(call.caller, call.query.tenant)


async def _books(call: Call, db: OperatorConnection, number: int, name: str = "") -> Answer:
    table = CampaignTable(db, call.caller.acting)
    state, failures = await table.state_and_failures(_tenant(call), name or call.path["name"])
    waits = reasons(state, await table.obstacles(number), datetime.now(UTC))
    fields = {
        **asdict(state), "status": state.status, "done": state.done, "failures": failures,
        "waits_for": without_commands(waits),
    }  # fmt: skip
    return Answer(Campaign(**fields))


async def _compiled(campaign: CampaignTemplate) -> Template:
    try:
        return await asyncio.to_thread(compile_template, campaign.source)
    except TemplateError as error:  # stored by hand, or by another version of pgmta
        raise conflict(f"the template is not valid: {error}") from None


def _check_senders(caller: Caller, campaign: CampaignTemplate, sender: str | None) -> None:
    """Raise Problem if the mail would have a sender, or a From, that the key may not have."""
    senders = Senders.of(caller)
    address = address_of(campaign.source.from_).strip()
    if "{{" in address and senders.normalised is not None:
        raise Problem(
            403, "sender-refused",
            "The address in From of the template is a word, so it is not known whether the key may "
            "send from it.", pointer="/template",
        )  # fmt: skip
    if "{{" not in address:
        senders.check(address, "template")
    senders.check(campaign.source.sender if sender is None else sender, "sender")


def operations(api: Api) -> list[Operation]:
    """Return the operations."""
    campaigns = _Campaigns(api)
    usual = ("tenant-refused", "not-found")
    sends = ("sender-refused", "credential-refused", "conflict")
    changes: list[tuple[str, Any, type[BaseModel], str]] = [
        ("start", campaigns.start, Start, "Begin to send a campaign"),
        ("stop", campaigns.stop, Nothing, "Stop a campaign"),
        ("resume", campaigns.resume, Resume, "Go on with a campaign that was stopped"),
        ("retry", campaigns.retry, Retry, "Send again what failed"),
        ("template", campaigns.exchange, Exchange, "Give a campaign another template"),
    ]
    return [
        Operation(
            method="GET",
            path=_PATH,
            scope=_SCOPE,
            summary="List campaigns, the newest first",
            handler=campaigns.list,
            query=CampaignPages,
            answers={200: Page[ListedCampaign]},
            problems=("tenant-refused",),
        ),
        Operation(
            method="POST",
            path=_PATH,
            scope=_SCOPE,
            summary="Make a campaign without recipients",
            handler=campaigns.create,
            body=NewCampaign,
            answers={201: CreatedCampaign},
            problems=(
                "sender-refused",
                "tenant-refused",
                "credential-refused",
                "priority-refused",
                "conflict",
            ),
        ),
        Operation(
            method="GET",
            path=_ONE,
            scope=_SCOPE,
            summary="Show how far a campaign is, and what it waits for",
            handler=campaigns.show,
            query=TenantQuery,
            answers={200: Campaign},
            problems=usual,
        ),
        Operation(
            method="DELETE",
            path=_ONE,
            scope=_SCOPE,
            summary="Delete a campaign that is done, with its books",
            handler=campaigns.delete,
            query=TenantQuery,
            answers={204: None},
            problems=(*usual, *sends),
        ),
        Operation(
            method="POST",
            path=f"{_ONE}/copy",
            scope=_SCOPE,
            summary="Make a campaign like another one",
            handler=campaigns.copy,
            body=Copy,
            query=TenantQuery,
            answers={201: Campaign},
            problems=(*usual, *sends, "priority-refused"),
        ),
        Operation(
            method="POST",
            path=f"{_ONE}/import",
            scope=_SCOPE,
            summary="Add the recipients of a list; bad lines are left out, and named",
            handler=campaigns.import_list,
            query=ImportQuery,
            other_bodies={
                CSV_TYPE: "The first line names the columns: recipient, and each word of the "
                f"template. The separator is one of {', '.join(SEPARATORS)}. Lines that are bad, "
                "or have a mailbox that the list or the campaign has already, are left out. The "
                "others are stored in one transaction; an error leaves nothing behind."
            },
            max_stream=MAX_LIST_OCTETS,
            answers={200: ImportedList},
            problems=(*usual, *sends),
        ),
        Operation(
            method="GET",
            path=f"{_ONE}/recipients",
            scope=_SCOPE,
            summary="Write the recipients and their outcomes, as lines of JSON or as CSV",
            handler=campaigns.recipients,
            query=RecipientsQuery,
            answers={200: None},
            other_answers={
                NDJSON_TYPE: "a recipient each",
                CSV_TYPE: "with `Accept: text/csv`; no cell begins a formula",
            },
            problems=(*usual, "conflict"),
        ),
        *(
            Operation(
                method="POST",
                path=f"{_ONE}/{word}",
                scope=_SCOPE,
                summary=summary,
                handler=handler,
                body=body,
                query=TenantQuery,
                answers={200: Campaign},
                problems=(*usual, *sends),
            )
            for word, handler, body, summary in changes
        ),
    ]
