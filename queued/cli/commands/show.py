"""The command `queuectl show`, and how a message came in."""

from __future__ import annotations

import email.parser
import email.policy
import json
from pathlib import Path
from typing import Any

import click

from pgmta.command import instant, print_json, print_line, print_text
from pgmta.errors import PgmtaError
from pgmta.mail.received_field import ClientFacts, client_of
from pgmta.password import KEY_PREFIX
from pgmta.postgres.operator import connected
from pgmta.states import WAITING, Status
from pgmta.store.changes.listing import UNDELIVERABLE, Listing, MessageReports
from queued.cli.options.queue_command import (
    Column,
    command,
    database_of,
    print_rows,
)
from queued.explaining.explainer import explainers, first_reason

type Came = dict[str, str | None]
"""User, client, helo (the name that the client gave), protocol and origin."""


@command(json=True)
@click.argument("message_id", metavar="ID", type=int)
@click.option("--transcript", is_flag=True, help="Also print the dialogues that were kept.")
@click.option("--params", is_flag=True, help="Also print what composed mail is made of.")
async def show(
    config: Path, message_id: int, transcript: bool, params: bool, as_json: bool
) -> None:
    """Show a message: headers, recipients, next attempt, every attempt so far, and DSNs.

    ID is what the client got with its 250. The history outlives the message. Attempts that failed
    have a transcript, and those that a trace asked for. Words of a template may be secret: only
    --params prints their values.
    """
    asked = [each for each in explainers() if each.in_show]
    async with connected(database_of(config)) as db:
        listing = Listing(db)
        message = await listing.message(message_id)
        rows = await listing.rows(f"message_id = {message_id}", 100_000)
        history = await listing.history(message_id)
        came = arrival(await listing.arrival(message_id), history)
        reports = await listing.reports(message_id)
        said = await listing.transcripts(message_id) if transcript else None
        made_of = await listing.parameters(message_id) if params and message else None
        for each in asked:
            await each.add_facts(db, rows, None)
    for row in rows:
        row["waits_for"] = first_reason(row, asked) or row["waits_for"]
    if not message and not history and not any(reports):
        raise PgmtaError(f"no message {message_id}, neither in the queue nor in the log")
    composition = _make_content(message, rows) if message else None
    headers = _headers(message) if message else []
    if as_json:
        print_json({
            "id": message_id,
            "stored": message is not None,
            "received_at": message["received_at"] if message else None,
            "size": message["size"] if message else None,
            **came,
            "headers": headers,
            **({"composed_from": composition} if composition else {}),
            **({"params": made_of} if made_of else {}),
            "recipients": rows,
            "history": history,
            **reports.as_json(),
            **({} if said is None else {"transcripts": said}),
        })  # fmt: skip
        return
    if message:
        received = instant(message["received_at"])
        print_line(f"message {message_id}, {message['size']} octets, received {received}")
        if not rows:
            print_line("no recipient is waiting")
    else:
        print_line(f"message {message_id} is done; its content is gone")
    print_senders(rows or history)
    _print_headers(headers)
    if composition:
        print_line(f"composed from {composition}")
    if made_of:
        print_text(json.dumps(made_of, ensure_ascii=False, indent=2))
    print_arrival(came)
    print_origin(reports)
    if rows:
        _print_recipients(rows)
    print_history(history)
    print_reports(reports)
    if said is not None:
        _print_transcripts(said, history)


def _print_headers(headers: list[tuple[str, str]]) -> None:
    for name, value in headers:
        if name.lower() in _SHOWN_FIELDS:
            print_line(f"  {name}: {value}")


def arrival(message: dict[str, Any] | None, history: list[dict[str, Any]]) -> Came:
    """Return who submitted a message, and from where; None for each fact that is unknown."""
    user = message["submitted_by"] if message else None
    client = client_of(message["trace"]) if message else None
    for entry in history:
        user = user or entry["submitted_by"]
        if not client and entry["client"]:
            names = "client", "client_helo", "client_protocol"
            client = ClientFacts(*(str(entry[name]) for name in names))
    return {
        "user": user,
        "client": client.address if client else None,
        "helo": client.helo if client else None,
        "protocol": client.protocol if client else None,
        "origin": message["origin"] if message else None,
    }


