"""The API as a part of `queued web`: authentication, limits and checks before each handler."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from aiohttp import web
from psycopg import errors as pg_errors
from pydantic import BaseModel
from pydantic_core import to_json

from pgmta.accounts.networks import Networks
from pgmta.http.answers import JSON_TYPE, HttpError
from pgmta.http.request_body import read_octets
from pgmta.http.route import Route
from pgmta.http.server_connection import connection_of
from pgmta.logs import get
from pgmta.postgres.link import Link
from pgmta_features.http_api.api import Api
from pgmta_features.http_api.caller import Caller
from pgmta_features.http_api.checking import (
    checked_body,
    checked_query,
    is_strange,
    read_json,
)
from pgmta_features.http_api.operation import MULTIPART_TYPE, Call, Operation
from pgmta_features.http_api.outage_log import OutageLog
from pgmta_features.http_api.problem import Problem, not_found
from pgmta_features.http_api.rate import BodyPlaces, KeyRates, Refusals
from queued.web.site import Served, Site, WebPart
from queued.web.web_config import WebConfig

_MAX_OCTETS_UNDER_WAY = 128 << 20  # of all bodies in memory of this process
_IDEMPOTENCY_KEY = re.compile(r'"?([\x21\x23-\x7e]{1,255})"?')
_NOBODY = Caller("", "", frozenset(), (), "own")
_RETRY_S = "5"

_is_loopback = Networks(map(ipaddress.ip_network, ("127.0.0.0/8", "::1/128"))).contains

log = get("api")


class ApiRoutes:
    """Serves the operations. If requests of a key are limited, answers say so by RateLimit."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._api = Api(site)
        self._rates = KeyRates()
        self._refusals = Refusals()
        self._bodies = BodyPlaces()
        self._octets_under_way = 0
        self._outages = OutageLog()

    def routes(self) -> Sequence[Route]:
        """Return the routes under the present configuration."""
        self._is_proxy = Networks(self._site.config.proxies).contains
        self._limits = self._api.limits
        return [
            Route(each.method, _routed(each.path), partial(self._serve, each),
                  self._max_body(each, self._limits.api_body))
            for each in self._api.operations
        ]  # fmt: skip

    @staticmethod
    def _max_body(operation: Operation, usual: int) -> int:
        most = max(operation.max_body or usual, operation.max_stream)
        return most if operation.takes_body else 0

    async def problem(self) -> str:
        """Return why no request can be served; '' if they can. Raises StoreUnavailable."""
        rows = await self._site.tokens.run(_MAY.encode(), {})
        return "" if rows == [(True,)] else "The login may not serve the API."

    # -- a request --

    async def _serve(self, operation: Operation, request: web.Request) -> web.StreamResponse:
        fields: dict[str, str] = {}
        caller, taken, place = _NOBODY, 0, ""

        def take(octets: int) -> None:
            nonlocal taken
            if self._octets_under_way + octets > _MAX_OCTETS_UNDER_WAY:
                raise Problem(503, "busy", "Too much is read at the same time.",
                              headers={"Retry-After": _RETRY_S, "Connection": "close"})  # fmt: skip
            taken += octets
            self._octets_under_way += octets

        try:
            client = self._protected_client(request)
            renew: Callable[[], Awaitable[None]] = _hold
            if not operation.public:
                caller = await self._authenticate(request, client)
                renew = partial(self._renew, operation, request, client)
                fields = self._count(caller)
                _check_scope(operation, caller)
            if not request.content.is_eof():
                place = self._bodies.take(caller)
            call = Call(
                caller=caller,
                request=request,
                path=_path(request),
                query=_query(operation, request),
                body=await _body(operation, request, take, self._limits.api_body),
                key=_idempotency_key(request) if operation.stores else "",
                take_octets=take,
                renew=renew,
            )
            if place and call.body is not None:
                self._bodies.give_back(place)
                place = ""
                await renew()
            found = await operation.handler(call)
            if not operation.public:
                self._outages.answered()
        except Problem as error:
            self._outages.note(error)
            error.headers = {**fields, **error.headers}
            raise
        except HttpError as error:
            if error.status != 413:
                raise
            detail = error.detail
            if request.content_type == JSON_TYPE and MULTIPART_TYPE in operation.other_bodies:
                detail += " Send files as multipart/form-data: these may be larger."
            raise Problem(413, "body-size", detail, headers={**fields, **error.headers}) from None
        finally:
            self._octets_under_way -= taken
            if place:
                self._bodies.give_back(place)
        if isinstance(found, web.StreamResponse):
            return found
        headers = {**fields, **found.headers}
        if found.body is None:
            return web.Response(
                status=found.status, headers=self._site.answers.bare_fields(headers)
            )
        return self._site.answers.make(_written(found.body), JSON_TYPE, found.status, headers)

    def _protected_client(self, request: web.Request) -> str:
        """Return the address of the client.

        Raises Problem if the key has crossed a network in the clear: the connection has to come
        from this machine or from a proxy, which has TLS.
        """
        peer = connection_of(request).peer
        if not (_is_loopback(peer) or self._is_proxy(peer)):
            raise Problem(
                403, "insecure",
                "The API takes plain HTTP from this machine and from the proxies of web.yaml only. "
                "Whoever saw the request has its key: make another one.",
            )  # fmt: skip
        return self._site.client_of(request)

    async def _authenticate(self, request: web.Request, client: str) -> Caller:
        """Return the key of a request. Raises Problem."""
        clients, keys = self._site.clients, self._api.keys
        given = request.headers.getall("Authorization", [""])
        if len(given) > 1:  # a proxy may have judged the other one
            raise Problem(400, "invalid", "Authorization: give one.")
        kind, _, text = given[0].partition(" ")
        text = text.strip()
        if kind.lower() != "bearer" or not text:
            raise Problem(
                401, "key-missing", "Send the field `Authorization: Bearer pgmta_…`.",
                headers={"WWW-Authenticate": "Bearer"},
            )  # fmt: skip
        # a program with an old key tries it again and again, and shuts nobody out beside it
        if (wait := clients.free_in(client)) and not (
            self._refusals.knows(client, text) or keys.knows(text)
        ):
            raise Problem(429, "too-many-refusals", f"Too many refused keys came from {client}.",
                          headers={"Retry-After": str(int(wait) + 1)})  # fmt: skip
        try:
            return await keys.find(text, client)
        except Problem as error:
            if error.status in (401, 403) and not self._refusals.knows(client, text):
                self._refusals.note(client, text)
                clients.count_refusal(client)
                log.info("an API key is refused", client=client, key=keys.name_of(text),
                         reason=error.detail)  # fmt: skip
            raise

    async def _renew(self, operation: Operation, request: web.Request, client: str) -> None:
        _check_scope(operation, await self._authenticate(request, client))

    def _count(self, caller: Caller) -> dict[str, str]:
        """Count a request of a key; return the fields about it. Raises Problem.

        The fields are those of draft-ietf-httpapi-ratelimit-headers-10.
        """
        limit = self._limits.api_rate
        if limit is None:
            return {}
        left = self._rates.take(caller.name, limit)
        fields = {
            "RateLimit-Policy": f'"key";q={limit};w=1',
            "RateLimit": f'"key";r={max(left, 0)};t=1',
        }
        if left < 0:
            raise Problem(429, "rate", f"The key has more than {limit} requests in a second.",
                          headers={**fields, "Retry-After": "1"})  # fmt: skip
        return fields


