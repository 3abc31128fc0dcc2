"""The senders that a user may use (RFC 6409, section 6.1; pure)."""

from __future__ import annotations

from functools import lru_cache

from pgmta.errors import AddressError
from pgmta.mail.address import normalise_domain, unquoted
from pgmta.model import ANY_SENDER


def may_send_from(senders: tuple[str, ...], mailbox: str, domain: str) -> bool:
    """Return whether a mailbox with this normalised domain is among addresses and `@domain`.

    Upper and lower case are the same, and so are all spellings of a local part. The entry `any`
    allows any sender.
    """
    if ANY_SENDER in senders:
        return True
    allowed = _normalised(senders)
    local = unquoted(mailbox.rpartition("@")[0]).lower()
    return f"@{domain}" in allowed or f"{local}@{domain}" in allowed


@lru_cache(maxsize=1024)
def _normalised(senders: tuple[str, ...]) -> frozenset[str]:
    found = set()
    for sender in senders:
        local, at, domain = sender.rpartition("@")
        if not at:
            continue
        try:
            found.add(f"{unquoted(local).lower()}@{normalise_domain(domain)}")
        except AddressError:
            continue  # no mail has it
    return frozenset(found)