def print_arrival(came: Came) -> None:
    """Write a line about it, if anything is known."""
    parts = []
    if came["user"]:
        by_api = came["user"].startswith(KEY_PREFIX)
        key = came["user"].removeprefix(KEY_PREFIX)
        parts.append(f"the HTTP API, by key {key}" if by_api else f"user {came['user']}")
    if came["client"]:
        parts.append(f"client {came['client']} ({came['helo']}), by {came['protocol']}")
    if came["origin"]:
        parts.append(f"origin {came['origin']}")
    if parts:
        print_line(f"came from {', '.join(parts)}")


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
    columns: dict[str, Column] = {
        "  AT": lambda each: f"  {instant(each['at'])}",
        "RECIPIENT": "recipient",
        "KIND": "kind",
        "NOTIFIED": lambda each: f"<{each['sent_to']}>" if each["report_id"] else "nobody",
        "DSN": lambda each: "-" if each["report_id"] is None else str(each["report_id"]),
        "CLASS": lambda each: each["class"] or "-",
        "REASON": lambda each: each["reason"] or "-",
    }
    print_rows(reports.notified, columns)


_SHOWN_FIELDS = ("from", "to", "cc", "subject", "date", "message-id")


def _make_content(message: dict[str, Any], rows: list[dict[str, Any]]) -> str | None:
    """Give a message the header of its delivery; return what composed mail is made of."""
    shown = message["composition"]
    if shown is not None:
        at = rows[0]["ts"] if rows else message["received_at"]
        # here, because only composed mail needs these, whose import takes long
        from pgmta.compose.composed_message import composed_header
        from pgmta.compose.mime import MessageIdentity

        identity = MessageIdentity(message["message_id_header"] or "", at)
        message["head"] = composed_header(shown, identity)
    if shown is None:
        return None
    template = json.loads(shown, parse_int=str, parse_float=str)[1]
    return f"template {template['name']} version {template['version']}" if template else "parts"


def why(row: dict[str, Any]) -> str:
    """Return the most useful text about a row: for what it waits, why it is on hold, or a reply."""
    if row["waits_for"]:
        return f"waits for {row['waits_for']}"
    reason, reply = row["hold_reason"] or "", row["last_reply"] or ""
    return reply if reply and reason in ("", UNDELIVERABLE) else reason


def quarantine_of(row: dict[str, Any]) -> str:
    """Return the id of the quarantine of a row on hold; nothing for other rows."""
    metadata = row["metadata"]
    if row["status"] != Status.HOLD or not isinstance(metadata, dict):
        return ""
    return str(metadata.get("_quarantineid", ""))


def print_senders(rows: list[dict[str, Any]]) -> None:
    """Write the sender of rows, or of attempts."""
    if senders := [f"<{sender}>" for sender in _senders(rows)]:
        print_line(f"{'senders' if len(senders) > 1 else 'sender'} {', '.join(senders)}")


def _senders(rows: list[dict[str, Any]]) -> list[str]:
    """Return the senders of the rows, each once: mail from SQL may have several."""
    return list(dict.fromkeys(row["sender"] for row in rows))


def _print_recipients(rows: list[dict[str, Any]]) -> None:
    held = any(row["hold_reason"] for row in rows)
    several = len(_senders(rows)) > 1
    print_text("\nrecipients")
    columns: dict[str, Column] = {"  RECIPIENT": lambda row: f"  {row['recipient']}"}
    if several:
        columns["SENDER"] = lambda row: f"<{row['sender']}>"
    columns |= {
        "STATUS": "status",
        "TRIES": "attempts",
        "NEXT ATTEMPT": lambda row: (
            instant(row["next_attempt"]) if row["status"] in WAITING else "-"
        ),
    }
    if held:
        columns["ON HOLD"] = lambda row: row["hold_reason"] or "-"
    if any(quarantine_of(row) for row in rows):
        columns["QUARANTINE"] = lambda row: quarantine_of(row) or "-"
    if any(row["waits_for"] for row in rows):
        columns["WAITS FOR"] = lambda row: row["waits_for"] or "-"
    columns["LAST REPLY"] = lambda row: row["last_reply"] or "-"
    print_rows(rows, columns)