_MAY = """
SELECT coalesce(has_function_privilege(to_regprocedure('pgmta.api_keys_look(text[])'), 'EXECUTE'),
        false)
    AND pgmta.acting_key('key:x') IS NOT NULL
"""


def _check_scope(operation: Operation, caller: Caller) -> None:
    if not caller.has(operation.scope):
        raise Problem(403, "scope-missing", f"The key lacks the scope {operation.scope}. "
                      "Ask your operator for it.")  # fmt: skip


async def _hold() -> None:
    """Renew nothing."""


def _routed(path: str) -> str:
    """Return the path for the router: /v1/messages/batch has no method of /v1/messages/{id}."""
    return path.replace("/messages/{id}", "/messages/{id:(?!batch$)[^/]+}")


def _path(request: web.Request) -> dict[str, str]:
    """Return the variable parts of the path. Raises Problem if nothing has such a name."""
    found = dict(request.match_info)
    if any(map(is_strange, found.values())):
        raise not_found("name")
    return found


def _query(operation: Operation, request: web.Request) -> Any:
    """Return the query as the model of the operation. Raises Problem."""
    given = request.query
    names = list(given)
    if not names:
        return operation.query and _without_parameters(operation.query)
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise Problem(400, "invalid", "A parameter is there twice.",
                      errors=[{"parameter": twice, "detail": "It is there twice."}])  # fmt: skip
    if operation.query is None:
        raise Problem(400, "invalid", "The operation has no parameters.",
                      errors=[{"parameter": names[0], "detail": "Unknown."}])  # fmt: skip
    return checked_query(dict(given), operation.query)


