"""Finds and makes the handlers that smtpd.yaml names."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import traceback
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from pgmta.errors import PgmtaError

_ALIKE = 0.85  # of two names of modules; there are hundreds, and some are always a bit alike


class HandlerError(PgmtaError):
    """A handler can't be had; the text says why."""


def find(reference: str) -> Any:
    """Return what `package.module:Name` names. Raises HandlerError."""
    module_name, _, path = reference.partition(":")
    found: Any = _import(module_name)
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise HandlerError(_missing(found, name)) from None
    return found


def construct(reference: str, arguments: list[Any]) -> object:
    """Return the handler that `package.module:Name` names.

    A class or a function is called with the arguments. An object with a method `handle_…` is the
    handler itself. Raises HandlerError with the reason.
    """
    found = find(reference)
    if not inspect.isclass(found) and any(name.startswith("handle_") for name in dir(found)):
        if arguments:
            raise HandlerError(f"{reference} is a handler already: it takes no arguments")
        return found
    if not callable(found):
        raise HandlerError(f"{reference} is neither a class, a handler nor a function")
    _check_arguments(found, reference, arguments)
    try:
        handler = found(*arguments)
    except (Exception, SystemExit) as error:
        raise HandlerError(f"{reference} raised {_describe(error)}") from None
    if inspect.isawaitable(handler):
        if inspect.iscoroutine(handler):
            handler.close()
        raise HandlerError(f"{reference} is `async def`: smtpd calls it without await")
    if handler is None:
        raise HandlerError(f"{reference} returned None, not a handler")
    return handler


def construct_authenticator(reference: str, arguments: list[Any]) -> object:
    """Return a handler whose `authenticator` is the one that `package.module:Name` names.

    A class is called with the arguments. A function is the authenticator itself. Raises
    HandlerError with the reason.
    """
    found = find(reference)
    if not callable(found):
        raise HandlerError(f"{reference} is neither a class nor a function")
    if inspect.isclass(found):
        found = construct(reference, arguments)
    elif arguments:
        raise HandlerError(f"{reference} is an authenticator already: it takes no arguments")
    if not callable(found):
        raise HandlerError(f"{reference} has no method __call__")
    return SimpleNamespace(authenticator=found)


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            raise HandlerError(_no_module(missing)) from None
        raise HandlerError(f"module {name} raised {_describe(error)}") from None
    except (Exception, SystemExit) as error:
        raise HandlerError(f"module {name} raised {_describe(error)}") from None


def _no_module(name: str) -> str:
    parent, _, last = name.rpartition(".")
    try:
        path = importlib.import_module(parent).__path__ if parent else None
        names = [module.name for module in pkgutil.iter_modules(path)]
    except Exception:
        names = []
    close = difflib.get_close_matches(last, names, n=1, cutoff=_ALIKE)
    if close:
        near = f"{parent}.{close[0]}" if parent else close[0]
        return f"there is no module {name!r}; did you mean {near!r}?"
    places = "" if parent else ", neither installed nor in the folder of this file"
    return f"there is no module {name!r}{places}"


def _missing(owner: Any, name: str) -> str:
    names = [known for known in dir(owner) if not known.startswith("_")]
    handlers = [known for known in names if _is_handler(getattr(owner, known, None))]
    word = getattr(owner, "__name__", type(owner).__name__)
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"{word} has no {name!r}; did you mean {near[0]!r}?"
    known = f"; its handlers: {', '.join(handlers)}" if handlers else ""
    return f"{word} has no {name!r}{known}"


def _is_handler(value: Any) -> bool:
    return any(name.startswith("handle_") for name in dir(value))


def _check_arguments(found: Callable[..., Any], reference: str, arguments: list[Any]) -> None:
    try:
        inspect.signature(found).bind(*arguments)
    except TypeError as error:
        raise HandlerError(f"arguments of {reference}: {error}") from None
    except ValueError:  # no signature is known
        pass


def _describe(error: BaseException) -> str:
    """Type, text and place of an error in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if len(frames) > 1 else ""
    return " ".join(f"{type(error).__name__}: {error}".split()) + place
