"""A proxy before PostgreSQL that loses connections or answers at a chosen moment."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.waiting import let_others_run

_SOCKET = ".s.PGSQL.{}"
_ports = itertools.count(10_000)


class CuttingProxy:
    """Passes octets on. A statement with `marker` is lost, or its answer, once for each in `plan`.

    `before` closes the connection, and PostgreSQL gets no statement. `after` closes it when the
    answer comes, after the commit. `silent` keeps the answer back and the connection open. `dark`
    is `after`, and no connection that is made later gets an answer, as if the network were gone.
    """

    def __init__(self, uri: str, folder: Path, marker: bytes) -> None:
        given = conninfo_to_dict(uri)
        self._host = str(given.get("host") or "/var/run/postgresql")
        self._port = int(given.get("port") or 5432)
        self._folder, self._number = folder, next(_ports)
        self._marker = marker
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self._dark = False
        self.plan: list[str] = []
        self.done: list[str] = []
        self.uri = make_conninfo(
            uri, host=str(folder), port=self._number, requirepeer="", sslmode="disable"
        )

    async def start(self) -> asyncio.Server:
        """Listen at `uri`."""
        return await asyncio.start_unix_server(
            self._serve, self._folder / _SOCKET.format(self._number)
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        if self._dark:
            return
        if self._host.startswith("/"):
            path = f"{self._host}/{_SOCKET.format(self._port)}"
            server = await asyncio.open_unix_connection(path)
        else:
            server = await asyncio.open_connection(self._host, self._port)
        fate = asyncio.Future[str]()
        self._writers.append(server[1])
        both = {
            asyncio.create_task(way)
            for way in (
                self._ask(reader, server[1], fate), self._answer(server[0], writer, fate)
            )
        }  # fmt: skip
        self._tasks |= both
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        self._abort(server[1], writer)

    async def _ask(
        self, reader: asyncio.StreamReader, server: asyncio.StreamWriter, fate: asyncio.Future[str]
    ) -> None:
        while data := await reader.read(1 << 16):
            if self.plan and self._marker in data and not fate.done():
                fate.set_result(self.plan.pop(0))
                if fate.result() == "before":
                    self.done.append("before")
                    return
            server.write(data)

    async def _answer(
        self, server: asyncio.StreamReader, writer: asyncio.StreamWriter, fate: asyncio.Future[str]
    ) -> None:
        while data := await server.read(1 << 16):
            if not fate.done():
                writer.write(data)
                continue
            self.done.append(fate.result())
            self._dark = self._dark or fate.result() == "dark"
            if fate.result() != "silent":
                return
            await asyncio.Event().wait()

    async def cut(self) -> None:
        """Break all connections; PostgreSQL does not notice while it works."""
        self._abort(*self._writers)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._abort(*self._writers)
        await let_others_run(3)

    def _abort(self, *writers: asyncio.StreamWriter) -> None:
        for writer in writers:
            writer.transport.abort()


@asynccontextmanager
async def cutting(uri: str, marker: bytes = b"cut here") -> AsyncIterator[CuttingProxy]:
    """A proxy that runs meanwhile."""
    folder = Path(tempfile.mkdtemp(prefix=f"cut-{os.getpid()}-", dir="/tmp"))
    proxy = CuttingProxy(uri, folder, marker)
    server = await proxy.start()
    try:
        yield proxy
    finally:
        server.close()
        await proxy.end()
        shutil.rmtree(folder)
