"""A connection of one of our HTTP servers: bad requests and defects get a line and an answer."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from pgmta.logs import get

_NO_HTTP = "The request is no HTTP/1.1 within the limits of this server."

_silent = logging.Logger("aiohttp", logging.CRITICAL + 1)  # lines would have octets of requests


class ServedConnection(RequestHandler):
    """Logs and answers faults itself, because aiohttp would write tracebacks with octets of them.

    `part` is the part of the program that lines name.
    """

    def __init__(self, server: web.Server, part: str, **options: Any) -> None:
        super().__init__(server, access_log=_silent, logger=_silent, **options)
        self._log = get(part)

    def refuse(self, status: int, reason: str) -> web.StreamResponse:
        """Return the answer to a request that failed."""
        return web.Response(status=status, text=f"{reason}\n")

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that is not HTTP (400), or that met a defect of ours (500).

        The log gets no octet of the request. Raises ConnectionError if the client has gone.
        """
        if isinstance(exc, ConnectionError):
            raise exc
        reason = type(exc).__name__
        if status < 500 or isinstance(exc, web.RequestPayloadError):
            self._log.info("a request was refused", client=request.remote, reason=reason)
            answer = self.refuse(400, _NO_HTTP)
        else:
            self._log.error("a request failed", reason=reason, place=_place(exc))
            answer = self.refuse(500, "The server has a defect.")
        answer.force_close()
        return answer


def _place(error: BaseException | None) -> str:
    """Return where an error was raised, without any value."""
    frames = traceback.extract_tb(error.__traceback__) if error else []
    return " ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[-3:])
