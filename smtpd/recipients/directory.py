"""The recipients of relay domains: a source of knowledge for each domain."""

from __future__ import annotations

from dataclasses import dataclass

from pgmta.mail.address import lower_ascii, unquoted
from pgmta.postgres.outage import Outage
from pgmta.postgres.resources import Resources
from pgmta.selection import Term
from pgmta.store.accounts.recipients import Recipients
from smtpd.config import SmtpdConfig
from smtpd.recipients.recipient_file import RecipientFile
from smtpd.recipients.recipient_verdict import Source, Verdict
from smtpd.recipients.table import RecipientTable


@dataclass(frozen=True, slots=True)
class _DomainEntry:
    domains: Term
    source: Source
    delimiter: str
    spelled: bool  # whether the source gets the address as the client wrote it


class Directory:
    """Asks the first source of `relay.recipients` that has the domain.

    Recipients of other domains are known. So is the postmaster of each domain (RFC 5321, section
    4.5.1), unless its next hop is asked. Raises ConfigError for a file with mistakes.
    """

    def __init__(self, config: SmtpdConfig, resources: Resources, outage: Outage) -> None:
        relay = config.relay
        asked = any(entry.table for entry in relay.recipients)
        table = RecipientTable(Recipients(resources), outage) if asked else None
        self._entries: list[_DomainEntry] = []
        for entry in relay.recipients:
            source: Source
            if entry.file:
                source = RecipientFile(entry.file)
            elif entry.callout:
                from smtpd.recipients.callout import (
                    Callout,  # here, because other sources need no SMTP client
                )

                source = Callout(entry.callout, config.environment.hostname)
            else:
                assert table  # noqa: S101 - for the type checker
                source = table
            domains = Term.of("domain", relay.domains if entry.domains is None else entry.domains)
            self._entries.append(
                _DomainEntry(domains, source, entry.delimiter or "", spelled=bool(entry.callout))
            )

    def verdict(self, mailbox: str, domain: str) -> Verdict | None:
        """Return whether a recipient is known, None if `look_up` has to be awaited first."""
        for entry in self._entries:
            if entry.domains.fits(domain):
                addresses = _spellings(entry, mailbox, domain)
                return entry.source.verdict(addresses) if addresses else Verdict.KNOWN
        return Verdict.KNOWN

    async def look_up(self, mailbox: str, domain: str) -> None:
        """Find out whether a recipient is known."""
        for entry in self._entries:
            if entry.domains.fits(domain):
                if addresses := _spellings(entry, mailbox, domain):
                    await entry.source.look_up(addresses)
                return

    async def stop(self) -> None:
        """Close the connections of the sources."""
        for entry in self._entries:
            await entry.source.stop()


def _spellings(entry: _DomainEntry, mailbox: str, domain: str) -> tuple[str, ...]:
    """Return the words of which a source has to know one; none for a postmaster."""
    local = mailbox.rpartition("@")[0]
    if entry.spelled:
        return (f"{local}@{domain}",)
    local = lower_ascii(unquoted(local))
    if local == "postmaster":
        return ()
    user, tagged, _ = local.partition(entry.delimiter) if entry.delimiter else (local, "", "")
    keys = (f"{local}@{domain}", f"@{domain}")
    return (*keys, f"{user}@{domain}") if tagged and user else keys