_HISTORY: dict[str, Column] = {
    "  ENDED": lambda entry: f"  {instant(entry['ended_at'])}",
    "RECIPIENT": "recipient",
    "TRY": "attempt",
    "EVENT": "event",
    "CLASS": lambda entry: entry["class"] or "-",
    "HOST": lambda entry: _host(entry),
    "TLS": lambda entry: _tls(entry),
    "TOOK": lambda entry: _took(entry),
    "REPLY": lambda entry: f"{entry['code'] or ''} {entry['reply']}".strip(),
}
_RETURNED: dict[str, Column] = {
    "  AT": lambda entry: f"  {instant(entry['returned_at'])}",
    "RECIPIENT": "recipient",
    "CLASS": "class",
    "TEXT": "returned",
}


_EVENTS_LATER = (("confirmed_at", "delivered"), ("complained_at", "complained"))


def print_history(history: list[dict[str, Any]]) -> None:
    """Write every attempt, in order, and what came back of delivered mail."""
    print_text("\nhistory" if history else "\nno attempt yet")
    if history:
        print_rows(history, _HISTORY)
    if returned := [entry for entry in history if entry["returned_at"]]:
        print_text("\ncame back")
        print_rows(returned, _RETURNED)
    said = [
        (entry[column], entry["recipient"], word)
        for column, word in _EVENTS_LATER
        for entry in history
        if entry[column]
    ]
    if said:
        print_text("\nthe provider said later")
        for at, recipient, word in sorted(said, key=lambda each: each[0]):
            print_line(f"  {instant(at)}  {recipient}  {word}")


def _host(entry: dict[str, Any]) -> str:
    host, address = entry["host"], entry["address"]
    return f"{host} [{address}]" if address and address not in host else host or "-"


def _tls(entry: dict[str, Any]) -> str:
    return f"{entry['tls_version']} {entry['tls_verified']}" if entry["tls_version"] else "-"


def _took(entry: dict[str, Any]) -> str:
    """Return how long each phase of the attempt took, such as `connect 2ms, mail 47ms`."""
    phases = {
        name: entry[f"{column}_seconds"]
        for name, column in (
            ("dns", "dns"), ("connect", "connect"), ("tls", "tls"), ("mail", "transaction"),
        )
    }  # fmt: skip
    return ", ".join(f"{name} {_brief(s)}" for name, s in phases.items() if s) or "-"


def _brief(seconds: float) -> str:
    milliseconds = seconds * 1000
    if milliseconds < 1:
        return f"{milliseconds:.1f}ms"
    return f"{milliseconds:.0f}ms" if seconds < 1 else f"{seconds:.1f}s"


def _print_transcripts(transcripts: list[dict[str, Any]], history: list[dict[str, Any]]) -> None:
    if not transcripts:
        print_text("\nno transcript was kept")
    recipients = {entry["row_id"]: entry["recipient"] for entry in history}
    for each in transcripts:
        names = [recipients.get(row, f"row {row}") for row in each["row_ids"]]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        print_text(f"\ntranscript of the attempt that ended {instant(each['ended_at'])}")
        print_line(f"  to {names[0]}{more}")
        print_text("".join(f"  {line}\n" for line in each["dialogue"].splitlines()).rstrip())


def _headers(message: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the header fields as they will be sent, unfolded, the added trace first."""
    content = bytes(message["head"] or b"")
    head = message["trace"].encode() + content
    header = head.partition(b"\r\n\r\n")[0]
    parsed = email.parser.BytesHeaderParser(policy=email.policy.compat32).parsebytes(header)
    return [(name, " ".join(str(value).split())) for name, value in parsed.items()]
