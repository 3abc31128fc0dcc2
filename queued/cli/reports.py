"""Print which DSN went to whom, why there was none, and of which message a message is the DSN."""

from __future__ import annotations

from pgmta.command import print_line, print_table, print_text
from pgmta.store.listing import MessageReports


def print_origin(reports: MessageReports) -> None:
    """Write the origin of a DSN, a line per message; nothing for other mail."""
    origins: dict[tuple[int, str], list[str]] = {}
    for each in reports.origins:
        origins.setdefault((each["message_id"], each["kind"]), []).append(each["recipient"])
    for (message_id, kind), recipients in origins.items():
        more = f" and {len(recipients) - 1} more" if len(recipients) > 1 else ""
        print_line(f"the DSN of message {message_id}: {kind}, {recipients[0]}{more}")


def print_reports(reports: MessageReports) -> None:
    """Write a line for each recipient of whom the sender was notified, or was not."""
    if not reports.notified:
        return
    print_text("\nreports")
    print_table(
        ["  AT", "RECIPIENT", "KIND", "NOTIFIED", "DSN", "CLASS", "REASON"],
        [
            [
                f"  {each['at']:%Y-%m-%d %H:%M:%S%z}",
                each["recipient"],
                each["kind"],
                f"<{each['sent_to']}>" if each["report_id"] else "nobody",
                "-" if each["report_id"] is None else str(each["report_id"]),
                each["class"] or "-",
                each["reason"] or "-",
            ]
            for each in reports.notified
        ],
    )
