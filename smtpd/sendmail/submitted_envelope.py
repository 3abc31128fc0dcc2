"""The envelope of a message: sender, recipients and the parameters of delivery (RFC 5321, 3461)."""

from __future__ import annotations


class SubmittedEnvelope:
    """The arguments of MAIL and RCPT; `sender` is empty for the null reverse-path.

    `notify` is NEVER, or a list of SUCCESS, FAILURE and DELAY; `ret` is FULL or HDRS. Both and
    `envid` are sent only to a server that offers DSN (RFC 3461). `body` is 7BIT or 8BITMIME; if it
    is empty, the content decides.
    """

    def __init__(
        self,
        sender: str = "",
        recipients: list[str] | None = None,
        notify: str = "",
        ret: str = "",
        envid: str = "",
        body: str = "",
    ) -> None:  # not by @dataclass, because its module takes long to import
        self.sender = sender
        self.recipients = recipients or []
        self.notify = notify
        self.ret = ret
        self.envid = envid
        self.body = body

    def only(self, recipients: list[str]) -> SubmittedEnvelope:
        """Return this envelope for some of its recipients."""
        return SubmittedEnvelope(**{**vars(self), "recipients": recipients})
