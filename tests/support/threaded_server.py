"""A scripted HTTP server in a thread of its own, for tests that are not async."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from tests.features.providers.scripted_server import Got, ScriptedServer, serving
from tests.support.loop_thread import LoopThread


class ThreadedServer:
    """Answers each request with the parts that `answer` returns for it."""

    def __init__(
        self, answer: Callable[[Got], list[bytes]], tls: ssl.SSLContext | None = None
    ) -> None:
        self._tls = tls
        self._server = ScriptedServer(lambda _: answer(self._server.got[-1]))
        self._thread = LoopThread()
        self._stack = AsyncExitStack()
        self._thread.do(self._stack.enter_async_context(serving(self._server, tls)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.do(self._stack.aclose())
        self._thread.end()

    def url_of(self, path: str) -> str:
        host = "https://localhost" if self._tls else "http://127.0.0.1"
        return f"{host}:{self._server.port}{path}"

    @property
    def requests(self) -> list[Got]:
        return list(self._server.got)

    def release(self) -> None:
        """Let all answers go on that are held, now and later."""
        self._thread.loop.call_soon_threadsafe(self._server.released.set)
