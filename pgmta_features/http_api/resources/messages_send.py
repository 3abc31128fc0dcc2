"""Mail that is sent: one message, or many at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field
from pydantic_core import to_json

from pgmta.http.server_connection import connection_of
from pgmta_features.http_api.api import Api
from pgmta_features.http_api.checking import Path
from pgmta_features.http_api.intake.bodies import Bodies
from pgmta_features.http_api.intake.intake import (
    LARGE_PATIENCE_S,
    Intake,
    headers_of,
    results,
    send_request,
)
from pgmta_features.http_api.intake.mails import (
    MAX_BATCH_OCTETS,
    Batch,
    EnvelopeQuery,
    Message,
    given,
    mail_object,
    mail_text,
    message_of,
)
from pgmta_features.http_api.intake.uploads import PIECE_OCTETS, Uploads
from pgmta_features.http_api.operation import MULTIPART_TYPE, RAW_TYPE, Answer, Call, Operation
from pgmta_features.http_api.problem import Problem

_PATH = "/v1/messages"
_MAX_STREAM_OCTETS = 1 << 30  # the database's limit of a message counts
_ANSWER_S = 5.0  # beyond the time for a large batch
_TURN_S = 0.01  # for the mails of a batch; then other requests have their turn
_PROBLEMS = (
    "sender-refused", "tenant-refused", "credential-refused", "priority-refused", "in-flight",
    "key-reused", "undecided", "refused",
)  # fmt: skip


class Suppressed(BaseModel):
    """A recipient who gets nothing, because the address is suppressed."""

    recipient: str
    reason: str = Field(description="since when, why, and by what proof")


class Stored(BaseModel):
    """A message that is in the queue."""

    id: str
    suppressed: list[Suppressed] | None = None


class BatchResult(BaseModel):
    """What became of one mail of a batch: its id, or the problem because of which it has none."""

    index: int = Field(description="place in the batch, from 0")
    id: str | None = None
    suppressed: list[Suppressed] | None = None
    problem: dict[str, Any] | None = Field(
        default=None, description="as of a request with this mail alone"
    )


class BatchResults(BaseModel):
    """The results of a batch, in order."""

    data: list[BatchResult]


class _Sending:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._intake = Intake(api.site.resources)
        self._uploads = Uploads(api.site.resources)

    async def message(self, call: Call) -> Answer:
        """Store one mail."""
        with self._intake.claiming(call.caller, call.key):
            if call.body is None:
                return await self._streamed(call)
            _refuse_query(call.query)
            mail = mail_text(mail_object(call.caller, call.body))
            # as it came: settings of the key, which may be changed, are no part of a repetition
            content = b"message " + mail_text(given(call.body)).encode() if call.key else b""
            return await self._one(call, mail, content)

    async def _streamed(self, call: Call) -> Answer:
        limits = self._api.config.limits
        call.take_octets(PIECE_OCTETS)  # of the rest nothing is in memory
        uploads = self._uploads.begin()
        try:
            bodies = Bodies(
                call.request, call.caller, uploads, self._api.limits.api_body, limits.request
            )
            if call.request.content_type == RAW_TYPE:
                body = await bodies.raw(call.query)
            else:
                _refuse_query(call.query)
                body = await bodies.multipart()
            await call.renew()
            content = body.fingerprint() if call.key else b""
            async with uploads.turn():
                answer = await self._one(call, body.text(), content, body.uploads)
            uploads.taken()
            return answer
        finally:
            await uploads.close()

    async def _one(
        self, call: Call, mail: str, content: bytes, uploads: Sequence[tuple[str, int]] = ()
    ) -> Answer:
        request = send_request(call.caller, [mail], call.key, content, uploads=uploads)
        decided = await self._intake.decide(request)
        [found] = results(decided, [()])
        if isinstance(found, Problem):
            raise found
        place = f"{self._api.site.base}{_PATH}/{found['id']}"
        return Answer(found, 202, {"Location": place, **headers_of(decided)})

    async def batch(self, call: Call) -> Answer:
        """Store many mails; each has its result."""
        texts: list[str] = []
        places: list[int] = []
        refused: dict[int, Mapping[str, Any]] = {}
        end = time.monotonic() + _TURN_S
        for place, value in enumerate(call.body.messages):
            if time.monotonic() > end:
                await asyncio.sleep(0)
                end = time.monotonic() + _TURN_S
            begin = ("messages", place)
            try:
                mail = mail_object(call.caller, message_of(value, begin), begin)
            except Problem as problem:
                refused[place] = {"problem": problem.document()}
            else:
                texts.append(mail_text(mail))
                places.append(place)
        with self._intake.claiming(call.caller, call.key):
            return await self._decide_batch(call, texts, places, refused)

    async def _decide_batch(
        self, call: Call, texts: Sequence[str], places: Sequence[int],
        refused: Mapping[int, Mapping[str, Any]],
    ) -> Answer:  # fmt: skip
        found: dict[int, Mapping[str, Any]] = dict(refused)
        headers: dict[str, str] = {}
        if texts:
            # a mail with a text that can't be stored is a Problem, and none of a repetition is
            content = b"batch " + to_json(call.body.messages, fallback=str) if call.key else b""
            # kept with the key, because a repetition may be judged by other settings of it
            early = {"places": [*places], "refused": [*refused.items()]} if refused else None
            request = send_request(call.caller, texts, call.key, content, refused_early=early)
            if request.is_large:
                connection_of(call.request).allow_time(LARGE_PATIENCE_S + _ANSWER_S)
            decided = await self._intake.decide(request)
            if first := decided.refused_early:
                places, found = first["places"], dict(first["refused"])
            begins: list[Path] = [("messages", place) for place in places]
            for place, each in zip(places, results(decided, begins), strict=True):
                found[place] = {"problem": each.document()} if isinstance(each, Problem) else each
            headers = headers_of(decided)
        data = [{"index": place, **each} for place, each in sorted(found.items())]
        return Answer({"data": data}, 202, headers)


def _refuse_query(query: EnvelopeQuery) -> None:
    if given := next(iter(query.model_fields_set), None):
        raise Problem(400, "invalid", f"{given}: The query is the envelope of {RAW_TYPE}.",
                      errors=[{"parameter": given, "detail": "Not for this body."}])  # fmt: skip


def operations(api: Api) -> list[Operation]:
    """Return the operations."""
    sending = _Sending(api)
    return [
        Operation(
            method="POST",
            path=_PATH,
            scope="send",
            summary="Send a message",
            handler=sending.message,
            body=Message,
            query=EnvelopeQuery,
            other_bodies={
                MULTIPART_TYPE: "The part `message` is the mail as JSON. Each further part is a "
                "file with a filename; with Content-ID it is a picture of the html. Or `message` "
                "is an envelope (sender, recipients), and the part `content` a whole message.",
                RAW_TYPE: "A whole message; the query has its envelope.",
            },
            max_stream=_MAX_STREAM_OCTETS,
            answers={202: Stored},
            problems=_PROBLEMS,
            stores=True,
        ),
        Operation(
            method="POST",
            path=f"{_PATH}/batch",
            scope="send",
            summary="Send up to 1,000 messages, each with its own result",
            handler=sending.batch,
            body=Batch,
            judged_singly="messages",
            max_body=MAX_BATCH_OCTETS,
            answers={202: BatchResults},
            problems=_PROBLEMS,
            stores=True,
        ),
    ]
