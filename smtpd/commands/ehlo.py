"""The reply to EHLO: the keywords that a listener announces (RFC 5321, section 4.1.1.1)."""

from __future__ import annotations

from collections.abc import Sequence

from smtpd.config import Listener, SmtpdConfig
from smtpd.protocol.xclient import XCLIENT_LINE as XCLIENT

_MAX_ANNOUNCED_RECIPIENTS = 999_999  # the limit RCPTMAX has six digits (RFC 9422, section 4)


class EhloReply:
    """Has the replies of one listener, whose mechanisms of AUTH are `mechanisms`."""

    def __init__(
        self, config: SmtpdConfig, listener: Listener, *, starttls: bool, mechanisms: Sequence[str]
    ) -> None:
        self._config = config
        self._chunking = listener.protocol == "smtp"
        self._priorities = listener.role == "submission"
        self._starttls = starttls
        self._auth_without_tls = listener.auth_without_tls
        self._mechanisms = " ".join(mechanisms)
        self._replies: dict[tuple[bool, bool, bool], str] = {}

    def lines(self, *, tls: bool, login: bool, xclient: bool = False) -> str:
        """Return all lines of the reply, under TLS or not, to a user who has logged in or not.

        A proxy may use XCLIENT.
        """
        reply = self._replies.get((tls, login, xclient))
        if reply is None:
            lines = [self._config.environment.hostname, *self._keywords(tls=tls, login=login)]
            if xclient:
                lines.insert(1, XCLIENT)
            reply = "\r\n".join([*(f"250-{line}" for line in lines[:-1]), f"250 {lines[-1]}"])
            self._replies[tls, login, xclient] = reply
        return reply

    def _keywords(self, *, tls: bool, login: bool) -> list[str]:
        limits = self._config.limits
        words = [f"SIZE {limits.message_size}", "8BITMIME", "SMTPUTF8", "PIPELINING"]
        if self._chunking:
            words.append("CHUNKING")
        words.append(f"LIMITS RCPTMAX={min(limits.recipients, _MAX_ANNOUNCED_RECIPIENTS)}")
        if self._starttls and not tls:
            words.append("STARTTLS")
        if self._mechanisms and not login and (tls or self._auth_without_tls):
            words.append(f"AUTH {self._mechanisms}")
        if tls:
            words.append("REQUIRETLS")  # only under TLS (RFC 8689, section 2)
        if self._config.dsn:
            words.append("DSN")
        if self._priorities:
            words.append("MT-PRIORITY")
        return [*words, "ENHANCEDSTATUSCODES"]
