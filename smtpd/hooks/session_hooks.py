"""The hooks of a listener, as one session asks them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from pgmta.mail.header import fields
from smtpd.commands.commands import Commands
from smtpd.hooks.asking import NULL, Asking
from smtpd.hooks.hook_server import HookServer
from smtpd.hooks.judgement import Judgement
from smtpd.hooks.login_hooks import LoginHooks
from smtpd.hooks.phases import HookError, Phases, Step
from smtpd.message.content_file import ContentFile
from smtpd.protocol import replies
from smtpd.protocol.transaction import Transaction
from smtpd.tls.tls_facts import TlsFacts

type Replied = Callable[[str], None]
type ContentReplied = Callable[[str, bytes | None], None]


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
        self._phases = phases
        self.words = phases.commands
        """Commands that hooks are asked about."""
        self.whole = bool(phases.content)
        """Whether a hook gets the content."""
        self.judges_content = bool(phases.content or phases.header)
        """Whether `ask_about_content` is for the end of data."""
        self._commands = commands
        self._judgement = judgement
        self._asking = Asking(commands, server, judgement, fail)
        self._began = False  # whether hooks may know of the session
        self.logins = LoginHooks(phases.auth, self._asking) if phases.auth else None
        """Those that log users in, if there are any."""
        self.holds_replies = self._asking.holds_replies

    def abandon(self) -> None:
        """Cancel the hook that is being asked: the session has ended."""
        self._asking.abandon()
        began, self._began = self._began, False
        if began and self._phases.disconnect:
            self._asking.tell(self._phases.disconnect)

    def connect(self, answered: Replied) -> bool:
        """Ask the hooks before the greeting; return False if there are none.

        `answered` gets their reply later, or nothing if they leave the greeting to smtpd.
        """
        self._began = True
        if not self._phases.connect:
            return False
        self._asking.consult(self._phases.connect, (), lambda answer: answered(answer or ""))
        return True

    def secured(self, facts: TlsFacts) -> None:
        """Note the TLS of the session; forget what came before it (RFC 3207, section 4.2)."""
        self._asking.forget_envelope()
        transport, session = self._asking.server.transport, cast(Any, self._commands.session)
        transport.read_extra_info()
        session.ssl = {
            "peercert": transport.get_extra_info("peercert"),
            "cipher": transport.get_extra_info("cipher") or (facts.cipher, facts.version, 0),
            "compression": transport.get_extra_info("compression"),
        }
        session.authenticated = session.auth_data = None

    async def admit_tls(self) -> bool:
        """Ask the hooks after a TLS handshake; return whether the session may go on."""
        asking = self._asking
        for step in self._phases.starttls:
            asking.server.envelope = asking.envelope()
            arguments = (asking.server, self._commands.session, asking.server.envelope)
            try:
                answer, _ = await step.ask(arguments, rescue=False)
            except HookError as error:
                step.hook.failed(step.name, error.inner, asking.client)
                if step.hook.on_failure == "accept":
                    continue
                return False
            if not _true(answer):
                return False
        return True

    def ask_about_command(self, word: bytes, argument: str, answered: Replied) -> str:
        """Do a command and ask its hooks; return the reply, or nothing: `answered` gets it later.

        The reply is there at once if smtpd itself refuses the command.
        """
        commands, session = self._commands, self._commands.session
        name, transaction = session.host_name, commands.transaction
        known = len(transaction.recipients) if transaction else 0
        reply = commands.do_command(word, argument)
        if reply[0] != "2":
            return reply
        arguments: tuple[Any, ...] = ()
        finish: Callable[[str, str | None], str] = partial(self._keep, word)
        if word == b"RCPT" and transaction:
            added = len(transaction.recipients) > known
            mailbox = transaction.envelope.rcpt_tos.pop() if added else ""
            path = commands.path
            arguments = (path, list(commands.options))
            finish = partial(self._recipient, transaction, path, mailbox)
        elif word == b"MAIL" and commands.transaction:
            envelope = commands.transaction.envelope
            sender, options = envelope.mail_from, envelope.mail_options
            envelope.mail_from, envelope.mail_options = None, []
            arguments = (commands.path or NULL, list(options))
            finish = partial(self._sender, sender, options)
        elif word in (b"HELO", b"EHLO"):
            session.host_name = name
            self._asking.forget_envelope()
            arguments = (argument, reply.split("\r\n")) if word == b"EHLO" else (argument,)
            finish = partial(self._name, argument)
        elif word == b"VRFY":
            arguments = (argument.removeprefix("<").removesuffix(">"),)
        elif word == b"NOOP":
            arguments = (argument or None,)
        elif word == b"RSET":
            self._asking.forget_envelope()

        def came(answer: str | None) -> None:
            answered(finish(reply, answer))

        self._asking.consult(self.words[word], arguments, came)
        return ""

    # -- what follows from an answer; each returns the reply --

    def _keep(self, word: bytes, default: str, answer: str | None) -> str:
        transaction = self._commands.transaction
        if transaction and (problem := self._judgement.problem(transaction)):
            return self._asking.failed(self.words[word], problem)
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
            commands.end_transaction()
            return answer
        problem = self._judgement.problem(transaction)
        if problem:
            commands.end_transaction()
            return self._asking.failed(self.words[b"MAIL"], problem)
        return answer or default

    def _recipient(
        self, transaction: Transaction, path: str, mailbox: str, default: str, answer: str | None
    ) -> str:
        """Take over the recipient; `mailbox` is empty for one that is there already."""
        silent = answer is None and bool(mailbox)
        if silent and not self._judgement.handler.admits(transaction, path, mailbox):
            answer = replies.RELAY_DENIED  # `relay: hook`, and no hook has accepted it
        recipients: Any = transaction.envelope.rcpt_tos
        if not isinstance(recipients, list):
            recipients = []  # the judgement of the envelope reports it
        elif answer is None and mailbox:
            recipients.append(mailbox)
        elif answer and answer[0] == "2" and recipients[-1:] == [path]:
            recipients[-1:] = [mailbox] if mailbox else []
        key, replaced = ("", ""), ""
        if mailbox and recipients[-1:] != [mailbox]:
            key, replaced = transaction.take_last()
        problem = self._judgement.problem(transaction, replaced)
        if replaced and transaction.dsn and key not in transaction.recipients:
            # the client may send the recipient again without parameters
            transaction.dsn.pop(key, None)
        if problem:
            return self._asking.failed(self.words[b"RCPT"], problem)
        return answer or default

    # -- the end of data --

    def ask_about_content(
        self, header: bytes, content: bytes | ContentFile, answered: ContentReplied
    ) -> None:
        """Ask `handle_HEADER`, then `handle_DATA` about a complete message.

        `answered` gets the reply of a refusal, the hook's 250 or nothing; and the content that a
        hook put in place of this one, or None. It is called later.
        """
        steps = self._phases.header

        def came(answer: str | None) -> None:
            problem = self._objection(steps, answer)
            if problem:
                answered(problem, None)
            elif self.whole:
                self._ask_about_body(content, answered)
            else:
                answered("", None)

        if steps:
            self._asking.consult(steps, (fields(header),), came)
        else:
            self._ask_about_body(content, answered)

    def _ask_about_body(self, content: bytes | ContentFile, answered: ContentReplied) -> None:
        steps, transaction = self._phases.content, self._commands.transaction
        assert transaction  # noqa: S101 - DATA has seen one
        envelope: Any = transaction.envelope
        envelope.content = envelope.original_content = content

        def came(answer: str | None) -> None:
            envelope: Any = transaction.envelope
            changed = envelope.content
            envelope.content = envelope.original_content = None
            if isinstance(changed, ContentFile):
                changed = content
            problem = self._objection(steps, answer)
            if not (problem or changed is content or isinstance(changed, bytes | bytearray)):
                reason = f"content is of type {type(changed).__name__}, not bytes"
                problem = self._asking.failed(steps, reason)
            if problem:
                answered(problem, None)
                return
            reply = answer if answer and answer[:3] == "250" else ""
            same = changed is content or changed == content
            answered(reply, None if same else bytes(changed))

        self._asking.consult(steps, (), came)

    def _objection(self, steps: tuple[Step, ...], answer: str | None) -> str:
        """Return the reply of a refusal of the message, or nothing."""
        if answer and answer[0] != "2":
            return answer
        transaction = self._commands.transaction
        assert transaction  # noqa: S101 - the message is under way
        problem = self._judgement.problem(transaction)
        if not (problem or transaction.recipients):
            problem = "no recipient is left"
        return self._asking.failed(steps, problem) if problem else ""


def _true(answer: Any) -> bool:
    try:
        return bool(answer)
    except Exception:  # the object may be of a class of the hook
        return False