@cache
def _without_parameters(model: type[BaseModel]) -> BaseModel:
    return checked_query({}, model)


async def _body(
    operation: Operation, request: web.Request, take: Callable[[int], None], usual: int
) -> Any:
    """Return the body as the model of the operation; None if the handler reads it.

    Raises HttpError.
    """
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    sent = request.can_read_body and request.content_length != 0
    if not operation.takes_body:
        if sent:
            raise Problem(400, "body-unexpected", "The operation takes no body.",
                          headers={"Connection": "close"})  # fmt: skip
        return None
    if not sent and operation.body and not operation.needs_body:
        return operation.body()
    if not sent:
        raise Problem(400, "body-missing", f"The operation needs a body: {_kinds(operation)}.")
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding != "identity":
        raise Problem(415, "body-type", "A body with a Content-Encoding is not taken.",
                      headers={"Accept-Encoding": "identity", "Connection": "close"})  # fmt: skip
    if kind in operation.other_bodies:
        return None
    if operation.body is None or kind != JSON_TYPE:
        kinds = _kinds(operation)
        raise Problem(415, "body-type", f"The body has to be {kinds}.",
                      headers={"Accept": kinds, "Connection": "close"})  # fmt: skip
    octets = await read_octets(request, take, operation.max_body or usual)
    return checked_body(read_json(octets, operation.judged_singly), operation.body)


def _kinds(operation: Operation) -> str:
    """Return the content types that a body may have."""
    return ", ".join([*([JSON_TYPE] if operation.body else []), *operation.other_bodies])


def _idempotency_key(request: web.Request) -> str:
    """Return the Idempotency-Key, with or without the quotes of a string; '' without one.

    draft-ietf-httpapi-idempotency-key-header-07, section 2. Raises Problem.
    """
    given = request.headers.getall("Idempotency-Key", [])
    if not given:
        return ""
    found = _IDEMPOTENCY_KEY.fullmatch(given[0].strip())
    if len(given) > 1 or not found:
        raise Problem(
            400, "invalid", "Idempotency-Key: give one, of 1 to 255 visible ASCII characters."
        )
    return found[1]


def _written(body: BaseModel | Mapping[str, Any]) -> bytes:
    if isinstance(body, Mapping):
        return to_json(body)
    return body.model_dump_json(by_alias=True, exclude_none=True).encode()


async def _check(link: Link) -> None:
    """Raise InsufficientPrivilege if the login may not serve the API."""
    if await link.run(_MAY.encode(), {}) != [(True,)]:
        raise pg_errors.InsufficientPrivilege(
            "the login may not serve the API: GRANT pgmta_api to it, or give the API a file with a "
            "login of its own"
        )


def _begin(site: Site) -> Served:
    return ApiRoutes(site)


def _used(_: WebConfig) -> bool:
    return True


API = WebPart(begin=_begin, is_used=_used, check=_check)
