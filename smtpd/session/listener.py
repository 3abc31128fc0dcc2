"""The parts that the sessions of one listener share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pgmta.accounts.mechanisms import offered
from pgmta.accounts.networks import Networks
from smtpd.commands.announcement import Announcement
from smtpd.commands.parameters import Parameters
from smtpd.config import ROLES, Auth, BareNewlines, Early, Listener, SmtpdConfig, Tls
from smtpd.hooks.phases import Phases
from smtpd.policy.bouncing import Bouncing
from smtpd.policy.handler import RelayHandler
from smtpd.tls.contexts import Contexts


@dataclass(frozen=True, slots=True)
class SmtpListener:
    """Has the handler, the hooks and the options of its sessions.

    Options have the defaults of the role. `label` is the name that metadata gives the listener.
    """

    label: str
    protocol: Literal["smtp", "lmtp"]
    local: bool
    """Whether it is a Unix socket."""
    handler: RelayHandler
    phases: Phases
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
        phases: Phases | None = None,
        contexts: Contexts | None = None,
    ) -> SmtpListener:
        """Return the listener of an entry of `listen`, with its hooks and its certificates."""
        role = ROLES[listener.role]
        tls, auth = config.tls_of(listener), listener.auth or role.auth
        starttls = bool(contexts) and tls in ("offered", "required")
        return cls(
            label=listener.label,
            protocol=listener.protocol,
            local=bool(listener.socket),
            handler=RelayHandler(config, relay=listener.relay),
            phases=phases or Phases(),
            announcement=Announcement(
                config,
                role=listener.role,
                chunking=listener.protocol == "smtp",
                starttls=starttls,
                mechanisms=() if auth == "none" else _mechanisms(config, phases),
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


def _mechanisms(config: SmtpdConfig, phases: Phases | None) -> tuple[str, ...]:
    if not phases:
        return tuple(config.auth.mechanisms)
    steps = phases.auth
    return offered(
        config.auth.mechanisms,
        authenticator=bool(steps.authenticator),
        others=sorted(steps.mechanisms),
    )
