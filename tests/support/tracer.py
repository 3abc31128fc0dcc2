"""Names the functions of pgmta that some work calls, in the order of their first call."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("pgmta", "queued", "smtpd")
_TOOL = 4  # of sys.monitoring; debuggers, coverage and profilers have other numbers
_EVENT = sys.monitoring.events.PY_START


@contextmanager
def traced(packages: tuple[str, ...] = _PACKAGES) -> Iterator[list[str]]:
    """Yield the list that gets `folder/file.py: Class.function` of each function once.

    It has every function, coroutine, generator and property that begins meanwhile in any thread of
    this process, nested functions too. Lambdas, comprehensions and generated methods are left out,
    and coroutines that began before: they are not seen when they go on.
    """
    calls: list[str] = []
    roots = tuple(f"{_ROOT / package}/" for package in packages)

    def started(code: CodeType, _offset: int) -> object:
        name = code.co_qualname
        if code.co_filename.startswith(roots) and "<" not in name.replace(".<locals>.", "."):
            calls.append(f"{code.co_filename[len(str(_ROOT)) + 1 :]}: {shown(name)}")
        return sys.monitoring.DISABLE  # its first call is enough

    sys.monitoring.use_tool_id(_TOOL, "pgmta tests")
    try:
        sys.monitoring.register_callback(_TOOL, _EVENT, started)
        sys.monitoring.restart_events()
        sys.monitoring.set_events(_TOOL, _EVENT)
        yield calls
    finally:
        sys.monitoring.set_events(_TOOL, 0)
        sys.monitoring.register_callback(_TOOL, _EVENT, None)
        sys.monitoring.free_tool_id(_TOOL)


def shown(name: str) -> str:
    """Return a qualified name as docs/develop/flow.md has it: `Class.method.nested`."""
    return name.replace(".<locals>", "")


def usual(traces: Sequence[Sequence[str]]) -> list[str]:
    """Return the functions that are in all traces, in the order that most of the traces have.

    Other work of the process falls into some traces. It may call a function of the way earlier
    than the way does, as a NOTIFY does with `Link.run`.
    """
    in_all = set.intersection(*map(set, traces))
    orders = Counter(tuple(name for name in trace if name in in_all) for trace in traces)
    return list(orders.most_common(1)[0][0])
