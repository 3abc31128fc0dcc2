"""The methods of a handler: those that smtpd calls, also in AUTH, and those that it does not."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Awaitable, Callable
from typing import Any

from pgmta.config.types import hint

type Method = Callable[..., Any]

PHASES = ("HELO", "EHLO", "MAIL", "RCPT", "DATA", "VRFY", "NOOP", "RSET", "QUIT")
"""Commands that a handler may answer with its method `handle_…`."""
BESIDE = ("CONNECT", "STARTTLS", "AUTH", "HEADER", "DISCONNECT")
"""Other methods `handle_…`."""
_ARGUMENTS = {"HELO": 1, "EHLO": 2, "MAIL": 2, "RCPT": 2, "VRFY": 1, "NOOP": 1, "AUTH": 1,
              "HEADER": 1}  # fmt: skip
_COMMON_ARGUMENTS = 3  # server, session, envelope
_PLAIN_METHODS = ("STARTTLS",)  # aiosmtpd calls these without await
_KNOWN = (*(f"handle_{phase}" for phase in (*PHASES, *BESIDE)), "handle_exception", "handle_PROXY")
_PAGE = "docs/programs/hooks.md"
_MIN_LIKENESS = 0.85  # a name that is so much like that of a hook is a misspelt one
_MECHANISM = re.compile(r"[A-Z0-9_-]{1,20}")  # RFC 4422, section 3.1
_AUTHENTICATOR_ARGUMENTS = 5  # server, session, envelope, mechanism, auth_data
_MECHANISM_ARGUMENTS = 2  # server, args


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
        plain = not _awaitable(method)
        if plain and not (self._plain or phase in _PLAIN_METHODS):
            reason = "smtpd awaits it (sync: thread takes plain functions)"
            self.problems.append(f"{name} is not `async def`: {reason}")
            return
        count = _COMMON_ARGUMENTS + _ARGUMENTS.get(phase, 0)
        if phase == "EHLO" and not _takes(method, count) and _takes(method, count - 1):
            method = _new_ehlo(_coroutine(method) if plain else method)
        elif not _takes(method, count):
            self.problems.append(f"{name} does not take {count} arguments; see {_PAGE}")
            return
        self.phases[phase] = _coroutine(method) if plain else method


def _misspelt(phase: str) -> bool:
    """Return whether a name after `handle_` is meant as a hook; `handle_message` is not."""
    if phase.isupper():
        return True
    names = [known.removeprefix("handle_").lower() for known in _KNOWN]
    return bool(difflib.get_close_matches(phase.lower(), names, n=1, cutoff=_MIN_LIKENESS))


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


class Mechanisms:
    """The methods of a handler for AUTH, in the names of aiosmtpd; `problems` has its mistakes.

    Each one here is a coroutine function, whatever its form in the handler is. Its first arguments
    are server, session and envelope.
    """

    def __init__(self, handler: object) -> None:
        self.methods: dict[str, Method] = {}
        """The method of each mechanism, by the mechanism's name."""
        self.authenticator: Method | None = None
        """Judges the password that PLAIN or LOGIN has brought."""
        self.problems: list[str] = []
        self.unused: list[str] = []
        """Attributes of aiosmtpd's interface that smtpd does not use."""
        found: Any = getattr(handler, "authenticator", None)
        if found is not None and self._takes("authenticator", found, _AUTHENTICATOR_ARGUMENTS):
            self.authenticator = _coroutine(found)
        if callable(getattr(handler, "auth_callback", None)):
            self.unused.append("auth_callback (write authenticator)")
        for name in dir(handler):
            if name.startswith("auth_") and name != "auth_callback":
                self._see(name, getattr(handler, name))

    def __bool__(self) -> bool:
        """Return whether the handler has a part in AUTH."""
        return bool(self.authenticator or self.methods)

    def _see(self, name: str, found: Any) -> None:
        # set by aiosmtpd's decorator auth_mechanism
        named = getattr(found, "__auth_mechanism_name__", None)
        mechanism = named or name.removeprefix("auth_").replace("__", "-")
        if not (callable(found) and mechanism.isupper()):
            return  # the name means no mechanism, for example auth_database
        if not _MECHANISM.fullmatch(mechanism):
            self.problems.append(f"{name}: {mechanism!r} is no name of a mechanism (RFC 4422)")
        elif self._takes(name, found, _MECHANISM_ARGUMENTS):
            self.methods[mechanism] = _of_mechanism(found)

    def _takes(self, name: str, found: Any, count: int) -> bool:
        if not callable(found):
            self.problems.append(f"{name} can't be called")
        elif not _takes(found, count):
            self.problems.append(f"{name} does not take {count} arguments; see {_PAGE}")
        else:
            return True
        return False


def _of_mechanism(method: Method) -> Method:
    """Give `auth_…`, which takes server and args alone, the arguments of the other methods."""
    return _coroutine(lambda server, session, envelope, args: method(server, args))


def _coroutine(method: Method) -> Method:
    """Return a coroutine function in place of a plain one, or of one whose form is unknown."""

    async def called(*arguments: Any) -> Any:
        answer = method(*arguments)
        return await answer if isinstance(answer, Awaitable) else answer

    return called


def _awaitable(method: Any) -> bool:
    """Return whether the answer of the method can be awaited, if that can be known."""
    method = inspect.unwrap(method)
    return inspect.iscoroutinefunction(method) or (
        not inspect.isroutine(method) and inspect.iscoroutinefunction(type(method).__call__)
    )


def _takes(method: Any, count: int) -> bool:
    """Return whether the method takes that number of arguments, if that can be known."""
    try:
        inspect.signature(method).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # raised if no signature is known
        return True
    return True
