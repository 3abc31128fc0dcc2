"""Callbacks of providers: the proof first, then their events into the log."""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import psycopg
from aiohttp import web

from pgmta.errors import StoreUnavailable
from pgmta.http.answers import JSON_TYPE, TEXT_TYPE, HttpError
from pgmta.http.request_body import read_octets
from pgmta.http.route import Route
from pgmta.logs import get
from pgmta.postgres import faults
from pgmta_features.callbacks.events import EventReader, ReadEvents
from pgmta_features.callbacks.notes import CallbackNotes, NoteOutcome
from pgmta_features.callbacks.proof import BodyMalformed, CallbackRequest, Prover
from pgmta_features.callbacks.settings import CallbackLimits, CallbackSettings, callbacks_of
from queued.web.refusals import away
from queued.web.site import Site, WebPart

_PATH_PREFIX = "/callbacks/"
_MAX_EVENTS = 1000  # of a request
_MAX_LISTED_EVENTS = 10_000  # of a request, with those that are about mail of others
_MAX_BODY_OCTETS = 64 << 20  # of all bodies that are read at the same time
_MAX_CHALLENGE_CHARACTERS = 1000
_NOTE_TIMEOUT_S = 8.0  # below the time limit of an answer

log = get("web")


@dataclass(frozen=True, slots=True)
class TakenCallback:
    """A request that was proven: its name, settings and events."""

    name: str
    settings: CallbackSettings
    read: ReadEvents


class _Provider:
    def __init__(self, settings: CallbackSettings) -> None:
        self.settings = settings
        self.prover = Prover(settings.proof)
        self.reader = EventReader(settings.events)


class CallbackRoutes:
    """Takes callbacks by name. A request that is not proven has one answer, whatever the reason.

    No limit counts those: other customers of a provider call from the same addresses.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._notes = CallbackNotes(site.resources)
        self._providers: dict[str, _Provider] = {}
        self._octets_under_way = 0  # of the bodies that are being read

    def routes(self) -> Sequence[Route]:
        """Use the settings and keys that are configured now; return the routes."""
        config = self._site.config
        self._providers = {name: _Provider(each) for name, each in callbacks_of(config).items()}
        most = config.section(CallbackLimits).callback
        path = f"{_PATH_PREFIX}{{rest:.*}}"
        return (
            Route("POST", path, self._callback, most),
            Route("GET", path, self._challenge),
        )

    async def problem(self) -> str:
        """Return why no callback can be noted; '' if they can.

        Raises StoreUnavailable, psycopg.Error.
        """
        return "" if await self._notes.notable() else "The login may not note callbacks."

    async def _callback(self, request: web.Request) -> web.StreamResponse:
        client = self._site.client_of(request)
        taken = await self._take(request, request.path.removeprefix(self._site.base), client)
        await self._note(taken, client)
        return self._site.answers.make(b'{"status": "taken"}', JSON_TYPE)

    async def _challenge(self, request: web.Request) -> web.StreamResponse:
        """Answer the request by which a provider tries the URL. Raises HttpError."""
        path = request.path.removeprefix(self._site.base)
        name, _, secret = path.removeprefix(_PATH_PREFIX).partition("/")
        provider = self._providers.get(name)
        if provider is None:
            raise HttpError(404, "There is no such path.")
        challenge = provider.settings.challenge
        if challenge is None or challenge.key is None:
            raise HttpError(405, "Callbacks come by POST.", {"Allow": "POST"})
        token = request.query.get(challenge.token, "").encode("utf-8", "surrogateescape")
        text = request.query.get(challenge.answer, "")
        # both are compared, so that the time tells nothing
        proven = provider.prover.proves_header(_asked(request, "", secret))
        if not (hmac.compare_digest(token, challenge.key.octets) and proven):
            raise self._unproven(name, self._site.client_of(request))
        if not (text.isascii() and 0 < len(text) <= _MAX_CHALLENGE_CHARACTERS):
            raise HttpError(400, "The URL has no text to answer, or a strange one.")
        return self._site.answers.make(text.encode(), TEXT_TYPE)

    async def _take(self, request: web.Request, path: str, client: str) -> TakenCallback:
        """Return the events of a proven request. Raises HttpError: 400, 403, 404, 413, 503.

        `path` is that of the request, without the path of `public.url`.
        """
        name, _, secret = path.removeprefix(_PATH_PREFIX).partition("/")
        provider = self._providers.get(name)
        if provider is None:
            raise HttpError(404, "There is no such path.")
        _, mark, query = request.raw_path.partition("?")
        url = f"{self._site.config.public.url}{path}{mark}{query}"
        asked = _asked(request, url, secret)
        if not provider.prover.proves_header(asked):
            raise self._unproven(name, client)
        asked = replace(asked, body=await self._body(request))
        now = datetime.now(UTC)
        if not provider.prover.proves(asked, now.timestamp()):
            raise self._unproven(name, client)
        try:
            found = provider.reader.read(asked, now, _MAX_LISTED_EVENTS)
        except BodyMalformed as error:
            log.warning("a callback can't be read", callback=name, client=client, reason=str(error))
            raise HttpError(400, f"The body has {error}.") from None
        if found is None or len(found.events) > _MAX_EVENTS:
            raise HttpError(413, f"The body has more than {_MAX_EVENTS} events.")
        return TakenCallback(name, provider.settings, found)

    async def _body(self, request: web.Request) -> bytes:
        taken = 0

        def count(octets: int) -> None:
            # counted as octets come, because to announce a large body costs a stranger nothing
            nonlocal taken
            if self._octets_under_way + octets > _MAX_BODY_OCTETS:
                raise HttpError(503, "Too much is read at the same time.", {"Retry-After": "5"})
            taken += octets
            self._octets_under_way += octets

        try:
            return await read_octets(request, count)
        finally:
            self._octets_under_way -= taken

    def _unproven(self, name: str, client: str) -> HttpError:
        log.info("a callback is not proven", callback=name, client=client)
        return HttpError(403, "The callback is not proven.")

    async def _note(self, taken: TakenCallback, client: str) -> None:
        """Note the events. Raises HttpError 503, after which the provider repeats all of them."""
        name, settings, read = taken.name, taken.settings, taken.read
        try:
            self._site.schema.require()
            async with asyncio.timeout(_NOTE_TIMEOUT_S):
                outcomes = await self._notes.note(settings.hosts, settings.tenants, read.events)
        except (StoreUnavailable, psycopg.Error, TimeoutError) as error:
            reason = faults.one_line(error)
            log.warning("a callback was not noted", callback=name, client=client, reason=reason)
            raise away() from None
        counts = Counter(outcomes)
        log.info("callback", callback=name, client=client, foreign=read.foreign,
                 strange=read.strange, **{each: counts[each] for each in NoteOutcome})  # fmt: skip
        if counts[NoteOutcome.EARLY]:
            raise HttpError(503, "An outcome is not in the log yet.", {"Retry-After": "5"})


def _asked(request: web.Request, url: str, secret: str) -> CallbackRequest:
    """Return what proves a request, without its body."""
    headers = {field.lower(): value for field, value in request.headers.items()}
    return CallbackRequest(url, secret, headers, b"")


CALLBACKS = WebPart(begin=CallbackRoutes, is_used=lambda config: bool(callbacks_of(config)))
