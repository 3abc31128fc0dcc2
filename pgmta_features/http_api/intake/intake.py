"""Takes the mail of requests: group commits, repetitions by Idempotency-Key, and the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from hashlib import sha256
from typing import Any

import psycopg

from pgmta.client.gatherer import Gatherer
from pgmta.client.parcels import Parcel
from pgmta.errors import StoreUnavailable, SubmissionError, Undecided
from pgmta.logs import get
from pgmta.postgres import faults
from pgmta.postgres.resources import Resources
from pgmta.store.changes.sql_interface import answer_of
from pgmta_features.http_api.caller import Caller
from pgmta_features.http_api.checking import Path
from pgmta_features.http_api.database import problem_of
from pgmta_features.http_api.intake.api_door import ApiDoor, Decided, Outcome, SendRequest
from pgmta_features.http_api.intake.senders import Senders
from pgmta_features.http_api.problem import Problem, away, key_refused, pointer_of

CONNECTIONS = 2
"""For group commits, as pgmta.Client has."""

_PATIENCE_S = 5.0  # below the time limit of an answer
_MAX_GROUP = 200  # requests: PostgreSQL has room for some thousand locks of Idempotency-Keys
# PostgreSQL composes mail with uploads of 50 MB, and 1,000 mails by a template, in a few seconds
LARGE_PATIENCE_S = 60.0
"""The time for a large request."""
_LARGE_GROUP = 4

_UNFIT_SENDER = "PG403"  # SQLSTATE of api_check_author()
_RAISED = "P0001"  # by a trigger of operators, for those who submit
_RULES = ("23", "44", "09", "P0")  # classes of SQLSTATE of constraints and triggers of operators
_RETRY = {"Retry-After": "1"}
_UNCLAIMED = nullcontext()

log = get("api")


class Intake:
    """Stores the mail of requests. It begins with the first one."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._gatherers: dict[bool, Gatherer] = {}
        self._in_flight: set[tuple[str, str]] = set()

    def claiming(self, caller: Caller, key: str) -> AbstractContextManager[None]:
        """Let no other request of this process have the Idempotency-Key meanwhile.

        Raises Problem if one has.
        """
        return self._claimed(caller, key) if key else _UNCLAIMED

    @contextmanager
    def _claimed(self, caller: Caller, key: str) -> Iterator[None]:
        name = (caller.acting, key)
        if name in self._in_flight:
            raise _in_flight()
        self._in_flight.add(name)
        try:
            yield
        finally:
            self._in_flight.discard(name)

    async def decide(self, request: SendRequest) -> Decided:
        """Store the mails of a request, and return what became of each, once that is durable.

        Raises Problem if nothing of it is stored now, and if that is open.
        """
        parcel: Parcel[asyncio.Future[Any]] = Parcel(
            [request], request.size, asyncio.get_running_loop().create_future()
        )
        self._gatherer(large=request.is_large).put(parcel)
        [found] = await parcel.future
        if isinstance(found, Decided):
            return _undisputed(found)
        if isinstance(found, Undecided):
            log.warning("mail may be in the queue, and its client knows that", reason=str(found))
            raise Problem(
                503, "undecided",
                "It is open whether the mail was stored. Repeat the request with the same "
                "Idempotency-Key: then it is stored once.",
                headers=_RETRY,
            )  # fmt: skip
        if isinstance(found, StoreUnavailable):
            raise away() from found
        if isinstance(found, psycopg.Error) and faults.about_row(found):
            log.warning("mail refused by the database", reason=faults.one_line(found))
            raise Problem(
                422, "refused", "The database refuses the mail by a rule of its operators."
            )
        raise found

    def _gatherer(self, *, large: bool) -> Gatherer:
        if large not in self._gatherers:
            # mail that comes at once does not wait for what takes PostgreSQL seconds
            self._gatherers[large] = Gatherer(
                self._resources, CONNECTIONS, LARGE_PATIENCE_S if large else _PATIENCE_S,
                ApiDoor(_LARGE_GROUP if large else _MAX_GROUP),
                "large requests" if large else "requests",
            )  # fmt: skip
            self._gatherers[large].start()
        return self._gatherers[large]


def send_request(
    caller: Caller, mails: Sequence[str], key: str, content: bytes = b"", **more: Any
) -> SendRequest:
    """Return a request of a key. `content` is all that it asks for, as far as a repetition has it.

    `more` is as of SendRequest.
    """
    fingerprint = sha256(content).hexdigest() if key else ""
    senders = Senders.of(caller).normalised
    return SendRequest(caller.acting, senders, mails, key, fingerprint, **more)


def results(decided: Decided, begins: Sequence[Path]) -> list[dict[str, Any] | Problem]:
    """Return for each mail its id and its suppressed recipients, or its problem.

    `begins` are the places of the mails in the body.
    """
    found: list[dict[str, Any] | Problem] = []
    answer = answer_of(decided.ids, decided.problems, decided.suppressed)
    for each, begin in zip(answer, begins, strict=True):
        if isinstance(each, SubmissionError):
            found.append(_problem(each, begin))
            continue
        stored: dict[str, Any] = {"id": str(int(each))}
        if suppressed := getattr(each, "suppressed", ()):
            stored["suppressed"] = [
                {"recipient": one.recipient, "reason": one.reason} for one in suppressed
            ]
        found.append(stored)
    return found


def headers_of(decided: Decided) -> dict[str, str]:
    """Return the header fields of an answer: whether it repeats that of an earlier request."""
    return {"Idempotency-Replayed": "true"} if decided.outcome is Outcome.REPLAYED else {}


def _undisputed(decided: Decided) -> Decided:
    """Return what became of a request that was stored, now or before. Raises Problem."""
    match decided.outcome:
        case Outcome.BUSY:
            raise _in_flight()
        case Outcome.OTHER:
            raise Problem(
                422, "key-reused",
                "The Idempotency-Key was used for a request with other content. Each request has "
                "its own.",
            )  # fmt: skip
        case Outcome.LOST:
            raise away()
        case Outcome.REVOKED:
            raise key_refused("The key was revoked or has expired.")
    return decided


def _in_flight() -> Problem:
    return Problem(
        409, "in-flight", "The first request with this Idempotency-Key has no answer yet.",
        headers=_RETRY,
    )  # fmt: skip


def _problem(error: SubmissionError, begin: Path) -> Problem:
    if not error.argument:  # an error of a table or a trigger, and not of submit_mails()
        return _refused(error, pointer_of(*begin))
    found = problem_of(error)
    pointer = pointer_of(*begin) + found.pointer
    if error.sqlstate == _UNFIT_SENDER:
        return Problem(403, "sender-refused", found.detail, pointer=pointer)
    errors = [{**each, "pointer": pointer} for each in found.errors]
    return Problem(422, "invalid", found.detail, pointer=pointer, errors=errors)


def _refused(error: SubmissionError, pointer: str) -> Problem:
    """Return the problem of a mail that a trigger or a constraint refuses, and log its error."""
    if error.sqlstate == _RAISED:
        reason, note = error.reason, log.info
    elif error.sqlstate.startswith(_RULES):
        reason, note = "A rule of operators refuses it.", log.warning
    else:  # such as bad data: a trigger of operators, or pgmta, is at fault
        reason, note = "The database can't store it. The log of the API has the reason.", log.error
    note("mail refused by the database", sqlstate=error.sqlstate, reason=error.reason)
    return Problem(422, "refused", reason, pointer=pointer)
