"""One listener, for all of its sessions: its options, and the replies to EHLO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pgmta.accounts.networks import Networks
from smtpd.commands.parameters import Parameters
from smtpd.config import ROLES, Auth, BareNewlines, Early, Listener, SmtpdConfig, Tls
from smtpd.policy.bouncing import Bouncing
from smtpd.policy.handler import RelayHandler
from smtpd.protocol.xclient import KEYWORD as XCLIENT
from smtpd.tls.contexts import Contexts

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


@dataclass(frozen=True, slots=True)
class SmtpListener:
    """Has the handler and the options of its sessions.

    Options have the defaults of the role. `label` is the name that metadata gives the listener.
    """

    label: str
    protocol: Literal["smtp", "lmtp"]
    local: bool
    """Whether it is a Unix socket."""
    handler: RelayHandler
    announcement: Announcement
    """The replies to EHLO."""
    parameters: Parameters
    """The parameters of MAIL and RCPT that the listener knows."""
    tls: Tls
    contexts: Contexts | None
    """The certificates, if there is any TLS."""
    auth: Auth
    auth_without_tls: bool
    bare_newlines: BareNewlines
    early: Early
    fix_ups: bool
    """Whether it completes messages as RFC 6409, section 8 says."""
    trusts: bool
    """Whether clients in `relay.networks` may send to any address."""
    proxy: Networks | None
    """Clients that must begin with a PROXY header."""
    xclient: Networks | None
    """Peers that may say by XCLIENT who the client is."""
    bouncing: Bouncing
    """Decides whether mail that fails is bounced."""

    def speaks_for_others(self, peer: str) -> bool:
        """Return whether a peer may say by XCLIENT who the client is."""
        return bool(self.xclient and self.xclient.contains(peer))

    @classmethod
    def make(
        cls,
        config: SmtpdConfig,
        listener: Listener,
        contexts: Contexts | None = None,
        mechanisms: Sequence[str] | None = None,
    ) -> SmtpListener:
        """Return the listener of an entry of `listen`, with its certificates.

        `mechanisms` are those of AUTH if hooks have some, instead of the configured ones.
        """
        role = ROLES[listener.role]
        mechanisms = config.auth.mechanisms if mechanisms is None else mechanisms
        tls, auth = config.tls_of(listener), listener.auth or role.auth
        starttls = bool(contexts) and tls in ("offered", "required")
        return cls(
            label=listener.label,
            protocol=listener.protocol,
            local=bool(listener.socket),
            handler=RelayHandler(config, relay=listener.relay),
            announcement=Announcement(
                config,
                role=listener.role,
                chunking=listener.protocol == "smtp",
                starttls=starttls,
                mechanisms=() if auth == "none" else mechanisms,
                auth_without_tls=listener.auth_without_tls,
            ),
            parameters=Parameters(
                config, role=listener.role, tls=tls != "none", auth=auth != "none"
            ),
            tls=tls,
            contexts=contexts,
            auth=auth,
            auth_without_tls=listener.auth_without_tls,
            bare_newlines=config.content.bare_newlines or role.bare_newlines,
            early=listener.early or role.early,
            fix_ups=role.fix_ups,
            trusts=role.trusts,
            proxy=Networks(listener.proxy) if listener.proxy else None,
            xclient=Networks(listener.xclient) if listener.xclient else None,
            bouncing=Bouncing(config, listener),
        )
