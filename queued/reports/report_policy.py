"""Which DSNs are due for rows that have ended, and why there is none (RFC 3461, RFC 5321; pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pgmta.errors import AddressError
from pgmta.mail.address import in_a_labels, mailbox_key, parse_mailbox
from pgmta.report_row import Kind, ReportRow
from pgmta.store.records.reports import ReportClosing, ReportEntry, counted
from queued.config import BounceLimits

# of the parameter NOTIFY (RFC 3461, section 4.1)
_NOTIFY_VALUES = {
    "failed": "FAILURE",
    "delayed": "DELAY",
    "relayed": "SUCCESS",
    "delivered": "SUCCESS",
}
_NO_DSN = "undeliverable, no DSN"
LIMIT_REASON = "bounce limit"
"""How the reason of rows begins that a limit holds."""


@dataclass(slots=True)
class Plan:
    """A DSN that is due: rows of one message with one subject, and its recipient."""

    message_id: int
    kind: Kind
    sent_to: str
    domain: str
    rows: list[ReportRow]


@dataclass(slots=True)
class Decision:
    """The end of rows: DSNs that are due, and the rows without one."""

    plans: list[Plan] = field(default_factory=list)
    closing: ReportClosing = field(default_factory=ReportClosing)

    def refuse(self, rows: Iterable[ReportRow], reason: str) -> None:
        """Send no DSN for these rows: a failure goes on hold, so that it is not lost.

        The mail of the others was delivered, or waits. A hold would send it twice.
        """
        for row in rows:
            if row.kind == "failed":
                self.closing.held.append((row, row.reason(reason)))
            else:
                self.closing.gone.append(ReportEntry(row, row.reason(reason)))


def decide(rows: Iterable[ReportRow], postmaster: str | None) -> Decision:
    """Return what becomes of rows, without regard to limits.

    The rows of one message are in one DSN, as far as their subject and sender are the same. No DSN
    goes to the null reverse-path (RFC 5321, section 6.1): `postmaster` gets those of failures.
    """
    decision = Decision()
    groups: dict[tuple[int, str, str, bool], Plan] = {}
    for row in rows:
        kind = row.kind
        if row.notify and not _wanted(row.notify, kind):
            decision.closing.gone.append(ReportEntry(row, row.reason(f"NOTIFY={row.notify[:60]}")))
            continue
        key = row.message_id, kind, row.sender, row.dsn
        plan = groups.get(key)
        try:
            if plan is None or row.dsn or not row.sender:
                sent_to, domain = _target(row, postmaster)
        except AddressError as error:
            decision.refuse([row], f"{_NO_DSN}: {error}")
            continue
        if plan is None:
            plan = groups[key] = Plan(row.message_id, kind, sent_to, domain, [])
        plan.rows.append(row)
    decision.plans.extend(groups.values())
    return decision


def _wanted(notify: str, kind: str) -> bool:
    """Return whether NOTIFY asks for such a DSN; a text of another form asks for failures."""
    values = notify.upper().split(",")
    if "NEVER" in values:
        return False
    return _NOTIFY_VALUES[kind] in values or (
        kind == "failed" and not {*_NOTIFY_VALUES.values()} & {*values}
    )


def _target(row: ReportRow, postmaster: str | None) -> tuple[str, str]:
    """Return the recipient of a row's DSN, and its domain. Raises AddressError if there is none."""
    if row.sender and not row.dsn:
        try:
            sender, domain = parse_mailbox(row.sender, utf8=True)
            return in_a_labels(sender), domain
        except AddressError as error:
            raise AddressError(f"its sender can't get one: {error}") from None
    what = "it is a DSN" if row.dsn else "it has the null reverse-path"
    if row.kind != "failed":
        raise AddressError(what)
    if postmaster is None:
        raise AddressError(f"{what}, and bounces.postmaster is not set")
    if mailbox_key(row.recipient) == mailbox_key(postmaster):
        raise AddressError(f"{what}, and its recipient is bounces.postmaster")
    return parse_mailbox(postmaster, utf8=True)


def keep_to_limits(decision: Decision, limits: BounceLimits, used: Mapping[str, int]) -> bool:
    """Take the surplus out of the plans; return whether there is one.

    `used` has the DSNs of the last hour by address, in the form of `counted`, and all under ''.
    """
    numbers = dict(used)
    kept: list[Plan] = []
    for plan in decision.plans:
        address = counted(plan.sent_to)
        if numbers.get("", 0) >= limits.all:
            decision.refuse(plan.rows, f"{LIMIT_REASON}: {limits.all} DSNs per hour in all")
        elif numbers.get(address, 0) >= limits.sender:
            decision.refuse(
                plan.rows, f"{LIMIT_REASON}: {limits.sender} DSNs per hour to one address"
            )
        else:
            numbers[address] = numbers.get(address, 0) + 1
            numbers[""] = numbers.get("", 0) + 1
            kept.append(plan)
    surplus = len(kept) < len(decision.plans)
    decision.plans = kept
    return surplus
