"""The parts of a handler that log users in: its authenticator and its mechanisms of AUTH."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from typing import Any

type Method = Callable[..., Any]

# RFC 4422, section 3.1
_MECHANISM = re.compile(r"[A-Z0-9_-]{1,20}")
_AUTHENTICATOR = 5  # server, session, envelope, mechanism, auth_data
_OF_MECHANISM = 2  # server, args


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
        if found is not None and self._takes("authenticator", found, _AUTHENTICATOR):
            self.authenticator = coroutine(found)
        if callable(getattr(handler, "auth_callback", None)):
            self.unused.append("auth_callback (write authenticator)")
        for name in dir(handler):
            if name.startswith("auth_") and name != "auth_callback":
                self._see(name, getattr(handler, name))

    def __bool__(self) -> bool:
        """Return whether the handler has a part in AUTH."""
        return bool(self.authenticator or self.methods)

    def _see(self, name: str, found: Any) -> None:
        named = getattr(found, "__auth_mechanism_name__", None)  # by aiosmtpd's auth_mechanism
        mechanism = named or name.removeprefix("auth_").replace("__", "-")
        if not (callable(found) and mechanism.isupper()):
            return  # no mechanism is meant, such as by auth_database
        if not _MECHANISM.fullmatch(mechanism):
            self.problems.append(f"{name}: {mechanism!r} is no name of a mechanism (RFC 4422)")
        elif self._takes(name, found, _OF_MECHANISM):
            self.methods[mechanism] = _of_mechanism(found)

    def _takes(self, name: str, found: Any, count: int) -> bool:
        if not callable(found):
            self.problems.append(f"{name} can't be called")
        elif not takes(found, count):
            self.problems.append(f"{name} does not take {count} arguments; see docs/hooks.md")
        else:
            return True
        return False


def _of_mechanism(method: Method) -> Method:
    """Give `auth_…`, which takes server and args alone, the arguments of the other methods."""

    async def auth(server: Any, session: Any, envelope: Any, args: list[str]) -> Any:
        answer = method(server, args)
        return await answer if isinstance(answer, Awaitable) else answer

    return auth


def coroutine(method: Method) -> Method:
    """Return a coroutine function in place of a plain one, or of one whose form is unknown."""

    async def called(*arguments: Any) -> Any:
        answer = method(*arguments)
        return await answer if isinstance(answer, Awaitable) else answer

    return called


def awaitable(method: Any) -> bool:
    """Return whether the answer of the method can be awaited, if that can be known."""
    method = inspect.unwrap(method)
    return inspect.iscoroutinefunction(method) or (
        not inspect.isroutine(method) and inspect.iscoroutinefunction(type(method).__call__)
    )


def takes(method: Any, count: int) -> bool:
    """Return whether the method takes that number of arguments, if that can be known."""
    try:
        inspect.signature(method).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # no signature is known
        return True
    return True
