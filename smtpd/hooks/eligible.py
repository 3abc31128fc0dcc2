"""Finds the handlers whose methods never await (pure)."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterable
from types import FunctionType
from typing import Any

# `await`, `async for` and `async with` compile to these in CPython 3.12 to 3.14, `yield` too
_SUSPENDING = frozenset({"GET_AWAITABLE", "SEND", "YIELD_VALUE"})


def never_awaits(methods: Iterable[Any]) -> bool:
    """Return whether a call of each method ends in its first step.

    The code of the method itself has to show it. So the answer is False for a wrapper, a callable
    object and all else that is no plain `async def`.
    """
    return all(_ends_at_once(method) for method in methods)


def _ends_at_once(method: Any) -> bool:
    function = method.__func__ if inspect.ismethod(method) else method
    return (
        type(function) is FunctionType
        and inspect.iscoroutinefunction(function)
        and bool(function.__code__.co_flags & inspect.CO_COROUTINE)  # not only marked as one
        and _SUSPENDING.isdisjoint(one.opname for one in dis.get_instructions(function))
    )
