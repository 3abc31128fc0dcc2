"""Suppressions of the tenant of a key: listed, added, released and imported."""

from __future__ import annotations

import asyncio
import io
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from pgmta.config.types import hint
from pgmta.errors import AddressError, ConfigError
from pgmta.mail.address import parse_recipient, with_domain
from pgmta_features.http_api.api import Api
from pgmta_features.http_api.caller import Caller
from pgmta_features.http_api.checking import is_strange
from pgmta_features.http_api.intake.senders import tenant_of
from pgmta_features.http_api.operation import Answer, Call, GivenTime, Operation, Time
from pgmta_features.http_api.pages import Page, PageQuery, TenantQuery, cut, no_place
from pgmta_features.http_api.problem import Problem, sentences
from pgmta_features.http_api.spooled import (
    CSV_TYPE,
    MAX_LINES_LEFT_OUT,
    MAX_LIST_OCTETS,
    WORK_TIMEOUT_S,
    LineLeftOut,
    spooled,
)
from pgmta_features.suppressions.suppression_file import (
    MAX_SOURCE_CHARACTERS,
    BadLine,
    read_suppressions,
    source_of,
)
from pgmta_features.suppressions.suppression_table import (
    REASONS,
    Scopes,
    Suppression,
    SuppressionTable,
    WantedSuppressions,
)

_SCOPE = "suppressions"
_PATH = "/v1/suppressions"
_LINES_PER_COMMIT = 2000


def _address(text: str) -> str:
    try:
        return with_domain(*parse_recipient(text))
    except AddressError as error:
        raise ValueError(str(error)) from None


def _reason(text: str) -> str:
    if text not in REASONS:
        raise ValueError(f"there is no reason {text[:64]!r}; {hint(text, REASONS)}")
    return text


type _Address = Annotated[str, AfterValidator(_address)]
type _Reason = Annotated[str, AfterValidator(_reason)]


class SuppressionPages(TenantQuery, PageQuery):
    """Which suppressions are listed."""

    address: _Address | None = Field(default=None, description="of this address")
    scope: str | None = Field(default=None, description="of this kind of mail")
    reason: _Reason | None = Field(default=None, description=f"one of {', '.join(REASONS)}")


class NewSuppression(TenantQuery):
    """An address that is to get no mail."""

    address: _Address
    scope: str = Field(default="", description="kind of mail; all kinds without it")
    reason: _Reason = Field(default="operator", description=f"one of {', '.join(REASONS)}")
    source: str = Field(default="", description="where you know it from; the key without it")
    until: GivenTime | None = Field(default=None, description="when it ends; never without it")


class Release(TenantQuery):
    """An address whose owner wants mail again."""

    address: _Address
    scope: str | None = Field(default=None, description="kind of mail; all of them without it")


class ImportQuery(TenantQuery):
    """What lines have that do not say so themselves."""

    scope: str = Field(default="", description="kind of mail; all kinds without it")
    reason: _Reason = Field(default="operator", description=f"one of {', '.join(REASONS)}")


class ListedSuppression(BaseModel):
    """A suppression that holds."""

    address: str
    scope: str
    reason: str
    source: str
    at: Time
    until: Time | None = None


class Added(BaseModel):
    """What it changed."""

    outcome: str = Field(
        description="new, newer (than what was known), older (that holds on) or forgotten"
    )


class Released(BaseModel):
    """How many suppressions of the address have ended."""

    released: int


class Imported(BaseModel):
    """How many lines there were, by what they changed."""

    new: int = 0
    newer: int = 0
    older: int = 0
    forgotten: int = 0
    bad: int = 0
    problems: list[LineLeftOut] = Field(description=f"the first {MAX_LINES_LEFT_OUT} bad lines")


