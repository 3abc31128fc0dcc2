"""The stage of staging: all mail goes to one address."""

from __future__ import annotations

from dataclasses import replace
from email.header import Header

from pgmta.mail.address import needs_utf8, parse_mailbox
from pgmta.mail.telephone import NUMBER_DOMAIN
from pgmta.mail.text import one_line
from pgmta.model import Item
from queued.config import QueuedConfig
from queued.outgoing.outgoing import Outgoing
from queued.outgoing.stage import OutgoingStage, Prepare, Prepared

ORIGINAL_TO = "X-Original-To"
"""The field with the recipient of the row."""

_SHOWN_CHARACTERS = 320  # of a recipient, which by SQL may be longer than an address


class RedirectStage(OutgoingStage):
    """Sends each row to the address `delivery.redirect`, by the route of that address.

    Each row has an envelope, because its header has its recipient. The log has the row.
    """

    def configured(self, config: QueuedConfig) -> Prepare | None:
        """Return the step, if all mail goes to one address."""
        if config.delivery.redirect is None:
            return None
        self._address, self._domain = parse_mailbox(config.delivery.redirect, utf8=True)
        return self._prepare

    def _prepare(self, outgoing: Outgoing) -> Prepared:
        return [self._redirected(outgoing, item) for item in outgoing.items]

    def _redirected(self, outgoing: Outgoing, item: Item) -> Outgoing:
        # claims leave out mail of a number by the domain of the row
        domain = self._domain if item.domain == NUMBER_DOMAIN else item.domain
        made = replace(item, recipient=self._address, domain=domain, original=item,
                       notify=None, orcpt=None)  # fmt: skip
        routed = self.context.dispatcher.route(replace(made, domain=self._domain), outgoing.message)
        shown = one_line(item.recipient)[:_SHOWN_CHARACTERS]
        value = (
            shown if shown.isascii() else Header(shown, "utf-8", header_name=ORIGINAL_TO).encode()
        )
        field = "\r\n".join(f"{ORIGINAL_TO}: {value}".splitlines())
        return outgoing._replace(
            items=[made],
            routed=routed,
            trace=f"{field}\r\n".encode() + outgoing.trace,
            utf8=needs_utf8(self._address, item.sender),
        )
