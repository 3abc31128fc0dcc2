"""Requests of a server that is no proxy."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from aiohttp.http import RawRequestMessage


def origin_request(
    message: RawRequestMessage, payload: Any, protocol: Any, writer: Any, task: asyncio.Task[None]
) -> web.BaseRequest:
    """Return the request without the host of its target (RFC 9112, section 3.2.2).

    aiohttp raises ValueError for the host of `GET http://xn--a/ HTTP/1.1`. The client would get no
    answer, and stderr would get octets of the request.
    """
    if message.url.absolute:
        message = message._replace(url=message.url.relative())
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop)
