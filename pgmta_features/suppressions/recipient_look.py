"""The list of suppressions as smtpd asks it at RCPT."""

from __future__ import annotations

import asyncio

from pgmta.mail.address import parse_mailbox, with_domain
from pgmta.postgres.resources import Resources
from smtpd.recipients.recipient_verdict import Verdict
from smtpd.recipients.table import GroupedLook, Key

from .suppression_look import TRANSACTIONAL, Asked, SuppressionLook

_ANSWER_TIMEOUT_S = 2.0  # then the mail is taken: it is asked about again before its attempt
_SECONDS = dict.fromkeys(Verdict, 1.0)


def begin_look(resources: Resources) -> GroupedLook:
    """Return what knows the recipients who get mail: a key has the tenant and the address."""
    look = SuppressionLook(resources.link("suppressions"))

    async def unsuppressed(keys: list[Key]) -> list[Key]:
        asked = [
            Asked(tenant, TRANSACTIONAL, with_domain(*parse_mailbox(address, utf8=True)))
            for tenant, address in keys
        ]
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            words = await look.words(asked)
        return [key for key, why in zip(keys, words, strict=True) if not why]

    return GroupedLook(unsuppressed, _SECONDS)
