"""All hooks of one process: found, made and loaded as smtpd.yaml names them."""

from __future__ import annotations

import asyncio
import difflib
import importlib
import inspect
import pkgutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from pgmta.config.loader import mistakes
from pgmta.config.yaml_file import Key
from pgmta.errors import PgmtaError
from smtpd import config as configuration
from smtpd.config import SmtpdConfig
from smtpd.hooks.methods import Methods
from smtpd.hooks.phases import Hook, Phases
from smtpd.hooks.runner import HookRunner

_START_TIMEOUT_S = 60.0  # for the constructor of a handler
_MIN_LIKENESS = 0.85  # of two names of modules: of hundreds, some are always a bit alike


class HookSet:
    """Has the phases of each listener, in the order of `listen`.

    Each entry of the file is loaded once per process. Listeners without own hooks share the
    handlers of the top level.
    """

    def __init__(self) -> None:
        self.phases: list[Phases] = []
        self.hooks: list[Hook] = []
        self.warnings: list[str] = []
        """Parts of handlers that smtpd does not use."""

    async def load_hooks(self, config: SmtpdConfig, path: Path) -> HookSet:
        """Import and make the handlers; return self.

        The folder of the configuration file is the last place where modules are looked for. Raises
        ConfigError with file, line and key of each mistake.
        """
        if config.uses_hooks:
            _look_in(path)
        problems: list[tuple[Key, str]] = []
        general = await self._load_list(config.hooks, ("hooks",), config, problems)
        for number, listener in enumerate(config.listen):
            key: Key = ("listen", number)
            hooks = general
            if listener.hooks is not None:
                hooks = await self._load_list(listener.hooks, (*key, "hooks"), config, problems)
            phases = Phases(hooks)
            reason = _relay_problem(phases) if listener.relay == "hook" and not problems else ""
            if reason:
                problems.append(((*key, "relay"), reason))
            self.phases.append(phases)
        if problems:
            await self.stop(0.0)
            raise mistakes(path, problems)
        return self

    async def stop(self, grace: float) -> None:
        """Give open calls `grace` seconds, then cancel them and end the threads."""
        await asyncio.gather(*(hook.runner.stop(grace) for hook in self.hooks))

    async def _load_list(
        self,
        entries: list[configuration.HookEntry],
        key: Key,
        config: SmtpdConfig,
        problems: list[tuple[Key, str]],
    ) -> list[Hook]:
        hooks = []
        for number, entry in enumerate(entries):
            try:
                hook = await self._load(entry, config)
            except HandlerError as error:
                problems.append(((*key, number), str(error)))
                continue
            if hook.methods.problems:
                problems.append(((*key, number), "; ".join(hook.methods.problems)))
            if hook.methods.unused:
                parts = ", ".join(hook.methods.unused)
                self.warnings.append(f"{entry.reference}: smtpd does not use {parts}")
            hooks.append(hook)
        return hooks

    async def _load(self, entry: configuration.HookEntry, config: SmtpdConfig) -> Hook:
        name, threaded = entry.reference, entry.sync == "thread"
        runner = HookRunner(name, config.hook_limits, pooled=threaded)
        make = construct if entry.handler else construct_authenticator
        # in the thread of its methods, because a constructor may use the running event loop
        future = runner.run_function(lambda: make(name, entry.arguments))
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                handler = await asyncio.wrap_future(future)
        except TimeoutError:
            await runner.stop(0.0)
            raise HandlerError(f"{name} took longer than {_START_TIMEOUT_S:g} s") from None
        except BaseException:
            await runner.stop(0.0)
            raise
        methods = Methods(handler, plain=threaded)
        hook = Hook(name, handler, methods, runner, entry.on_failure)
        self.hooks.append(hook)
        return hook


def _relay_problem(phases: Phases) -> str:
    """Return why the hooks can't accept recipients alone, or nothing."""
    steps = phases.commands.get(b"RCPT", ())
    if not steps:
        return "hook: no hook of this listener has a method handle_RCPT"
    if any(step.hook.on_failure == "accept" for step in steps):
        return "hook: with on_failure: accept a hook that fails would make an open relay"
    return ""


def _look_in(path: Path) -> None:
    """Find modules beside the configuration file, after all other places.

    As the last place, no file there hides a module of Python.
    """
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)


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
    close = difflib.get_close_matches(last, names, n=1, cutoff=_MIN_LIKENESS)
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
    except ValueError:  # raised if no signature is known
        pass


def _describe(error: BaseException) -> str:
    """Type, text and place of an error in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if len(frames) > 1 else ""
    return " ".join(f"{type(error).__name__}: {error}".split()) + place
