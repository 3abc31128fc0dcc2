"""NOTIFY and ORCPT of recipients that hooks put in the place of others (RFC 3461, section 5.2)."""

from __future__ import annotations

from difflib import SequenceMatcher

from pgmta.mail.address import domain_of
from smtpd.commands.parameters import Dsn, orcpt_of
from smtpd.protocol.transaction import Transaction, recipient_key


def inherit(transaction: Transaction, old: list[str], new: list[str]) -> None:
    """Give addresses in the place of others what the client said of those.

    ORCPT stays the address that the sender has written: the former address, if there was none. One
    address may become several. Addresses that a hook adds beside the others have neither.
    """
    known = set(old)
    for tag, first, last, begin, end in SequenceMatcher(
        None, old, new, autojunk=False
    ).get_opcodes():
        if tag != "replace":
            continue
        sources, targets = old[first:last], new[begin:end]
        if len(sources) == 1:
            sources *= len(targets)
        for source, target in zip(sources, targets, strict=False):
            if target not in known and (key := _key(target)) != _key(source):
                _give(transaction, source, key)


def _give(transaction: Transaction, source: str, key: tuple[str, str]) -> None:
    dsn = transaction.dsn or {}
    notify, orcpt = dsn.get(_key(source), (None, None))
    found: Dsn = notify, orcpt or orcpt_of(source)
    if found != (None, None) and key in transaction.recipients:
        transaction.dsn = {key: found} | dsn  # a recipient that was there keeps its own


def _key(mailbox: str) -> tuple[str, str]:
    return recipient_key(mailbox, domain_of(mailbox))
