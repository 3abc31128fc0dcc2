"""How one session asks hooks: one consultation at a time, and its envelope."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from aiosmtpd.smtp import MISSING, Envelope, LoginPassword

from pgmta.accounts.login import Login
from smtpd.commands.commands import Commands
from smtpd.hooks.answer import BadAnswer, check_replies, check_reply
from smtpd.hooks.call import HookCall, HookTimeout
from smtpd.hooks.decisions import Decisions, check
from smtpd.hooks.hook_server import HookServer
from smtpd.hooks.judgement import Judgement
from smtpd.hooks.phases import FAILED, Step
from smtpd.message.content_file import ContentFile

_GATHERING_S = 0.5  # in which replies wait, so that they leave in one write
NULL = "<>"
"""aiosmtpd's word for the null reverse-path."""
_KINDS = (("mail_options", list), ("rcpt_options", list), ("smtp_utf8", bool))
_ENVELOPE_NAMES = frozenset(vars(Envelope()))  # attributes of aiosmtpd's envelope
_JUDGED = ("mail_from", "rcpt_tos", "content", "original_content")

type Answered = Callable[[str | None, Envelope], None]


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
        self._looking: asyncio.Task[None] | None = None  # looks for recipients that have come
        # since when replies wait, by the clock of the sessions' loop; 0: none
        self._waiting_since = 0.0

    @property
    def client(self) -> str:
        """The address of the client."""
        peer: Any = self.commands.session.peer
        return str(peer[0]) if peer else ""

    def abandon(self) -> None:
        """Cancel the hook that is being asked: the session has ended."""
        self.server.ask = None  # so that a challenge under way reaches no client
        if self._consultation:
            self._consultation.abandon()
            self._consultation = None
        if self._looking:
            self._looking.cancel()
            self._looking = None

    def holds_replies(self, now: float) -> bool:
        """Return whether earlier replies of a pipelined group may wait for that of the hook.

        They leave in one write then, but wait for at most `_GATHERING_S` and one hook more.
        """
        if self._consultation and now < (self._waiting_since or now) + _GATHERING_S:
            self._waiting_since = self._waiting_since or now
            return True
        self._waiting_since = 0.0
        return False

    def forget_envelope(self) -> None:
        """Forget what hooks noted while there was no transaction."""
        self.idle = Envelope()

    def tell(self, steps: tuple[Step, ...]) -> None:
        """Call steps, and do not wait for an answer."""
        arguments = (self.server, self.commands.session, self.envelope())
        for step in steps:
            step.tell(arguments, self.client)

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
        self._consultation.ask_next()

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
        if len(notes) > len(_ENVELOPE_NAMES):
            vars(transaction.envelope).update(
                {name: note for name, note in notes.items() if name not in _ENVELOPE_NAMES}
            )
            self.forget_envelope()
        if transaction.envelope.mail_from == "":
            transaction.envelope.mail_from = NULL
        vars(transaction.envelope).setdefault("pgmta", Decisions())
        return transaction.envelope

    def failed(self, steps: tuple[Step, ...], problem: str) -> str:
        """Log a wrong change of the envelope as a failure of the last hook; return the reply."""
        hook = steps[-1].hook
        hook.failed(steps[-1].name, BadAnswer(problem), self.client)
        return FAILED[hook.on_failure]


