"""Judges the addresses that hooks put into an envelope."""

from __future__ import annotations

import asyncio
from difflib import SequenceMatcher
from typing import Any

from pgmta.mail.address import domain_of, parse_mailbox
from smtpd.commands.parameters import Dsn, orcpt_of
from smtpd.hooks.decisions import check
from smtpd.policy import RelayHandler
from smtpd.protocol import replies
from smtpd.protocol.transaction import Transaction, recipient_key
from smtpd.recipients.directory import Directory


class Judgement:
    """Brings a transaction in line with its envelope, in which hooks write as they like.

    A hook may rewrite or add addresses. Each has to pass syntax and policy as if the client had
    sent it.
    """

    def __init__(self, handler: RelayHandler, directory: Directory | None = None) -> None:
        self.handler = handler
        """Judges addresses as those of a client."""
        self._directory = directory

    async def look_up(self, unseen: list[tuple[str, str]]) -> None:
        """Find out whether recipients are known."""
        if directory := self._directory:
            await asyncio.gather(*(directory.look_up(*each) for each in unseen))

    def unseen(self, transaction: Transaction) -> list[tuple[str, str]]:
        """Return the recipients of the envelope that have to be looked up before `problem`."""
        wanted: Any = transaction.envelope.rcpt_tos
        if not self._directory or not isinstance(wanted, list):
            return []
        known = set(transaction.recipients.values())
        new = [one for one in wanted if isinstance(one, str) and one not in known]
        scratch = Transaction(trusted=transaction.trusted)
        scratch.envelope.smtp_utf8 = bool(transaction.envelope.smtp_utf8)
        judge = self.handler.rcpt
        return [
            parse_mailbox(one, utf8=True)
            for one in new[: self.handler.limit]
            if judge(scratch, one, self._directory) is replies.LOOK_UP
        ]

    def problem(self, transaction: Transaction, replaced: str = "") -> str:
        """Take over the addresses of the envelope; return why that is not possible, or nothing.

        After a problem, transaction and envelope have the addresses of before. `replaced` is the
        recipient of this RCPT, if the hook may have put others in its place.
        """
        envelope: Any = transaction.envelope  # hooks may have put anything into it
        try:
            decided = check(getattr(envelope, "pgmta", None))
        except Exception as error:  # a hook may have changed the envelope after its answer
            return str(error)
        transaction.set_decisions(decided.apply if decided else None)
        if envelope.mail_from == "<>":
            envelope.mail_from = ""  # aiosmtpd's word for the null reverse-path
        if envelope.mail_from != transaction.sender:
            problem = self._sender(transaction, envelope.mail_from)
            if problem:
                envelope.mail_from = transaction.sender
                return problem
        if envelope.rcpt_tos != list(transaction.recipients.values()):
            return self._recipients(transaction, envelope.rcpt_tos, replaced)
        return ""

    def _sender(self, transaction: Transaction, sender: Any) -> str:
        if not isinstance(sender, str):
            return f"mail_from is of type {type(sender).__name__}"
        scratch = Transaction()
        scratch.envelope.smtp_utf8 = bool(transaction.envelope.smtp_utf8)
        reply = self.handler.mail(scratch, sender)
        if reply[0] != "2":
            return f"mail_from {sender!r}: {reply}"
        transaction.set_sender(scratch.sender, scratch.sender_domain)
        return ""

    def _recipients(self, transaction: Transaction, wanted: Any, replaced: str) -> str:
        if not isinstance(wanted, list) or not all(isinstance(one, str) for one in wanted):
            transaction.envelope.rcpt_tos = list(transaction.recipients.values())
            return "rcpt_tos is no list of addresses"
        before = transaction.recipients, transaction.held
        old = list(transaction.recipients.values())
        known = set(old)
        if wanted[: len(old)] == old:
            transaction.set_recipients(dict(transaction.recipients), transaction.held)
            new = wanted[len(old) :]
        else:
            transaction.set_recipients({}, None)
            new = wanted
        for address in new:
            directory = None if address in known else self._directory
            reply = self.handler.rcpt(transaction, address, directory)
            if reply[0] != "2":
                transaction.set_recipients(*before)
                return f"recipient {address!r}: {reply}"
        _inherit(transaction, [*old, replaced] if replaced else old, wanted)
        return ""


def _inherit(transaction: Transaction, old: list[str], new: list[str]) -> None:
    """Give addresses in the place of others NOTIFY and ORCPT of those (RFC 3461, section 5.2).

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
    # a recipient that was there before keeps its own parameters
    if found != (None, None) and key in transaction.recipients and key not in dsn:
        transaction.set_dsn(key, found)


def _key(mailbox: str) -> tuple[str, str]:
    return recipient_key(mailbox, domain_of(mailbox))
