"""The methods of a handler that smtpd calls, and those that it does not."""

from __future__ import annotations

import difflib
from typing import Any

from pgmta.config.types import hint
from smtpd.hooks.mechanisms import Mechanisms, Method, awaitable, coroutine, takes

PHASES = ("HELO", "EHLO", "MAIL", "RCPT", "DATA", "VRFY", "NOOP", "RSET", "QUIT")
"""Commands that a handler may answer with its method `handle_…`."""
BESIDE = ("CONNECT", "STARTTLS", "AUTH", "HEADER", "DISCONNECT")
"""Other methods `handle_…`."""
_ARGUMENTS = {"HELO": 1, "EHLO": 2, "MAIL": 2, "RCPT": 2, "VRFY": 1, "NOOP": 1, "AUTH": 1,
              "HEADER": 1}  # fmt: skip
_COMMON = 3  # server, session, envelope
_PLAIN = ("STARTTLS",)  # aiosmtpd calls it without await
_KNOWN = (*(f"handle_{phase}" for phase in (*PHASES, *BESIDE)), "handle_exception", "handle_PROXY")
_NEAR = 0.85  # likeness above which a name is a misspelt hook


class Methods:
    """The methods of one handler; `problems` has its mistakes.

    With `plain` its methods `handle_…` may be plain functions.
    """

    def __init__(self, handler: object, *, plain: bool = False) -> None:
        self._plain = plain
        self.phases: dict[str, Method] = {}
        """The method of each phase that the handler answers."""
        self.rescue: Method | None = getattr(handler, "handle_exception", None)
        self.auth = Mechanisms(handler)
        """The parts of the handler that log users in."""
        self.unused = self.auth.unused
        """Attributes of aiosmtpd's interface that smtpd does not use."""
        self.problems = self.auth.problems
        for name in dir(handler):
            if name.startswith("handle_"):
                self._see(handler, name)
        if not (self.phases or self.auth or self.problems):
            word = type(handler).__name__
            legacy = hasattr(handler, "process_message")
            self.problems.append(
                f"{word} has no method handle_…; "
                + ("write handle_DATA for process_message" if legacy else hint("", _KNOWN[:9]))
            )

    def _see(self, handler: object, name: str) -> None:
        if name == "handle_PROXY":
            self.unused.append("handle_PROXY (write handle_CONNECT)")
            return
        phase = name.removeprefix("handle_")
        if phase in PHASES or phase in BESIDE:
            self._add(name, phase, getattr(handler, name))
        elif name != "handle_exception" and _misspelt(phase):
            self.problems.append(f"unknown method {name}; {_hint(name)}")

    def _add(self, name: str, phase: str, method: Any) -> None:
        if not callable(method):
            self.problems.append(f"{name} is no method")
            return
        plain = not awaitable(method)
        if plain and not (self._plain or phase in _PLAIN):
            reason = "smtpd awaits it (sync: thread takes plain functions)"
            self.problems.append(f"{name} is not `async def`: {reason}")
            return
        count = _COMMON + _ARGUMENTS.get(phase, 0)
        if phase == "EHLO" and not takes(method, count) and takes(method, count - 1):
            method = _new_ehlo(coroutine(method) if plain else method)
        elif not takes(method, count):
            self.problems.append(f"{name} does not take {count} arguments; see docs/hooks.md")
            return
        self.phases[phase] = coroutine(method) if plain else method


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
