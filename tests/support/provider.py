"""An HTTP interface of a provider for scenarios: a scripted server in a thread."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

from tests.features.providers.scripted_server import Got, ScriptedServer, said, serving
from tests.support.loop_thread import LoopThread

type Answering = Callable[[Any], list[bytes]]
"""Returns the parts of the answer to a JSON document."""

OK = said("202 Accepted", b'{"id": "7"}')


class Provider:
    """Takes JSON documents; `answering` may be exchanged at any time."""

    def __init__(
        self, answering: Answering = lambda _: OK, tls: ssl.SSLContext | None = None
    ) -> None:
        self.answering = answering
        self.tls = tls
        self._server = ScriptedServer(self._answer)
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

    def _answer(self, _: int) -> list[bytes]:
        return self.answering(json.loads(self._server.got[-1].body))

    @property
    def url(self) -> str:
        host = "https://localhost" if self.tls else "http://127.0.0.1"
        return f"{host}:{self._server.port}/v1/send"

    @property
    def got(self) -> list[Got]:
        return list(self._server.got)

    @property
    def documents(self) -> list[Any]:
        return [json.loads(each.body) for each in self.got]

    def release(self) -> None:
        """Let all answers go on that are held, now and later."""
        self._thread.loop.call_soon_threadsafe(self._server.released.set)
