"""Events: what became of mail, read behind a cursor, waited for, or as a stream."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Annotated, Any, Final

import psycopg
from aiohttp import web
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import to_json

from pgmta.http.server_connection import connection_of
from pgmta.store.queries import feature_queries
from pgmta_features.events.kinds import KINDS
from pgmta_features.events.news import Mark, event_news
from pgmta_features.http_api.api import Api
from pgmta_features.http_api.caller import Caller
from pgmta_features.http_api.operation import Answer, Call, GivenTime, Operation, Received, Time
from pgmta_features.http_api.pages import words_of_list
from pgmta_features.http_api.problem import Problem, sentences

STREAM_TYPE: Final = "text/event-stream"
"""The type of server-sent events (HTML Living Standard, section 9.2)."""
MAX_WAITING = 200
"""Requests of a process that wait for events, streams among them."""
MAX_WAITING_OF_KEY = 20
"""Those of one key."""

_GONE = "PG409"  # SQLSTATE of a cursor whose events were lost or have expired
_UNSUBSCRIBED = "PG404"  # SQLSTATE of a key whose subscription has ended
_MAX_LIMIT, _STREAM_LIMIT = 1000, 100  # events of a page, and those that a stream reads at once
_MAX_WAIT_S = 30
_LOOK_INTERVAL_S = 1.0  # at the key and the server, and for a notification that was lost
_HEARTBEAT_S = 15.0
_CLIENT_PATIENCE_S = 60.0  # for a client that does not take what a stream sends
_RETRY_S = 5
_CURSOR = re.compile(r"\d{1,18}\.\d{1,18}\.\d{1,10}", re.ASCII)

_SQL = feature_queries("events")
_API_SQL = feature_queries("http_api")


def _cursor(text: str) -> str:
    if not _CURSOR.fullmatch(text):
        raise ValueError("it is no cursor: give one that an answer had")
    return text


class EventsQuery(Received):
    """What a reader wants."""

    after: Annotated[str, AfterValidator(_cursor)] | None = Field(
        default=None,
        description="`next` of the last answer; without it from the first that is kept",
    )
    since: GivenTime | None = Field(
        default=None, description="a time in place of `after`; some older events may come, too"
    )
    limit: int = Field(default=100, ge=1, le=_MAX_LIMIT)
    kind: Annotated[str, AfterValidator(words_of_list(KINDS, "kind"))] | None = Field(
        default=None, description="kinds, such as delivered,bounced; without it all"
    )
    wait: int = Field(
        default=0, ge=0, le=_MAX_WAIT_S, description="seconds to wait if there is no event"
    )


class Event(BaseModel):
    """What became of a message, or of one of its recipients. What is not known is absent."""

    model_config = ConfigDict(extra="allow")

    id: str
    type: str = Field(description="mail. and the kind")
    time: Time
    message_id: str | None = None
    recipient: str | None = None
    recipients: list[str] | None = Field(default=None, description="of accepted")
    sender: str | None = None
    tenant: str | None = None
    message_id_header: str | None = None
    submitted_by: str | None = None
    metadata: dict[str, Any] | None = None
    attempt: int | None = None
    code: int | None = None
    enhanced: str | None = None
    reply: str | None = None
    class_: str | None = Field(default=None, alias="class")
    host: str | None = None
    reason: str | None = None


class Events(BaseModel):
    """Events in the order of their commits."""

    data: list[Event]
    next: str = Field(description="the cursor to go on from, also if there was no event")


class _Unsubscribed(Exception):
    """An operator has ended the subscription of the key since it was last noted."""


class _Readers:
    """Reads events for keys, and bounds how many of them wait."""

    def __init__(self, api: Api) -> None:
        self._database = api.database
        self._site = api.site
        self._news = event_news(api.site.resources)
        self._waiting: Counter[str] = Counter()
        self._noted: dict[str, float] = {}  # when a key was last noted as a reader

    async def events(self, call: Call) -> Answer | web.StreamResponse:
        """Answer with a page, which may be waited for, or with a stream."""
        query: EventsQuery = call.query
        if query.after is not None and query.since is not None:
            raise Problem(400, "invalid", "after and since exclude each other.",
                          errors=[{"parameter": "since", "detail": "Leave one out."}])  # fmt: skip
        try:
            await self._note(call.caller)
            return await self._answer(call)
        except _Unsubscribed:
            self._noted.pop(call.caller.name, None)
            await self._note(call.caller)
            return await self._answer(call)

    async def _answer(self, call: Call) -> Answer | web.StreamResponse:
        query: EventsQuery = call.query
        kinds = query.kind.split(",") if query.kind else None
        waits = call.request.method == "GET"  # HEAD has no answer to wait for
        if waits and STREAM_TYPE in call.request.headers.get("Accept", ""):
            return await self._stream(call, kinds)
        after = query.after or await self._begin(call.caller, query.since)
        if waits and query.wait:
            with self._place(call.caller):
                data, reached = await self._awaited(call, after, kinds)
        else:
            data, reached = await self._page(call.caller, after, kinds, query.limit)
        return Answer({"data": data, "next": reached})

    # -- a page --

    async def _note(self, caller: Caller) -> None:
        """Subscribe a key at its first call, and note that it reads, once a minute."""
        if time.monotonic() < self._noted.get(caller.name, 0.0):
            return
        async with self._database.acting(caller) as session:
            await session.rows(_SQL["reader"])
        self._noted[caller.name] = time.monotonic() + 60.0

    async def _begin(self, caller: Caller, since: datetime | None) -> str:
        """Return the cursor of a time; None: of the first event that is kept."""
        async with self._database.acting(caller) as session:
            name = "since" if since else "begin"
            return str(await session.value(_SQL[name], {"time": since} if since else {}))

    async def _page(
        self, caller: Caller, after: str, kinds: Sequence[str] | None, limit: int
    ) -> tuple[list[dict[str, Any]], str]:
        """Return the next events, and the place that was reached."""
        rows = await self._read(caller, after, kinds, limit)
        reached = rows[-1]["cursor"] if rows else after
        return [row["document"] for row in rows if row["id"]], reached

    async def _awaited(
        self, call: Call, after: str, kinds: Sequence[str] | None
    ) -> tuple[list[dict[str, Any]], str]:
        end = time.monotonic() + call.query.wait
        connection = connection_of(call.request)
        connection.allow_time(call.query.wait + _CLIENT_PATIENCE_S)
        while True:
            mark = self._news.mark()
            data, reached = await self._page(call.caller, after, kinds, call.query.limit)
            left = end - time.monotonic()
            if data or left <= 0 or connection.ending:
                return data, reached
            if reached == after:
                await self._news.wait(mark, min(left, _LOOK_INTERVAL_S))
                await call.renew()
            after = reached

    async def _read(
        self, caller: Caller, after: str, kinds: Sequence[str] | None, limit: int
    ) -> list[dict[str, Any]]:
        """Return events that the key sees. Raises Problem, _Unsubscribed."""
        fields = {"after": after, "most": limit, "kinds": kinds}
        try:
            async with self._database.acting(caller, places=self._database.readers) as session:
                return await session.rows(_API_SQL["events"], fields)
        except psycopg.DatabaseError as error:
            if error.sqlstate == _UNSUBSCRIBED:
                raise _Unsubscribed from None
            if error.sqlstate != _GONE:
                raise
            raise Problem(
                409, "cursor-gone",
                f"{sentences(error.diag.message_primary)} Read on with `since`, the time of the "
                "last event that you have less some minutes, and leave out the ids that you know. "
                "What became of mail meanwhile is in GET /v1/messages with the same `since`.",
                errors=[{"parameter": "after", "detail": "Its events are not there."}],
            ) from None  # fmt: skip

    # -- those that wait --

    @contextmanager
    def _place(self, caller: Caller) -> Iterator[None]:
        """Count a request that waits. Raises Problem."""
        if self._waiting.total() >= MAX_WAITING or self._waiting[caller.name] >= MAX_WAITING_OF_KEY:
            raise Problem(503, "busy", "Too many requests wait for events.",
                          headers={"Retry-After": str(_RETRY_S)})  # fmt: skip
        self._waiting[caller.name] += 1
        try:
            yield
        finally:
            self._waiting[caller.name] -= 1
            if not self._waiting[caller.name]:
                del self._waiting[caller.name]

    async def _stream(self, call: Call, kinds: Sequence[str] | None) -> web.StreamResponse:
        query: EventsQuery = call.query
        after = call.request.headers.get("Last-Event-ID") or query.after
        if after is not None and not _CURSOR.fullmatch(after):
            raise Problem(400, "invalid", "Last-Event-ID is no cursor of an event.")
        with self._place(call.caller):
            after = after or await self._begin(call.caller, query.since)
            rows = await self._read(call.caller, after, kinds, _STREAM_LIMIT)
            response = web.StreamResponse(
                headers=self._site.answers.bare_fields({"Content-Type": STREAM_TYPE})
            )
            await response.prepare(call.request)
            # after either the client asks again, and gets the problem then
            with suppress(Problem, _Unsubscribed, ConnectionError):
                await self._send(call, response, rows[-1]["cursor"] if rows else after, kinds, rows)
        return response

    async def _send(
        self,
        call: Call,
        response: web.StreamResponse,
        after: str,
        kinds: Sequence[str] | None,
        rows: list[dict[str, Any]],
    ) -> None:
        """Send events until the client goes, the key ends, or the server stops."""
        connection = connection_of(call.request)
        await response.write(b":\n\n")  # so that a client sees at once that it is connected
        said = time.monotonic()
        mark: Mark | None = None
        while not connection.ending:
            connection.allow_time(_CLIENT_PATIENCE_S)
            if rows:
                await response.write(b"".join(map(_sent, rows)))
                after, said = rows[-1]["cursor"], time.monotonic()
            elif mark:
                if time.monotonic() - said > _HEARTBEAT_S:
                    await response.write(b":\n\n")
                    said = time.monotonic()
                await self._news.wait(mark, _LOOK_INTERVAL_S)
            await call.renew()
            await self._note(call.caller)
            mark = self._news.mark()
            rows = await self._read(call.caller, after, kinds, _STREAM_LIMIT)


def _sent(row: Mapping[str, Any]) -> bytes:
    """Return an event of a stream; one without data only says how far the stream has come."""
    head = b"id: %s\n" % row["cursor"].encode()
    if row["id"] is None:
        return head + b"\n"
    return head + b"event: mail.%s\ndata: %s\n\n" % (row["kind"].encode(), to_json(row["document"]))


def operations(api: Api) -> list[Operation]:
    """Return the operations."""
    return [
        Operation(
            method="GET",
            path="/v1/events",
            scope="events",
            summary="Read what became of mail; with Accept: text/event-stream as a stream",
            handler=_Readers(api).events,
            query=EventsQuery,
            answers={200: Events},
            other_answers={STREAM_TYPE: "an event each, until the client goes"},
            problems=("cursor-gone",),
        )
    ]
