"""The description of the API: OpenAPI for programs, and a page made from it."""

from __future__ import annotations

import json
from functools import cached_property
from importlib.metadata import version

from aiohttp import web

from pgmta.http.answers import HTML_TYPE, JSON_TYPE
from pgmta_features.http_api.api import Api
from pgmta_features.http_api.openapi_document import document
from pgmta_features.http_api.openapi_page import POLICY, page
from pgmta_features.http_api.operation import Call, Operation


class _Description:
    def __init__(self, api: Api) -> None:
        self._api = api

    # the operations and the path before them stay the same as long as the process lives

    @cached_property
    def _json(self) -> bytes:
        described = document(self._api.operations, version("pgmta"), self._api.site.base)
        return json.dumps(described, ensure_ascii=False).encode()

    @cached_property
    def _page(self) -> bytes:
        return page(json.loads(self._json))

    async def json(self, _: Call) -> web.StreamResponse:
        """Return the document."""
        return self._api.site.answers.make(self._json, JSON_TYPE)

    async def page(self, _: Call) -> web.StreamResponse:
        """Return the page."""
        policy = {"Content-Security-Policy": POLICY}
        return self._api.site.answers.make(self._page, HTML_TYPE, headers=policy)


def operations(api: Api) -> list[Operation]:
    """Return the operations."""
    description = _Description(api)
    return [
        Operation(
            method="GET", path="/v1/openapi.json", scope="", public=True,
            summary="Show this document", handler=description.json, answers={200: None},
            other_answers={JSON_TYPE: "OpenAPI 3.1"},
        ),
        Operation(
            method="GET", path="/v1/docs", scope="", public=True,
            summary="Show this document as a page", handler=description.page, answers={200: None},
            other_answers={"text/html": "a page without scripts"},
        ),
    ]  # fmt: skip
