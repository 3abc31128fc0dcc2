"""The methods of a handler that smtpd calls, and those that it does not."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from pgmta.config.types import hint

PHASES = ("HELO", "EHLO", "MAIL", "RCPT", "DATA", "VRFY", "NOOP", "RSET", "QUIT")
"""Commands that a handler may answer with its method `handle_…`."""
_ARGUMENTS = {"HELO": 1, "EHLO": 2, "MAIL": 2, "RCPT": 2, "VRFY": 1, "NOOP": 1}
_COMMON = 3  # server, session, envelope
_LATER = ("handle_AUTH", "handle_STARTTLS", "handle_PROXY", "authenticator", "auth_callback")
_KNOWN = (*(f"handle_{phase}" for phase in PHASES), "handle_exception", *_LATER[:3])
_NEAR = 0.85  # likeness above which a name is a misspelt hook

type Method = Callable[..., Any]


class Methods:
    """The methods of one handler; `problems` has its mistakes."""

    def __init__(self, handler: object) -> None:
        self.phases: dict[str, Method] = {}
        """The method of each phase that the handler answers."""
        self.rescue: Method | None = getattr(handler, "handle_exception", None)
        self.later: list[str] = []
        """Attributes that belong to parts of SMTP that smtpd does not have yet."""
        self.problems: list[str] = []
        names = [name for name in dir(handler) if name.startswith(("handle_", "auth"))]
        for name in names:
            self._see(handler, name)
        if not (self.phases or self.problems):
            word = type(handler).__name__
            legacy = hasattr(handler, "process_message")
            self.problems.append(
                f"{word} has no method handle_…; "
                + ("write handle_DATA for process_message" if legacy else hint("", _KNOWN[:9]))
            )

    def _see(self, handler: object, name: str) -> None:
        if name in _LATER or name.startswith("auth_"):
            if getattr(handler, name, None) is not None:
                self.later.append(name)
        elif name.startswith("handle_") and name != "handle_exception":
            phase = name.removeprefix("handle_")
            if phase in PHASES:
                self._add(name, phase, getattr(handler, name))
            elif _misspelt(phase):
                self.problems.append(f"unknown method {name}; {_hint(name)}")

    def _add(self, name: str, phase: str, method: Any) -> None:
        if not callable(method):
            self.problems.append(f"{name} is no method")
            return
        if not _awaitable(method):
            self.problems.append(f"{name} is not `async def`: smtpd awaits it")
            return
        count = _COMMON + _ARGUMENTS.get(phase, 0)
        if phase == "EHLO" and not _takes(method, count) and _takes(method, count - 1):
            method = _new_ehlo(method)
        elif not _takes(method, count):
            self.problems.append(f"{name} does not take {count} arguments; see docs/hooks.md")
            return
        self.phases[phase] = method


def _misspelt(phase: str) -> bool:
    """Return whether a name after `handle_` is meant as a hook; `handle_message` is not."""
    if phase.isupper():
        return True
    names = [known.removeprefix("handle_").lower() for known in _KNOWN]
    return bool(difflib.get_close_matches(phase.lower(), names, n=1, cutoff=_NEAR))


def _hint(name: str) -> str:
    by_case = {known.lower(): known for known in _KNOWN}
    close = difflib.get_close_matches(name.lower(), by_case, n=1)
    return f"did you mean {by_case[close[0]]!r}?" if close else hint(name, _KNOWN)


def _awaitable(method: Any) -> bool:
    """Return whether the answer of the method can be awaited, if that can be known."""
    method = inspect.unwrap(method)
    return inspect.iscoroutinefunction(method) or (
        not inspect.isroutine(method) and inspect.iscoroutinefunction(type(method).__call__)
    )


def _takes(method: Any, count: int) -> bool:
    try:
        inspect.signature(method).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # no signature is known
        return True
    return True


def _new_ehlo(method: Method) -> Method:
    """Give the older `handle_EHLO`, which returns the last line only, the newer form."""

    async def handle_EHLO(
        server: Any, session: Any, envelope: Any, hostname: str, responses: list[str]
    ) -> Any:
        answer = await method(server, session, envelope, hostname)
        if isinstance(answer, str) and answer.startswith("2"):
            lines, server.pushed = [*responses, *server.pushed], []
            return [*lines, answer]
        return answer if isinstance(answer, list) or not isinstance(answer, str) else [answer]

    return handle_EHLO
