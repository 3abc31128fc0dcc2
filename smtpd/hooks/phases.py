"""One hook, its methods as steps, and the steps of one listener by command, AUTH included."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pgmta.accounts.mechanisms import offered
from pgmta.logs import get
from smtpd.hooks.answer import BadAnswer
from smtpd.hooks.call import Done, HookCall, HookTimeout
from smtpd.hooks.methods import BESIDE, PHASES, Method, Methods
from smtpd.hooks.runner import HookOverload, HookRunner

_LOG_INTERVAL_S = 60.0  # for lines about one hook

FAILED = {
    "accept": "451 4.3.0 Hook failed, try again later",  # after a wrong change of the envelope
    "defer": "451 4.3.0 Hook failed, try again later",
    "reject": "554 5.3.0 Hook failed",
}
"""Reply in place of a hook that raises, answers nonsense or does not answer, by `on_failure`."""

log = get("hooks")


class HookError(Exception):
    """Carries what a hook raised."""

    def __init__(self, inner: BaseException) -> None:
        super().__init__(type(inner).__name__)
        self.inner = inner


@dataclass(eq=False)
class Hook:
    """One handler of the operator's own, and the threads that its methods run in."""

    name: str
    handler: object
    methods: Methods
    runner: HookRunner
    on_failure: Literal["accept", "defer", "reject"] = "defer"
    failed_calls: int = field(default=0, init=False)
    _failures: int = field(default=0, init=False)
    _logged: float = field(default=-_LOG_INTERVAL_S, init=False)

    @property
    def calls(self) -> int:
        """Calls of its methods so far."""
        return self.runner.calls

    @property
    def seconds(self) -> float:
        """How long those calls took that have ended."""
        return self.runner.seconds

    def failed(
        self, method: str, error: BaseException, client: str, *, secret: bool = False
    ) -> None:
        """Log the first failure of a minute, and how many there were since the last line.

        With `secret` the log has the place of an error and not its text, which may be a password.
        """
        self._failures += 1
        self.failed_calls += 1
        now = time.monotonic()
        if now < self._logged + _LOG_INTERVAL_S:
            return
        self._logged = now
        known = isinstance(error, BadAnswer | HookTimeout | HookOverload)
        reason = str(error) if known else type(error).__name__
        if secret and not known:
            reason += _place(error)
        log.error("hook failed", hook=f"{self.name}.{method}", client=client,
                  reason=reason, failures=self._failures,
                  exc_info=None if known or secret else error)  # fmt: skip
        self._failures = 0


def _place(error: BaseException) -> str:
    """Return where an error was raised, if that is known."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


@dataclass(frozen=True, slots=True)
class Step:
    """One method of one hook."""

    hook: Hook
    method: Method
    name: str

    def call(
        self, arguments: tuple[Any, ...], done: Done, *, rescue: bool = True, asks: bool = False
    ) -> HookCall:
        """Call the method; `done` gets its answer, or an error, as HookRunner.call says.

        With `rescue` the handler's `handle_exception` answers in place of a method that raises.
        """
        rescuer = self.hook.methods.rescue if rescue else None
        return self.hook.runner.call(self.method, rescuer, arguments, done, asks=asks)

    async def ask(self, arguments: tuple[Any, ...], *, rescue: bool = True) -> tuple[Any, bool]:
        """Return the answer, which is no reply, and whether it is that of `handle_exception`.

        Raises HookError with what the hook raised, or with what prevented its answer.
        """
        answered, done = awaited()
        call = self.call(arguments, done, rescue=rescue)
        try:
            answer, error = await answered
        finally:
            call.abandon()
        if error:
            raise HookError(error)
        return answer, call.failed

    def tell(self, arguments: tuple[Any, ...], client: str) -> None:
        """Call the method without waiting for its answer, and log its failure."""

        def came(_: Any, error: BaseException | None) -> None:
            if error:
                self.hook.failed(self.name, error, client)

        self.call(arguments, came, rescue=False)


def awaited() -> tuple[asyncio.Future[tuple[Any, BaseException | None]], Done]:
    """Return a future, and the `done` of a call that puts answer and error into it."""
    answered = asyncio.get_running_loop().create_future()

    def done(answer: Any, error: BaseException | None) -> None:
        if not answered.done():  # not if the session has ended
            answered.set_result((answer, error))

    return answered, done


class Phases:
    """Has the steps of each command that a hook answers.

    A listener looks them up once, so that a command without a hook needs no task and no thread.
    """

    def __init__(self, hooks: Sequence[Hook] = ()) -> None:
        self.hooks = tuple(hooks)
        steps = {phase: self._steps(phase) for phase in (*PHASES, *BESIDE)}
        self.content = steps["DATA"]
        """Steps after the end of data."""
        self.header = steps["HEADER"]
        """Steps before these, which get the header alone."""
        self.connect = steps["CONNECT"]
        """Steps before the greeting."""
        self.disconnect = steps["DISCONNECT"]
        """Steps after the end of the session."""
        self.starttls = steps["STARTTLS"]
        """Steps after a TLS handshake."""
        self.commands = {
            phase.encode(): steps[phase] for phase in PHASES if phase != "DATA" and steps[phase]
        }
        """Steps of the other commands, by their words."""
        self.auth = LoginSteps(self.hooks, steps["AUTH"])
        """How the hooks log users in."""

    def _steps(self, phase: str) -> tuple[Step, ...]:
        return tuple(
            Step(hook, hook.methods.phases[phase], f"handle_{phase}")
            for hook in self.hooks
            if phase in hook.methods.phases
        )


class LoginSteps:
    """The parts of hooks that log users in. Of each there is one: that of the first hook."""

    def __init__(self, hooks: Sequence[Hook], steps: tuple[Step, ...]) -> None:
        self.first = steps
        """Steps of `handle_AUTH`."""
        self.mechanisms: dict[str, Step] = {}
        """The step of each mechanism that a hook has."""
        self.authenticator: Step | None = None
        """Judges passwords in place of the table of users."""
        for hook in hooks:
            auth = hook.methods.auth
            for name, method in auth.methods.items():
                self.mechanisms.setdefault(name, Step(hook, method, f"auth_{name}"))
            if auth.authenticator and not self.authenticator:
                self.authenticator = Step(hook, auth.authenticator, "authenticator")

    def __bool__(self) -> bool:
        """Return whether a hook has a part in AUTH."""
        return bool(self.first or self.mechanisms or self.authenticator)

    def offered(self, known: Sequence[str]) -> tuple[str, ...]:
        """Return the mechanisms that a listener with these hooks offers; smtpd does the `known`."""
        others = sorted(self.mechanisms)
        return offered(known, authenticator=bool(self.authenticator), others=others)
