"""The settings of a listener for the commands of its sessions."""

from __future__ import annotations

from typing import Literal, Protocol

from smtpd.commands.announcement import Announcement
from smtpd.commands.parameters import Parameters
from smtpd.policy.handler import RelayHandler


class Terms(Protocol):
    """A listener, as far as commands depend on it."""

    @property
    def handler(self) -> RelayHandler:
        """Judges senders and recipients."""

    @property
    def announcement(self) -> Announcement:
        """Has the replies to EHLO."""

    @property
    def parameters(self) -> Parameters:
        """Takes the parameters of MAIL and RCPT."""

    @property
    def tls(self) -> Literal["none", "offered", "required", "implicit"]:
        """Whether there is STARTTLS, and whether mail needs it."""

    @property
    def auth(self) -> Literal["none", "offered", "required"]:
        """Whether there is AUTH, and whether mail needs it."""

    @property
    def auth_without_tls(self) -> bool:
        """Whether AUTH is allowed in plain text."""

    @property
    def protocol(self) -> Literal["smtp", "lmtp"]:
        """The protocol of the sessions."""

    @property
    def trusts(self) -> bool:
        """Whether clients in `relay.networks` may send to any address."""

    def speaks_for_others(self, peer: str) -> bool:
        """Return whether a peer may say by XCLIENT who the client is."""
