"""The hooks of a listener that log users in, as one session asks them."""

from __future__ import annotations

import binascii
from base64 import b64decode
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiosmtpd.smtp import MISSING, LoginPassword

from pgmta.accounts.login import Authenticate, AuthRefused, AuthUnavailable, Login
from smtpd.hooks.answer import (
    BadAnswer,
    check_secret_reply,
    login,
    of_authenticator,
    of_mechanism,
)
from smtpd.hooks.asking import Asking
from smtpd.hooks.call import HookCall
from smtpd.hooks.hook_server import Ask, HookServer, Take
from smtpd.hooks.phases import HookError, LoginSteps, Step, awaited

ABORTED = "501 5.7.0 Auth aborted"
NOT_BASE64 = "501 5.5.2 Can't decode base64"


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an exchange: the answer of the method, or the error in its place."""

    answer: Any
    error: BaseException | None
    rescued: bool
    """Whether the answer is that of `handle_exception`."""
    aborted: str
    """The reply if the client has broken the exchange off, else nothing."""


class LoginHooks:
    """An authenticator in place of the table of users, and the mechanisms that hooks have.

    A hook that fails lets no user in, whatever its `on_failure` is: the client gets 454 4.7.0.
    """

    def __init__(self, steps: LoginSteps, asking: Asking) -> None:
        self._steps = steps
        self._asking = asking
        self.judges = steps.authenticator is not None
        """Whether an authenticator takes the place of the table of users."""
        self.mechanisms = tuple(sorted(steps.mechanisms))
        """Mechanisms that hooks have. They take the place of smtpd's of the same name."""

    def takes(self, mechanism: str) -> bool:
        """Return whether a hook answers AUTH with this mechanism, or is asked first."""
        return bool(self._steps.first) or mechanism in self._steps.mechanisms

    async def answer(self, mechanism: str, args: list[str], ask: Ask) -> Authenticate | None:
        """Return what judges this AUTH; None leaves it to smtpd.

        `args` are the words behind AUTH. `ask` gives `None` for a line that is too long.
        """
        for step in self._steps.first:
            ending = await self._converse(step, args, ask)
            if ending.answer is not MISSING or ending.error or ending.aborted:
                return partial(self._judge, step, ending)
        own = self._steps.mechanisms.get(mechanism)
        return partial(self._ask_and_judge, own, args, ask) if own else None

    async def _converse(self, step: Step, args: list[str], ask: Ask) -> Ending:
        server = self._asking.server
        server.envelope = self._asking.envelope()
        server.session.authenticated = None
        return await _Exchange(step, server, ask).run(args)

    async def _ask_and_judge(
        self, step: Step, args: list[str], ask: Ask, mechanism: str, *given: object
    ) -> Login:
        return await self._judge(step, await self._converse(step, args, ask), mechanism)

    async def _judge(self, step: Step, ending: Ending, mechanism: str, *given: object) -> Login:
        """Return the user. Raises AuthRefused with the reply, and AuthUnavailable."""
        server, state = self._asking.server, self._asking.server.session
        if ending.aborted:
            state.authenticated = False
            raise AuthRefused(ending.aborted)
        try:
            user, reply = self._parse(step, ending, mechanism)
        except Exception as error:
            inner = ending.error or error
            step.hook.failed(step.name, inner, self._asking.client, secret=True)
            state.authenticated = False
            raise AuthUnavailable(f"{step.name} of a hook failed") from None
        finally:
            server.pushed = []
        state.authenticated = bool(user)
        if not user:
            raise AuthRefused(reply)
        return user

    def _parse(self, step: Step, ending: Ending, mechanism: str) -> tuple[Login | None, str]:
        server, state, answer = self._asking.server, self._asking.server.session, ending.answer
        if ending.error:
            raise BadAnswer("failed")
        pushed = server.pushed if isinstance(server.pushed, list) else []
        if isinstance(answer, str) and (ending.rescued or step.name == "handle_AUTH"):
            user, reply = None, check_secret_reply(answer, pushed)
        else:
            user, reply = of_mechanism(answer, pushed, mechanism)
        if user:
            state.auth_data = answer.auth_data
        elif state.authenticated is True and reply[:3] == "235":
            user = login(state.auth_data, mechanism, "", reply)
        return user, reply

    async def authenticate(
        self, mechanism: str, name: str, password: bytes, client: str
    ) -> Login | None:
        """Have the hook's authenticator judge a password.

        Raises AuthRefused with the hook's reply, and AuthUnavailable if the hook fails.
        """
        step = self._steps.authenticator
        assert step  # noqa: S101 - `judges` says so
        server, state = self._asking.server, self._asking.server.session
        server.pushed, server.envelope = [], self._asking.envelope()
        data = LoginPassword(name.encode("utf-8", "surrogateescape"), password)
        arguments = (server, state, server.envelope, mechanism, data)
        state.authenticated = False
        try:
            answer, rescued = await step.ask(arguments)
            if rescued:
                raise AuthRefused(check_secret_reply(answer))
            user, reply = of_authenticator(answer, mechanism, name)
        except (HookError, BadAnswer) as error:
            inner = error.inner if isinstance(error, HookError) else error
            step.hook.failed(step.name, inner, client, secret=True)
            raise AuthUnavailable("the authenticator of a hook failed") from None
        if user:
            state.authenticated, state.auth_data = True, answer.auth_data
        elif reply:
            raise AuthRefused(reply)
        return user


class _Exchange:
    """Calls one method of AUTH, and carries its challenges to the client and the answers back."""

    def __init__(self, step: Step, server: HookServer, ask: Ask) -> None:
        self._step = step
        self._server = server
        self._ask = ask
        self._call: HookCall | None = None
        self._aborted = ""

    async def run(self, args: list[str]) -> Ending:
        """Call the method with the words behind AUTH; cancel it with the session."""
        server, (ended, done) = self._server, awaited()
        server.pushed, server.ask = [], self._challenge
        arguments = (server, server.session, server.envelope, args)
        self._call = call = self._step.call(arguments, done, asks=True)
        try:
            answer, error = await ended
        finally:
            call.abandon()
            server.ask = None
        return Ending(answer, error, call.failed, self._aborted)

    def _challenge(self, text: str, take: Take) -> None:
        """Ask the client; after it has broken the exchange off there is no further answer."""
        call, runner = self._call, self._step.hook.runner
        if not (call and self._server.ask) or call.over or self._aborted:
            take(None)
            return

        def answered(line: bytes | None) -> None:
            runner.go_on(call)
            take(self._decode(line))

        runner.pause(call)
        self._ask(f"334 {text}", answered)

    def _decode(self, line: bytes | None) -> bytes | None:
        """Return the octets of the client's answer; None if it is too long, or breaks AUTH off."""
        if line is not None:
            if line.strip() == b"*":
                self._aborted = ABORTED
                return None
            with suppress(binascii.Error):
                return b64decode(line.strip(), validate=True)
        self._aborted = NOT_BASE64
        return None
