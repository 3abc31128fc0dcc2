"""A receiver of events, which answers each path as the test says."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

from tests.features.providers.scripted_server import Got, ScriptedServer, said, serving
from tests.support.loop_thread import LoopThread

type Answering = Callable[[Got], list[bytes]]

OK = said("204 No Content")


def ok(_: Got) -> list[bytes]:
    return OK


class Receiver:
    """Takes batches; `answering` has the answer of a path, and other paths are accepted."""

    def __init__(self) -> None:
        self.answering: defaultdict[str, Answering] = defaultdict(lambda: ok)
        self._server = ScriptedServer(self._answer)
        self._thread = LoopThread()
        self._stack = AsyncExitStack()

    def __enter__(self) -> Self:
        self._thread.do(self._stack.enter_async_context(serving(self._server)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.do(self._stack.aclose())
        self._thread.end()

    def _answer(self, number: int) -> list[bytes]:
        got = self._server.got[number - 1]
        return self.answering[path_of(got)](got)

    def url(self, path: str = "/") -> str:
        return f"http://127.0.0.1:{self._server.port}{path}"

    def got(self, path: str = "/") -> list[Got]:
        """The requests at a path, also those that were not accepted."""
        return [each for each in list(self._server.got) if path_of(each) == path]

    def events(self, path: str = "/") -> list[dict[str, Any]]:
        """Their events, in order."""
        return [event for each in self.got(path) for event in events_of(each)]

    def release(self) -> None:
        """Let all answers go on that are held, now and later."""
        self._thread.loop.call_soon_threadsafe(self._server.released.set)


def path_of(got: Got) -> str:
    return got.line.split()[1]


def events_of(got: Got) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(got.body)["data"]
    return found
