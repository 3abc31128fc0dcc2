"""One session's questions to the hooks of its listener."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aiosmtpd.smtp import MISSING, Envelope

from smtpd.hooks.answer import BadAnswer, check_replies, check_reply
from smtpd.hooks.call import HookCall, HookTimeout
from smtpd.hooks.decisions import Decisions, check
from smtpd.hooks.hook_server import HookServer
from smtpd.hooks.phases import FAILED, Step
from smtpd.message.content_file import ContentFile

_KINDS = (("mail_options", list), ("rcpt_options", list), ("smtp_utf8", bool))
_NAMES = frozenset(vars(Envelope()))
_JUDGED = ("mail_from", "rcpt_tos", "content", "original_content")

type Answered = Callable[[str | None, Envelope], None]


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
        self._envelope = server.envelope  # a hook may put another one in its place
        self._saved = self._before = _Saved(server.envelope)
        self._call: HookCall | None = None

    def begin(self) -> None:
        """Ask the first step; `answered` is called later."""
        step, server = self._steps[self._index], self._server
        server.pushed = []
        if self._index:
            _mend(self._envelope)
            _rewind(self._envelope)
            self._before = _Saved(self._envelope)
        arguments = (server, server.session, self._envelope, *self._arguments)
        hook = step.hook
        self._call = hook.runner.call(step.method, hook.methods.rescue, arguments, self._came)

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
            except Exception as bad:  # the answer may be of a class of the hook's own
                error = bad
        late, reply = isinstance(error, HookTimeout), self._reply
        if error:
            hook = step.hook
            hook.failed(step.name, error, self._client)
            if hook.on_failure == "accept":
                self._forgive(late=late)
            else:
                self._reply = reply = FAILED[hook.on_failure]
        if (reply and reply[0] != "2") or self._index + 1 == len(self._steps):
            self._end(late=late)
        else:
            self._index += 1
            self.begin()

    def _forgive(self, *, late: bool) -> None:
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
        self._arguments = (self._arguments[0], reply.split("\r\n"))  # the next hook gets them
        return reply

    def _end(self, *, late: bool) -> None:
        envelope = self._envelope
        if late or (self._reply and self._reply[0] != "2"):
            envelope = self._saved.restore(envelope, new=late)
        _mend(envelope)
        self._answered(self._reply, envelope)


class _Saved:
    """The addresses, decisions and content of an envelope before it was given to a hook."""

    __slots__ = ("content", "decisions", "mail_from", "mail_options", "original", "rcpt_options",
                 "rcpt_tos", "utf8")  # fmt: skip

    def __init__(self, envelope: Envelope) -> None:
        self.mail_from = envelope.mail_from
        self.mail_options = envelope.mail_options[:]
        # without a transaction a hook may have left anything there
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


def _mend(envelope: Envelope) -> None:
    """Give back the attributes that a hook has taken away or set to something else."""
    has: dict[str, Any] = vars(envelope)
    if (
        has.keys() >= _NAMES
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
