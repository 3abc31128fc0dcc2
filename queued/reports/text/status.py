"""The Status of a recipient in a DSN (RFC 3464, section 2.3.4; RFC 3463; pure)."""

from __future__ import annotations

import re
from functools import lru_cache

from pgmta.report_row import Kind

_REPLY = re.compile(r"([2-5])\d\d(?: |$)")
_ENHANCED = re.compile(r"(?:[2-5]\d\d[ -])?([245])(\.\d{1,3}\.\d{1,3})(?= |$)")
_DETAILS = {
    "mailbox_full": ".2.2",
    "unknown_user": ".1.1",
    "disabled": ".2.1",
    "bad_domain": ".1.2",
    "sender_refused": ".7.1",
    "policy": ".7.1",
    "spam": ".7.1",
    "rate_limited": ".7.0",
    "greylisted": ".7.1",
    "too_large": ".3.4",
    "content": ".6.0",
    "authentication": ".7.0",
    "tls": ".7.5",
    "dns": ".4.3",
    "no_connection": ".4.1",
    "protocol": ".5.0",
    "expired": ".4.7",
}


def has_code(diagnostic: str) -> bool:
    """Return whether a text is an SMTP reply with its code."""
    return _REPLY.match(diagnostic) is not None


@lru_cache(maxsize=4096)
def status_of(action: Kind, diagnostic: str, answer_class: str) -> str:
    """Return the enhanced code of a reply or reason, or else one for its class.

    A failure keeps 4.x.y of a problem that lasted until the time for it was over: RFC 3463,
    section 3.1, has it for abandoned mail, and X.4.7 only if no real code is known. A delay has
    4.x.y and a success 2.x.y, whatever the reply says.
    """
    reply, found = _REPLY.match(diagnostic), _ENHANCED.match(diagnostic)
    first = reply[1] if reply else found[1] if found else ""
    if action in ("relayed", "delivered"):
        return f"2{found[2]}" if found and found[1] == "2" else "2.0.0"
    detail = found[2] if found and found[1] != "2" else _DETAILS.get(answer_class, ".0.0")
    if action == "delayed":
        return f"4{detail}"
    lasted = first == "4" or (not first and answer_class == "expired")
    return f"4{detail}" if lasted else f"5{detail}"
