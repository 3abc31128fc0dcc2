"""The `on_failed` of the rows of a client: whether its mail is bounced if it fails."""

from __future__ import annotations

from pgmta.accounts.networks import Networks
from smtpd.config import Listener, SmtpdConfig


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

    def of(self, client: str, user: str, *, identified: bool) -> str:
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
