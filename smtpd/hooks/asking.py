"""How one session asks hooks: one consultation at a time, and its envelope."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from aiosmtpd.smtp import Envelope, LoginPassword

from pgmta.accounts.login import Login
from smtpd.commands.commands import Commands
from smtpd.hooks.answer import BadAnswer
from smtpd.hooks.consultation import Consultation
from smtpd.hooks.decisions import Decisions
from smtpd.hooks.hook_server import HookServer
from smtpd.hooks.judgement import Judgement
from smtpd.hooks.phases import FAILED, Step

_TOGETHER = 0.5  # seconds that replies wait, so that they leave in one write
NULL = "<>"
"""aiosmtpd's word for the null reverse-path."""
_STANDARD = frozenset(vars(Envelope()))


class Asking:
    """Asks the steps of one command, and takes over the envelope that they leave."""

    def __init__(
        self,
        commands: Commands,
        server: HookServer,
        judgement: Judgement,
        fail: Callable[[Exception], None],
    ) -> None:
        self.commands = commands
        self.server = server
        self._judgement = judgement
        self.fail = fail
        """Ends the session after an error of this program."""
        self.idle = Envelope()
        """The envelope that hooks get while there is no transaction."""
        self._consultation: Consultation | None = None
        self._looking: asyncio.Task[None] | None = None  # after new recipients
        self._waiting_since = 0.0  # of replies, by the clock of the sessions' loop; 0: none waits

    @property
    def client(self) -> str:
        """The address of the client."""
        peer: Any = self.commands.session.peer
        return str(peer[0]) if peer else ""

    @property
    def under_way(self) -> bool:
        """Whether a hook is being asked."""
        return self._consultation is not None or self._looking is not None

    def abandon(self) -> None:
        """Cancel the hook that is being asked: the session has ended."""
        if self._consultation:
            self._consultation.abandon()
            self._consultation = None
        if self._looking:
            self._looking.cancel()
            self._looking = None

    def holds_replies(self, now: float) -> bool:
        """Return whether earlier replies of a pipelined group may wait for that of the hook.

        They leave in one write then, but wait for at most `_TOGETHER` seconds and one hook more.
        """
        if self._consultation and now < (self._waiting_since or now) + _TOGETHER:
            self._waiting_since = self._waiting_since or now
            return True
        self._waiting_since = 0.0
        return False

    def consult(
        self,
        steps: tuple[Step, ...],
        arguments: tuple[Any, ...],
        came: Callable[[str | None], None],
    ) -> None:
        """Ask the steps; `came` gets the reply, or None if all leave the command to smtpd."""
        self.server.envelope = self.envelope()
        if self.commands.login:
            self._show(self.commands.login)

        def answered(answer: str | None, envelope: Envelope) -> None:
            self._consultation = None
            transaction, session = self.commands.transaction, self.commands.session
            if not isinstance(session.host_name, str):
                session.host_name = None
            if not transaction:
                self.idle = envelope
            else:
                transaction.set_envelope(envelope)
            self.attempt(partial(self._go_on, came), answer)

        self._consultation = Consultation(steps, self.server, self.client, arguments, answered)
        self._consultation.begin()

    def _go_on(self, came: Callable[[str | None], None], answer: str | None) -> None:
        """Give the answer on, after a look for recipients that hooks have added."""
        transaction = self.commands.transaction
        accepted = not answer or answer[0] == "2"
        if transaction and accepted and (unseen := self._judgement.unseen(transaction)):
            self._looking = asyncio.create_task(self._look_up(unseen, came, answer))
        else:
            came(answer)

    async def _look_up(
        self, unseen: list[tuple[str, str]], came: Callable[[str | None], None], answer: str | None
    ) -> None:
        """Go on with the answer once it is known whether there are these recipients."""
        try:
            await self._judgement.look_up(unseen)
        except Exception as error:
            self._looking = None
            self.fail(error)
            return
        self._looking = None
        self.attempt(came, answer)

    def _show(self, login: Login) -> None:
        """Show hooks a user whom the table of users has let in."""
        session: Any = self.commands.session
        if session.authenticated is not True:
            session.authenticated = True
            session.auth_data = LoginPassword(login.user.encode(), b"")

    def attempt(self, came: Callable[[str | None], None], answer: str | None) -> None:
        """Go on with the answer; an error ends this session alone."""
        try:
            came(answer)
        except Exception as error:
            self.fail(error)

    def envelope(self) -> Envelope:
        """Return the envelope that hooks get, with what they noted in it before MAIL."""
        transaction, idle = self.commands.transaction, self.idle
        if not transaction:
            vars(idle).setdefault("pgmta", Decisions())
            return idle
        notes = vars(idle)
        if len(notes) > len(_STANDARD):
            vars(transaction.envelope).update(
                {name: note for name, note in notes.items() if name not in _STANDARD}
            )
            self.idle = Envelope()
        if transaction.envelope.mail_from == "":
            transaction.envelope.mail_from = NULL
        vars(transaction.envelope).setdefault("pgmta", Decisions())
        return transaction.envelope

    def failed(self, steps: tuple[Step, ...], problem: str) -> str:
        """Log a wrong change of the envelope as a failure of the last hook; return the reply."""
        hook = steps[-1].hook
        hook.failed(steps[-1].name, BadAnswer(problem), self.client)
        return FAILED[hook.on_failure]
