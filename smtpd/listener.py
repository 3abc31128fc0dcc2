"""The parts that the sessions of one listener share."""

from __future__ import annotations

from dataclasses import dataclass

from smtpd.config import Listener, SmtpdConfig
from smtpd.handler import RelayHandler
from smtpd.hooks.phases import Phases


@dataclass(frozen=True, slots=True)
class SmtpListener:
    """Has the handler and the hooks of its sessions, and the name that metadata gives them."""

    label: str
    handler: RelayHandler
    phases: Phases

    @classmethod
    def make(
        cls, config: SmtpdConfig, listener: Listener, phases: Phases | None = None
    ) -> SmtpListener:
        """Return the listener of an entry of `listen`, with the hooks that were loaded for it."""
        handler = RelayHandler(config, relay=listener.relay)
        return cls(listener.label, handler, phases or Phases())
