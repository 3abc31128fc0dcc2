"""The hooks of one listener, by command."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from pgmta.logs import get
from smtpd.hooks.call import HookTimeout
from smtpd.hooks.methods import PHASES, Method, Methods
from smtpd.hooks.reply import BadAnswer
from smtpd.hooks.runner import HookOverload, HookRunner

_EVERY = 60.0  # seconds between two log lines about one hook

log = get("hooks")


@dataclass(eq=False)
class Hook:
    """One handler of the operator's own, and the threads that its methods run in."""

    name: str
    handler: object
    methods: Methods
    runner: HookRunner
    _failures: int = field(default=0, init=False)
    _logged: float = field(default=-_EVERY, init=False)

    def failed(self, method: str, error: BaseException, client: str) -> None:
        """Log the first failure of a minute, and how many there were since the last line."""
        self._failures += 1
        now = time.monotonic()
        if now < self._logged + _EVERY:
            return
        self._logged = now
        known = isinstance(error, BadAnswer | HookTimeout | HookOverload)
        log.error("hook failed", hook=f"{self.name}.{method}", client=client,
                  reason=str(error) if known else type(error).__name__, failures=self._failures,
                  exc_info=None if known else error)  # fmt: skip
        self._failures = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One method of one hook."""

    hook: Hook
    method: Method
    name: str


class Phases:
    """Has the steps of each command that a hook answers.

    A listener looks them up once, so that a command without a hook needs no task and no thread.
    """

    def __init__(self, hooks: Sequence[Hook] = ()) -> None:
        self.hooks = tuple(hooks)
        found = {
            phase.encode(): tuple(
                Step(hook, hook.methods.phases[phase], f"handle_{phase}")
                for hook in self.hooks
                if phase in hook.methods.phases
            )
            for phase in PHASES
        }
        self.content = found.pop(b"DATA")
        """Steps after the end of data."""
        self.commands = {word: steps for word, steps in found.items() if steps}
        """Steps of the other commands, by their words."""
