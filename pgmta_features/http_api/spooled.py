"""A body that is a list of any length: it waits in a temporary file, and no transaction for it."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import BinaryIO

from pgmta.http.server_connection import connection_of
from pgmta_features.http_api.operation import Call
from pgmta_features.http_api.problem import Problem

CSV_TYPE = "text/csv"
MAX_LIST_OCTETS = 1 << 30
"""For a list."""
WORK_TIMEOUT_S = 600.0
"""For the work on a list, once all of it is there."""

_MEMORY_OCTETS = 1 << 20  # a longer body goes to a file


@asynccontextmanager
async def spooled(call: Call, piece_s: float) -> AsyncIterator[BinaryIO]:
    """Lend a file with the body, at its beginning; each piece has `piece_s` seconds to come.

    Raises Problem for a body that is too long.
    """
    connection = connection_of(call.request)
    most = connection.begin_body(call.request)
    call.take_octets(_MEMORY_OCTETS)
    with tempfile.SpooledTemporaryFile(_MEMORY_OCTETS) as file:
        number = 0
        while octets := await call.request.content.readany():
            connection.allow_time(piece_s)
            number += len(octets)
            if number > most:
                raise Problem(413, "body-size", f"The body has more than {most} octets.",
                              headers={"Connection": "close"})  # fmt: skip
            file.write(octets)
        connection.body_is_read()
        connection.allow_time(WORK_TIMEOUT_S)
        file.seek(0)
        yield file  # type: ignore[misc]
