"""The replies to EHLO of one listener: what smtpd can do for a session (RFC 5321, 4.1.1.1)."""

from __future__ import annotations

from collections.abc import Sequence

from smtpd.config import SmtpdConfig
from smtpd.protocol.xclient import KEYWORD as XCLIENT

_MOST = 999_999  # that a limit can say (RFC 9422, section 4)


class Announcement:
    """Composes the reply for each state of a session once."""

    def __init__(
        self,
        config: SmtpdConfig,
        *,
        role: str,
        chunking: bool,
        starttls: bool,
        mechanisms: Sequence[str],
        auth_without_tls: bool,
    ) -> None:
        self._hostname = config.environment.hostname
        self._limits = config.limits
        self._dsn = config.dsn
        self._chunking = ["CHUNKING"] if chunking else []
        self._priorities = role == "submission"
        self.starttls = starttls
        """Whether there is STARTTLS."""
        self._mechanisms = " ".join(mechanisms)
        self._auth_without_tls = auth_without_tls
        self._replies: dict[tuple[bool, bool, bool], str] = {}
        self.helo = f"250 {self._hostname}"
        """The reply to HELO."""

    def ehlo(self, *, tls: bool, login: bool, xclient: bool = False) -> str:
        """Return all lines of the reply, under TLS or not, to a user who has logged in or not.

        A proxy may use XCLIENT.
        """
        reply = self._replies.get((tls, login, xclient))
        if reply is None:
            lines = [self._hostname, *self._keywords(tls=tls, login=login)]
            if xclient:
                lines.insert(1, XCLIENT)
            reply = "\r\n".join([*(f"250-{line}" for line in lines[:-1]), f"250 {lines[-1]}"])
            self._replies[tls, login, xclient] = reply
        return reply

    def _keywords(self, *, tls: bool, login: bool) -> list[str]:
        words = [
            f"SIZE {self._limits.message_size}",
            "8BITMIME",
            "SMTPUTF8",
            "PIPELINING",
            *self._chunking,
            f"LIMITS RCPTMAX={min(self._limits.recipients, _MOST)}",
        ]
        if self.starttls and not tls:
            words.append("STARTTLS")
        if self._mechanisms and not login and (tls or self._auth_without_tls):
            words.append(f"AUTH {self._mechanisms}")
        if tls:
            words.append("REQUIRETLS")  # RFC 8689, section 2: only under TLS
        if self._dsn:
            words.append("DSN")
        if self._priorities:
            words.append("MT-PRIORITY")
        return [*words, "ENHANCEDSTATUSCODES"]
