"""One listener, for all of its sessions: its options, and whose mail is bounced."""

from __future__ import annotations

from collections.abc import Sequence

from pgmta.accounts.networks import Networks
from smtpd.commands.ehlo import EhloReply
from smtpd.commands.parameters import Parameters
from smtpd.config import ROLES, Listener, SmtpdConfig
from smtpd.policy import RelayHandler
from smtpd.tls.contexts import Contexts


class SmtpListener:
    """Has the handler and the options of its sessions. Options have the defaults of the role.

    It is made of an entry of `listen`, with its certificates. `mechanisms` are those of AUTH if
    hooks have some, instead of the configured ones.
    """

    def __init__(
        self,
        config: SmtpdConfig,
        listener: Listener,
        contexts: Contexts | None = None,
        mechanisms: Sequence[str] | None = None,
    ) -> None:
        role = ROLES[listener.role]
        self.label = listener.label
        """The name that metadata gives the listener."""
        self.protocol = listener.protocol
        self.local = bool(listener.socket)
        """Whether it is a Unix socket."""
        self.handler = RelayHandler(config, relay=listener.relay)
        self.tls = tls = config.tls_of(listener)
        self.contexts = contexts
        """The certificates, if there is any TLS."""
        self.starttls = bool(contexts) and tls in ("offered", "required")
        """Whether there is STARTTLS."""
        self.auth = auth = config.auth_of(listener)
        self.auth_without_tls = listener.auth_without_tls
        self.parameters = Parameters(
            config, role=listener.role, tls=tls != "none", auth=auth != "none"
        )
        """The parameters of MAIL and RCPT that the listener knows."""
        self.bare_newlines = config.content.bare_newlines or role.bare_newlines
        self.early = listener.early or role.early
        self.fix_ups = role.fix_ups
        """Whether it completes messages as RFC 6409, section 8 says."""
        self.trusts = role.trusts
        """Whether clients in `relay.networks` may send to any address."""
        self.proxy = Networks(listener.proxy) if listener.proxy else None
        """Clients that must begin with a PROXY header."""
        self._xclient = Networks(listener.xclient) if listener.xclient else None
        self.trusts_traceparent = listener.trust_traceparent
        """Whether the field Traceparent of mail counts."""
        self.refuses_suppressed = listener.suppressed == "refuse"
        """Whether RCPT refuses recipients who are suppressed."""
        self.bouncing = Bouncing(config, listener)
        """Decides whether mail that fails is bounced."""
        self.helo = f"250 {config.environment.hostname}"
        """The reply to HELO."""
        offered = config.auth.mechanisms if mechanisms is None else mechanisms
        self.ehlo = EhloReply(
            config, listener, starttls=self.starttls, mechanisms=() if auth == "none" else offered
        )
        """What it announces."""

    def speaks_for_others(self, peer: str) -> bool:
        """Return whether a peer may say by XCLIENT who the client is."""
        return bool(self._xclient and self._xclient.contains(peer))


class Bouncing:
    """Decides for the clients of one listener whether their mail is bounced.

    Mail that may not be bounced is held, so that nothing is lost.
    """

    def __init__(self, config: SmtpdConfig, listener: Listener) -> None:
        self._usual = listener.bounces
        self._rules = [
            (
                Networks(rule.networks) if rule.networks else None,
                frozenset(user.lower() for user in rule.users) if rule.users else None,
                rule.audience,
            )
            for rule in config.bounces
        ]
        self.always = ""
        """The word for every client; nothing if it depends on the client."""
        if listener.on_failed != "bounce":
            self.always = listener.on_failed
        elif not self._rules and self._usual != "authenticated":
            self.always = "bounce" if self._usual == "anybody" else "hold"

    def choose(self, client: str, user: str, *, identified: bool) -> str:
        """Return the word for a client, if it is not `always` the same.

        `identified` clients have logged in, or have a trusted certificate.
        """
        audience = self._usual
        for networks, users, word in self._rules:
            here = networks is None or networks.contains(client)
            if here and (users is None or user.lower() in users):
                audience = word
                break
        if audience == "authenticated":
            return "bounce" if identified else "hold"
        return "bounce" if audience == "anybody" else "hold"
