"""Stores of operators for tests that are no coroutines."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from pgmta.postgres.operator import OperatorConnection, connected
from pgmta.store.admin.examination import TIME_LIMITS, Examination
from queued.cli.doctor.diagnosis import Diagnosis


@contextmanager
def operating(uri: str, make: Callable[[OperatorConnection], Any]) -> Iterator[Any]:
    """A store over a connection, each method of which runs to its end."""
    with asyncio.Runner() as runner:
        context = connected(uri)
        db = runner.run(context.__aenter__())
        try:
            yield _Operating(make(db), runner.run)
        finally:
            runner.run(context.__aexit__(None, None, None))


def diagnosed(
    uri: str, check: Callable[[Examination], AsyncIterator[Diagnosis]]
) -> list[Diagnosis]:
    """What a check of doctor finds."""

    async def look() -> list[Diagnosis]:
        async with connected(uri, TIME_LIMITS) as db:
            return [each async for each in check(Examination(db))]

    return asyncio.run(look())


class _Operating:
    def __init__(self, store: Any, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._store = store
        self._run = run

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            made = getattr(self._store, name)(*args, **options)
            return self._run(made) if inspect.iscoroutine(made) else made

        return call