class _Suppressions:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._database = api.database

    async def list(self, call: Call) -> Answer:
        """List those of the tenant, by address and scope."""
        wanted: SuppressionPages = call.query
        which = WantedSuppressions(
            wanted.address, tenant_of(call.caller, wanted.tenant), wanted.scope, wanted.reason
        )
        after = _place(wanted.after) if wanted.after else ("", "")
        async with self._database.operating(call.caller) as db:
            table = SuppressionTable(db, call.caller.acting)
            rows = await table.page(which, after, wanted.limit + 1)
        rows, place = cut(rows, wanted.limit, _place_of)
        found = [ListedSuppression(**row) for row in rows]
        return Answer(Page[ListedSuppression](data=found, next=place))

    async def add(self, call: Call) -> Answer:
        """Suppress an address."""
        body: NewSuppression = call.body
        tenant = tenant_of(call.caller, body.tenant)
        if body.until and body.until <= datetime.now(UTC):
            raise Problem(422, "invalid", "until: It is over.", pointer="/until")
        given = Suppression(
            address=body.address, tenant=tenant, scope=body.scope, reason=body.reason,
            source=_source(body.source, call.caller), until=body.until,
        )  # fmt: skip
        async with self._database.operating(call.caller) as db:
            table = SuppressionTable(db, call.caller.acting)
            _check(await table.scopes(), tenant, body.scope)
            outcome = await table.add(given)
        return Answer(Added(outcome=outcome))

    async def release(self, call: Call) -> Answer:
        """Release an address."""
        body: Release = call.body
        tenant = tenant_of(call.caller, body.tenant)
        async with self._database.operating(call.caller) as db:
            table = SuppressionTable(db, call.caller.acting)
            released = await table.release(body.address, tenant, body.scope)
        return Answer(Released(released=released))

    async def import_list(self, call: Call) -> Answer:
        """Suppress the addresses of a list, as `queuectl suppression import` does."""
        query: ImportQuery = call.query
        tenant = tenant_of(call.caller, query.tenant)
        default = Suppression(
            address="", tenant=tenant, scope=query.scope, reason=query.reason,
            source=f"import by {call.caller.acting}",
        )  # fmt: skip
        outcomes: Counter[str] = Counter()
        problems: list[LineLeftOut] = []
        async with (
            spooled(call, self._api.config.limits.request, self._api.lists) as file,
            self._database.operating(call.caller, timeout_s=WORK_TIMEOUT_S) as db,
        ):
            table = SuppressionTable(db, call.caller.acting)
            scopes = await table.scopes()
            _check(scopes, tenant, query.scope)
            lines = io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="")
            found = read_suppressions("body", lines, default, _of(tenant, scopes))
            try:
                while some := await asyncio.to_thread(_some, found):
                    good: list[Suppression] = []
                    for each in some:
                        if not isinstance(each, BadLine):
                            given = each.source != default.source
                            good.append(_with_key(each, call.caller) if given else each)
                        elif len(problems) < MAX_LINES_LEFT_OUT:
                            problems.append(LineLeftOut(line=each.line, detail=each.reason))
                    outcomes["bad"] += len(some) - len(good)
                    if good:
                        outcomes.update(await table.put(good))
            except ConfigError as error:  # the first line
                detail = "; ".join(each.removeprefix("body:") for each in error.problems)
                raise Problem(422, "invalid", sentences(f"Line {detail}")) from None
            finally:
                lines.detach()
            await table.note_import("body", outcomes)
        return Answer(Imported(**outcomes, problems=problems))


def _some(found: Iterator[Suppression | BadLine]) -> list[Suppression | BadLine]:
    """Read some lines, good or bad. It runs in a thread, because others are served meanwhile."""
    return list(islice(found, _LINES_PER_COMMIT))


def _with_key(given: Suppression, caller: Caller) -> Suppression:
    return replace(given, source=_source(given.source, caller))


def _source(text: str, caller: Caller) -> str:
    """Return words of proof that end with their key: pgmta's own, such as `message 1`, prove more.

    They are '' without a text.
    """
    if not (words := source_of(text)):
        return ""
    by = f", by {caller.acting}"
    return words[: MAX_SOURCE_CHARACTERS - len(by)] + by


def _check(scopes: Scopes, tenant: str, scope: str) -> None:
    try:
        scopes.check(tenant, scope)
    except ValueError as error:
        detail = f"{error}".partition(" (queuectl")[0]
        raise Problem(422, "invalid", f"scope: {sentences(detail)}", pointer="/scope") from None


def _of(tenant: str, scopes: Scopes) -> Callable[[str, str], None]:
    """Return a check of the tenant and the scope of a line."""

    def check(named: str, scope: str) -> None:
        if named != tenant:
            raise ValueError("the list is for another tenant")
        scopes.check(named, scope)

    return check


def _place_of(row: Mapping[str, Any]) -> str:
    return urlsafe_b64encode(json.dumps([row["address"], row["scope"]]).encode()).decode()


def _place(text: str) -> tuple[str, str]:
    try:
        found: Any = json.loads(urlsafe_b64decode(text))
    except ValueError:
        raise no_place() from None
    if isinstance(found, list) and [type(each) for each in found] == [str, str]:
        address, scope = found
        if not is_strange(address + scope):
            return address, scope
    raise no_place()


def operations(api: Api) -> list[Operation]:
    """Return the operations."""
    suppressions = _Suppressions(api)
    return [
        Operation(
            method="GET",
            path=_PATH,
            scope=_SCOPE,
            summary="List addresses that get no mail, or look one up",
            handler=suppressions.list,
            query=SuppressionPages,
            answers={200: Page[ListedSuppression]},
            problems=("tenant-refused",),
        ),
        Operation(
            method="POST",
            path=_PATH,
            scope=_SCOPE,
            summary="Suppress an address",
            handler=suppressions.add,
            body=NewSuppression,
            answers={200: Added},
            problems=("tenant-refused",),
        ),
        Operation(
            method="POST",
            path=f"{_PATH}/release",
            scope=_SCOPE,
            summary="Release an address, because its owner wants mail again",
            handler=suppressions.release,
            body=Release,
            answers={200: Released},
            problems=("tenant-refused",),
        ),
        Operation(
            method="POST",
            path=f"{_PATH}/import",
            scope=_SCOPE,
            summary="Suppress the addresses of a list",
            handler=suppressions.import_list,
            query=ImportQuery,
            other_bodies={
                CSV_TYPE: "An address a line; or the first line names columns: address, and of "
                "scope, reason, source, at, until what you like. Bad lines are left out."
            },
            max_stream=MAX_LIST_OCTETS,
            answers={200: Imported},
            problems=("tenant-refused",),
        ),
    ]
