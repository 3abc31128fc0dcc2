"""The hooks of a listener, as one session asks them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from aiosmtpd.smtp import Envelope

from smtpd.commands import Commands
from smtpd.hooks.consultation import FAILED, Consultation
from smtpd.hooks.judgement import Judgement
from smtpd.hooks.phases import Phases, Step
from smtpd.hooks.reply import BadAnswer
from smtpd.hooks.server import HookServer
from smtpd.transaction import Transaction

type Replied = Callable[[str], None]
type ContentReplied = Callable[[str, bytes | None], None]

_TOGETHER = 0.5  # seconds that replies wait, so that they leave in one write
_NULL = "<>"  # aiosmtpd's word for the null reverse-path
_STANDARD = frozenset(vars(Envelope()))


class SessionHooks:
    """Asks the hooks about what smtpd itself has accepted, and takes over what they changed.

    smtpd does a command first, so that its syntax and policy come before every hook. Then its
    effect on session and envelope is taken back, and the hooks are asked. The envelope is judged as
    they leave it. If all of them leave the command to the default, its effect is put back.
    """

    def __init__(
        self,
        phases: Phases,
        commands: Commands,
        judgement: Judgement,
        server: HookServer,
        fail: Callable[[Exception], None],
    ) -> None:
        self.words = phases.commands
        """Commands that hooks are asked about."""
        self.content_steps = phases.content
        """Steps that are asked at the end of data, if any."""
        self._commands = commands
        self._judgement = judgement
        self._server = server
        self._fail = fail
        self._client = str(commands.session.peer[0]) if commands.session.peer else ""
        self._idle = Envelope()  # what hooks get while there is no transaction
        self._consultation: Consultation | None = None
        self._asking = False  # an answer that comes now is returned, not called back
        self._reply = ""  # that answer
        self._waiting_since = 0.0  # of replies, by the clock of the sessions' loop; 0: none waits

    def abandon(self) -> None:
        """Cancel the hook that is being asked: the session has ended."""
        if self._consultation:
            self._consultation.abandon()
            self._consultation = None

    def holds_replies(self, now: float) -> bool:
        """Return whether earlier replies of a pipelined group may wait for that of the hook.

        They leave in one write then, but wait for at most `_TOGETHER` seconds and one hook more.
        """
        if self._consultation and now < (self._waiting_since or now) + _TOGETHER:
            self._waiting_since = self._waiting_since or now
            return True
        self._waiting_since = 0.0
        return False

    def ask(self, word: bytes, argument: str, answered: Replied) -> str:
        """Do a command and ask its hooks; return the reply, or nothing: `answered` gets it later.

        The reply is there at once if smtpd itself refuses the command, and after direct calls.
        """
        commands, session = self._commands, self._commands.session
        name, transaction = session.host_name, commands.transaction
        known = len(transaction.recipients) if transaction else 0
        reply = commands.do(word, argument)
        if reply[0] != "2":
            return reply
        arguments: tuple[Any, ...] = ()
        finish: Callable[[str, str | None], str] = partial(self._keep, word)
        if word == b"RCPT" and transaction:
            added = len(transaction.recipients) > known
            mailbox = transaction.envelope.rcpt_tos.pop() if added else ""
            path = commands.path
            arguments = (path, [])
            finish = partial(self._recipient, transaction, path, mailbox)
        elif word == b"MAIL" and commands.transaction:
            envelope = commands.transaction.envelope
            sender, options = envelope.mail_from, envelope.mail_options
            envelope.mail_from, envelope.mail_options = None, []
            arguments = (commands.path or _NULL, list(options))
            finish = partial(self._sender, sender, options)
        elif word in (b"HELO", b"EHLO"):
            session.host_name, self._idle = name, Envelope()
            arguments = (argument, reply.split("\r\n")) if word == b"EHLO" else (argument,)
            finish = partial(self._name, argument)
        elif word == b"VRFY":
            arguments = (argument.removeprefix("<").removesuffix(">"),)
        elif word == b"NOOP":
            arguments = (argument or None,)
        elif word == b"RSET":
            self._idle = Envelope()

        def came(answer: str | None) -> None:
            text = finish(reply, answer)
            if self._asking:
                self._reply = text
            else:
                answered(text)

        self._reply = ""
        self._consult(self.words[word], arguments, came)
        return self._reply

    def ask_content(self, content: bytes, answered: ContentReplied) -> None:
        """Ask the hooks about a complete message.

        `answered` gets the reply of a refusal, the hook's 250 or nothing; and the content that a
        hook put in place of this one, or None. It is called later.
        """
        transaction = self._commands.transaction
        assert transaction  # noqa: S101 - DATA has seen one
        envelope = transaction.envelope
        envelope.content = envelope.original_content = content

        def came(answer: str | None) -> None:
            changed: Any = transaction.envelope.content
            transaction.envelope.content = transaction.envelope.original_content = None
            if answer and answer[0] != "2":
                answered(answer, None)
                return
            problem = self._judgement.problem(transaction)
            if not (problem or isinstance(changed, bytes | bytearray)):
                problem = f"content is of type {type(changed).__name__}, not bytes"
            if not (problem or transaction.recipients):
                problem = "no recipient is left"
            if problem:
                answered(self._failed(self.content_steps, problem), None)
                return
            reply = answer if answer and answer[:3] == "250" else ""
            answered(reply, bytes(changed) if changed != content else None)

        def came_later(answer: str | None) -> None:
            if self._asking:  # the session has not finished the command yet
                asyncio.get_running_loop().call_soon(self._try, came, answer)
            else:
                came(answer)

        self._consult(self.content_steps, (), came_later)

    def _consult(
        self,
        steps: tuple[Step, ...],
        arguments: tuple[Any, ...],
        came: Callable[[str | None], None],
    ) -> None:
        self._server.envelope = self._envelope()

        def answered(answer: str | None, envelope: Envelope) -> None:
            self._consultation = None
            transaction, session = self._commands.transaction, self._commands.session
            if not isinstance(session.host_name, str):
                session.host_name = None
            if not transaction:
                self._idle = envelope
            else:
                transaction.envelope = envelope
            self._try(came, answer)

        self._consultation = Consultation(steps, self._server, self._client, arguments, answered)
        self._asking = True
        try:
            self._consultation.begin()
        finally:
            self._asking = False

    def _try(self, came: Callable[[str | None], None], answer: str | None) -> None:
        try:
            came(answer)
        except Exception as error:  # of this session alone
            self._fail(error)

    def _envelope(self) -> Envelope:
        """Return the envelope that hooks get, with what they noted in it before MAIL."""
        transaction = self._commands.transaction
        if not transaction:
            return self._idle
        notes = vars(self._idle)
        if len(notes) > len(_STANDARD):
            vars(transaction.envelope).update(
                {name: note for name, note in notes.items() if name not in _STANDARD}
            )
            self._idle = Envelope()
        if transaction.envelope.mail_from == "":
            transaction.envelope.mail_from = _NULL
        return transaction.envelope

    # -- what follows from an answer; each returns the reply --

    def _keep(self, word: bytes, default: str, answer: str | None) -> str:
        transaction = self._commands.transaction
        if transaction and (problem := self._judgement.problem(transaction)):
            return self._failed(self.words[word], problem)
        return answer or default

    def _name(self, name: str, default: str, answer: str | None) -> str:
        session = self._commands.session
        if answer is None:
            session.host_name = name
        return answer or default

    def _sender(
        self, sender: str | None, options: list[str], default: str, answer: str | None
    ) -> str:
        commands = self._commands
        transaction = commands.transaction
        if not transaction:
            return answer or default
        envelope = transaction.envelope
        if answer is None:
            envelope.mail_from, envelope.mail_options = sender, options
        elif answer[0] != "2" or envelope.mail_from is None:
            commands.transaction = None
            return answer
        problem = self._judgement.problem(transaction)
        if problem:
            commands.transaction = None
            return self._failed(self.words[b"MAIL"], problem)
        return answer or default

    def _recipient(
        self, transaction: Transaction, path: str, mailbox: str, default: str, answer: str | None
    ) -> str:
        """Take over the recipient; `mailbox` is empty for one that is there already."""
        recipients: Any = transaction.envelope.rcpt_tos
        if not isinstance(recipients, list):
            recipients = []  # the judgement says so
        elif answer is None and mailbox:
            recipients.append(mailbox)
        elif answer and answer[0] == "2" and recipients[-1:] == [path]:
            recipients[-1:] = [mailbox] if mailbox else []
        if mailbox and recipients[-1:] != [mailbox]:
            key, _ = transaction.recipients.popitem()
            if transaction.held and key in transaction.held:
                transaction.held.remove(key)
        problem = self._judgement.problem(transaction)
        if problem:
            return self._failed(self.words[b"RCPT"], problem)
        return answer or default

    def _failed(self, steps: tuple[Step, ...], problem: str) -> str:
        """Log a wrong change of the envelope as a failure of the last hook."""
        steps[-1].hook.failed(steps[-1].name, BadAnswer(problem), self._client)
        return FAILED