class Consultation:
    """Asks the steps of a command in their order; the first reply that is no 2xx ends it.

    `answered` gets the reply and the envelope that counts from then on. The reply is that of the
    last step which did not return MISSING, None if all did. After a refusal the envelope has its
    former addresses. A late hook may still write into it, so a new one takes its place. A hook that
    fails counts as `on_failure` says.
    """

    __slots__ = ("_answered", "_arguments", "_before", "_call", "_client", "_envelope", "_index",
                 "_reply", "_saved", "_server", "_steps")  # fmt: skip

    def __init__(
        self,
        steps: Sequence[Step],
        server: HookServer,
        client: str,
        arguments: tuple[Any, ...],
        answered: Answered,
    ) -> None:
        self._steps = steps
        self._server = server
        self._client = client
        self._arguments = arguments
        self._answered = answered
        self._index = 0
        self._reply: str | None = None
        self._envelope = server.envelope  # a hook may replace the envelope of the server
        self._saved = self._before = _Saved(server.envelope)
        self._call: HookCall | None = None

    def ask_next(self) -> None:
        """Ask the first step; `answered` is called later."""
        step, server = self._steps[self._index], self._server
        server.pushed = []
        if self._index:
            _restore_attributes(self._envelope)
            _rewind(self._envelope)
            self._before = _Saved(self._envelope)
        arguments = (server, server.session, self._envelope, *self._arguments)
        self._call = step.call(arguments, self._came)

    def abandon(self) -> None:
        """Cancel what runs: the session has ended."""
        if self._call:
            self._call.abandon()
            self._call = None

    def _came(self, answer: Any, error: BaseException | None) -> None:
        self._call = None
        step = self._steps[self._index]
        if not error:
            try:
                given = None if answer is MISSING else self._check(step, answer)
                if not given or given[0] == "2":
                    check(getattr(self._envelope, "pgmta", None))
                self._reply = given or self._reply
            except Exception as bad:  # the answer may be of a class of the hook
                error = bad
        late, reply = isinstance(error, HookTimeout), self._reply
        if error:
            hook = step.hook
            hook.failed(step.name, error, self._client)
            if hook.on_failure == "accept":
                self._treat_as_missing(late=late)
            else:
                self._reply = reply = FAILED[hook.on_failure]
        if (reply and reply[0] != "2") or self._index + 1 == len(self._steps):
            self._end(late=late)
        else:
            self._index += 1
            self.ask_next()

    def _treat_as_missing(self, *, late: bool) -> None:
        """Go on as if the step had returned MISSING."""
        self._server.pushed = []
        self._envelope = self._before.restore(self._envelope, new=late)
        self._before.restore_content(self._envelope)
        self._server.envelope = self._envelope

    def _check(self, step: Step, answer: Any) -> str:
        pushed = self._server.pushed
        if not isinstance(pushed, list):
            raise BadAnswer(f"set server.pushed to {type(pushed).__name__}, not a list")
        if step.name != "handle_EHLO":
            return check_reply(answer, pushed)
        reply = check_replies(answer, pushed)
        # the next hook gets the changed lines
        self._arguments = (self._arguments[0], reply.split("\r\n"))
        return reply

    def _end(self, *, late: bool) -> None:
        envelope = self._envelope
        if late or (self._reply and self._reply[0] != "2"):
            envelope = self._saved.restore(envelope, new=late)
        _restore_attributes(envelope)
        self._answered(self._reply, envelope)


class _Saved:
    """The addresses, decisions and content of an envelope before it was given to a hook."""

    __slots__ = ("content", "decisions", "mail_from", "mail_options", "original", "rcpt_options",
                 "rcpt_tos", "utf8")  # fmt: skip

    def __init__(self, envelope: Envelope) -> None:
        self.mail_from = envelope.mail_from
        self.mail_options = envelope.mail_options[:]
        # a hook may have left anything in the envelope, although there is no transaction
        self.rcpt_tos = list(envelope.rcpt_tos) if isinstance(envelope.rcpt_tos, list) else []
        self.rcpt_options = envelope.rcpt_options[:]
        self.utf8 = envelope.smtp_utf8
        self.content, self.original = envelope.content, envelope.original_content
        decisions = getattr(envelope, "pgmta", None)
        self.decisions = decisions.copy() if decisions and type(decisions) is Decisions else None

    def restore(self, envelope: Envelope, *, new: bool) -> Envelope:
        """Return the addresses as they were; in a `new` envelope if a hook may still write."""
        if new:
            envelope = Envelope()
        envelope.mail_from = self.mail_from
        envelope.mail_options = self.mail_options[:]  # the hook may be called again
        envelope.rcpt_tos = self.rcpt_tos[:]
        envelope.rcpt_options = self.rcpt_options[:]
        envelope.smtp_utf8 = self.utf8
        vars(envelope)["pgmta"] = self.decisions.copy() if self.decisions else Decisions()
        return envelope

    def restore_content(self, envelope: Envelope) -> None:
        """Put the content back."""
        envelope.content, envelope.original_content = self.content, self.original
        _rewind(envelope)


def _rewind(envelope: Any) -> None:
    """Have the next hook read content in a file from its start."""
    content = envelope.content
    if isinstance(content, ContentFile):
        envelope.content = envelope.original_content = content.again()


def _restore_attributes(envelope: Envelope) -> None:
    """Give back the attributes that a hook has taken away or set to something else."""
    has: dict[str, Any] = vars(envelope)
    if (
        has.keys() >= _ENVELOPE_NAMES
        and type(has["mail_options"]) is list
        and type(has["rcpt_options"]) is list
        and type(has["smtp_utf8"]) is bool
    ):
        return
    for name, kind in _KINDS:
        if not isinstance(has.get(name), kind):
            has[name] = kind()
    for name in _JUDGED:
        has.setdefault(name, None)
