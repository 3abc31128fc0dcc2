"""All hooks of one process, loaded from smtpd.yaml."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from pgmta.config.loader import Key, mistakes
from smtpd import config as configuration
from smtpd.config import SmtpdConfig
from smtpd.hooks.loading import HandlerError, construct, construct_authenticator
from smtpd.hooks.methods import Methods
from smtpd.hooks.phases import Hook, Phases
from smtpd.hooks.runner import HookRunner

_START = 60.0  # seconds for the constructor of a handler


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

    async def load(self, config: SmtpdConfig, path: Path) -> HookSet:
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
        entries: list[configuration.Hook],
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

    async def _load(self, entry: configuration.Hook, config: SmtpdConfig) -> Hook:
        limits, name, threaded = config.hook_limits, entry.reference, entry.sync == "thread"
        runner = HookRunner(
            name, time=limits.time, threads=limits.threads, calls=limits.calls, pooled=threaded
        )
        make = construct if entry.handler else construct_authenticator
        # in the thread of its methods: a constructor may take the running event loop
        future = runner.run(lambda: make(name, entry.arguments))
        try:
            async with asyncio.timeout(_START):
                handler = await asyncio.wrap_future(future)
        except TimeoutError:
            await runner.stop(0.0)
            raise HandlerError(f"{name} took longer than {_START:g} s") from None
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
