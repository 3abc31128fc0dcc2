"""The hooks of a listener that log users in, as one session asks them."""

from __future__ import annotations

import asyncio
from typing import Protocol

from aiosmtpd.smtp import MISSING, LoginPassword

from pgmta.accounts.authenticator import Authenticator, AuthRefused, AuthUnavailable
from pgmta.accounts.login import Login
from smtpd.hooks.asking import Asking
from smtpd.hooks.auth_answer import check_reply, login, of_authenticator, of_mechanism
from smtpd.hooks.exchange import Ending, HookExchange, Reader
from smtpd.hooks.phases import LoginSteps, Step
from smtpd.hooks.question import HookError, asked
from smtpd.hooks.reply import BadAnswer


class Turn(Protocol):
    """The AUTH under way, as smtpd does it."""

    async def judge(self, authenticator: Authenticator) -> None:
        """Have this authenticator judge, behind the limits on failures; send the reply."""

    def default(self) -> None:
        """Do the mechanism that smtpd has."""


class LoginHooks:
    """An authenticator in place of the table of users, and the mechanisms that hooks have.

    A hook that fails lets no user in, whatever its `on_failure` is: the client gets 454 4.7.0.
    """

    def __init__(self, steps: LoginSteps, asking: Asking) -> None:
        self._steps = steps
        self._asking = asking
        self._exchange: HookExchange | None = None
        self._task: asyncio.Task[None] | None = None
        self.judges = steps.authenticator is not None
        """Whether an authenticator takes the place of the table of users."""
        self.mechanisms = tuple(sorted(steps.mechanisms))
        """Mechanisms that hooks have. They take the place of smtpd's of the same name."""

    def takes(self, mechanism: str) -> bool:
        """Return whether a hook answers AUTH with this mechanism, or is asked first."""
        return bool(self._steps.first) or mechanism in self._steps.mechanisms

    def begin(self, mechanism: str, args: list[str], session: Reader, turn: Turn) -> None:
        """Have the hooks answer AUTH; the session goes on after its reply."""
        session.pause()
        self._task = asyncio.create_task(self._answer(mechanism, args, session, turn))
        self._task.add_done_callback(self._ended)

    def abandon(self) -> None:
        """Cancel the method that is asked: the session has ended."""
        if self._exchange:
            self._exchange.abandon()
            self._exchange = None
        if self._task:
            self._task.cancel()
            self._task = None

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._asking.fail(error)

    async def _answer(self, mechanism: str, args: list[str], session: Reader, turn: Turn) -> None:
        for step in self._steps.first:
            ending = await self.converse(step, args, session)
            if ending.answer is not MISSING or ending.error or ending.aborted:
                await turn.judge(_Judged(self, step, ending))
                break
        else:
            own = self._steps.mechanisms.get(mechanism)
            if own:
                await turn.judge(_Conversing(self, own, args, session))
            else:
                session.go_on(turn.default)
                return
        session.go_on()

    async def converse(self, step: Step, args: list[str], session: Reader) -> Ending:
        """Call a method of AUTH, and return its end."""
        server = self._asking.server
        server.envelope = self._asking.envelope()
        server.session.authenticated = None
        ended: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()

        def done(ending: Ending) -> None:
            if not ended.done():
                ended.set_result(ending)

        self._exchange = HookExchange(step, server, session, done)
        self._exchange.begin(args)
        ending = await ended
        self._exchange = None
        return ending

    def read(self, step: Step, ending: Ending, mechanism: str) -> Login:
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
            user, reply = None, check_reply(answer, pushed)
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
            answer, rescued = await asked(step, arguments)
            if rescued:
                raise AuthRefused(check_reply(answer))
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


class _Conversing:
    """An authenticator that asks one method of AUTH."""

    def __init__(self, hooks: LoginHooks, step: Step, args: list[str], session: Reader) -> None:
        self._hooks = hooks
        self._step = step
        self._args = args
        self._session = session

    async def authenticate(
        self, mechanism: str, login: str, password: bytes, client: str
    ) -> Login | None:
        ending = await self._hooks.converse(self._step, self._args, self._session)
        return self._hooks.read(self._step, ending, mechanism)


class _Judged:
    """An authenticator that has the answer of `handle_AUTH` already."""

    def __init__(self, hooks: LoginHooks, step: Step, ending: Ending) -> None:
        self._hooks = hooks
        self._step = step
        self._ending = ending

    async def authenticate(
        self, mechanism: str, login: str, password: bytes, client: str
    ) -> Login | None:
        return self._hooks.read(self._step, self._ending, mechanism)
