"""The hooks that are asked about a complete message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pgmta.mail.header import fields
from smtpd.hooks.asking import Asking
from smtpd.hooks.judgement import Judgement
from smtpd.hooks.phases import Phases, Step
from smtpd.message.content_file import ContentFile

type ContentReplied = Callable[[str, bytes | None], None]


class ContentHooks:
    """Asks `handle_HEADER`, then `handle_DATA`, and takes over what they changed."""

    def __init__(self, asking: Asking, judgement: Judgement, phases: Phases) -> None:
        self._asking = asking
        self._judgement = judgement
        self._header = phases.header
        self._content = phases.content

    def ask(self, header: bytes, content: bytes | ContentFile, answered: ContentReplied) -> None:
        """Ask the hooks about a complete message.

        `answered` gets the reply of a refusal, the hook's 250 or nothing; and the content that a
        hook put in place of this one, or None. It is called later.
        """

        def came(answer: str | None) -> None:
            problem = self._problem(self._header, answer)
            if problem:
                answered(problem, None)
            elif self._content:
                self._ask_content(content, answered)
            else:
                answered("", None)

        if self._header:
            self._asking.consult(self._header, (fields(header),), came)
        else:
            self._ask_content(content, answered)

    def _ask_content(self, content: bytes | ContentFile, answered: ContentReplied) -> None:
        transaction = self._asking.commands.transaction
        assert transaction  # noqa: S101 - DATA has seen one
        envelope: Any = transaction.envelope
        envelope.content = envelope.original_content = content

        def came(answer: str | None) -> None:
            envelope: Any = transaction.envelope
            changed = envelope.content
            envelope.content = envelope.original_content = None
            if isinstance(changed, ContentFile):
                changed = content
            problem = self._problem(self._content, answer)
            if not (problem or changed is content or isinstance(changed, bytes | bytearray)):
                reason = f"content is of type {type(changed).__name__}, not bytes"
                problem = self._asking.failed(self._content, reason)
            if problem:
                answered(problem, None)
                return
            reply = answer if answer and answer[:3] == "250" else ""
            same = changed is content or changed == content
            answered(reply, None if same else bytes(changed))

        self._asking.consult(self._content, (), came)

    def _problem(self, steps: tuple[Step, ...], answer: str | None) -> str:
        """Return the reply of a refusal, or nothing."""
        if answer and answer[0] != "2":
            return answer
        transaction = self._asking.commands.transaction
        assert transaction  # noqa: S101 - the message is under way
        problem = self._judgement.problem(transaction)
        if not (problem or transaction.recipients):
            problem = "no recipient is left"
        return self._asking.failed(steps, problem) if problem else ""
