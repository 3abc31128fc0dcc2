"""The commands `queuectl send --raw`, `cancel` and `status`."""

from __future__ import annotations

import re
import sys
from email.parser import BytesHeaderParser
from email.utils import getaddresses
from pathlib import Path
from typing import Any, BinaryIO

import click

from pgmta.command import EXIT_FAILURE, instant, print_json, print_line
from pgmta.compose.submitted_mail import RawMail
from pgmta.errors import ConfigError, SubmissionError
from pgmta.mail.header import header_block, without_bcc
from pgmta.postgres.operator import connected
from pgmta.store.changes import sql_interface
from queued.cli.options.mail_options import mail_arguments, mail_options, print_submitted
from queued.cli.options.queue_command import (
    Column,
    Cut,
    Form,
    command,
    database_of,
    print_rows,
)

_BARE_LF = re.compile(rb"(?<!\r)\n")
_RECIPIENT_FIELDS = ("to", "cc", "bcc")


@command(name="send --raw", json=True)
@click.argument("file", type=click.File("rb"))
@click.option("--sender", help="Reverse-path, '' for none.  [default: the address in From]")
@click.option("--recipient", multiple=True, help="Address of a recipient.")
@click.option(
    "-t",
    "--from-header",
    is_flag=True,
    help="Also take the recipients in To, Cc and Bcc; Bcc is removed.",
)
@mail_options
async def submit(
    config: Path,
    file: BinaryIO,
    sender: str | None,
    recipient: tuple[str, ...],
    from_header: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Put the message in FILE into the queue, and print its id. - is standard input.

    FILE has a header and a body (RFC 5322); its lines may end with LF or CR LF.
    """
    content = file.read()
    header = header_block(content, len(content))
    recipients = list(recipient)
    if from_header:
        recipients += _addresses(header, *_RECIPIENT_FIELDS)
        content = without_bcc(header) + content[len(header) :]
    if sender is None:
        sender = next(iter(_addresses(header, "from")), None)
        if sender is None:
            raise ConfigError(["--sender: the file has no address in From, so name the sender"])
    if not recipients:
        raise ConfigError(["--recipient: name at least one, or take those of the header with -t"])
    mail = RawMail(sender, recipients, _BARE_LF.sub(b"\r\n", content), **mail_arguments(options))
    try:
        await print_submitted(config, mail, as_json=as_json)
    except SubmissionError as error:
        raise ConfigError([str(error)]) from None


@command(json=True)
@click.argument("message_ids", metavar="ID...", type=int, nargs=-1, required=True)
@click.option("--reason", help="Goes to the log.")
async def cancel(
    config: Path, message_ids: tuple[int, ...], reason: str | None, as_json: bool
) -> None:
    """Stop mail that is not delivered yet. A recipient in flight stops after its attempt.

    ID is the number that `queuectl send` printed, or that the client got with its 250.
    """
    found = []
    unknown = False
    async with connected(database_of(config)) as db:
        for number in message_ids:
            try:
                stopped = await sql_interface.cancel(db, number, reason)
            except SubmissionError as error:
                print_line(f"error: message {number}: {error}", err=True)
                unknown = True
                continue
            found.append({"id": number, "stopped": stopped})
            if not as_json:
                print_line(f"message {number}: stopped {stopped} recipients")
    if as_json:
        print_json(found)
    if unknown:
        sys.exit(EXIT_FAILURE)


@command(rows=True)
@click.argument("message_ids", metavar="ID...", type=int, nargs=-1, required=True)
async def status(config: Path, message_ids: tuple[int, ...], form: Form) -> None:
    """Show the state of each recipient of messages, also of those that have left the queue.

    ID is the number that `queuectl send` printed, or that the client got with its 250.
    """
    async with connected(database_of(config)) as db:
        rows = await sql_interface.status(db, message_ids)
    if form.for_machines or rows:
        print_rows(rows, _STATUS, form)
    missing = sorted(set(message_ids) - {row["message_id"] for row in rows})
    for number in missing:
        print_line(f"error: no message {number}, neither in the queue nor in the log", err=True)
    if missing:
        sys.exit(EXIT_FAILURE)


def _reply(row: dict[str, Any]) -> str:
    """Return the last reply, or the failure that was reported after it."""
    if row["returned"]:
        return f"returned: {row['returned']}"
    return f"{row['code'] or ''} {row['reply'] or ''}".strip() or "-"


_STATUS: dict[str, Column] = {
    "ID": "message_id",
    "RECIPIENT": "recipient",
    "STATE": "state",
    "TRIES": "attempts",
    "AT": Cut(lambda row: instant(row["at"])),
    "NEXT ATTEMPT": lambda row: instant(row["next_attempt"]) if row["next_attempt"] else "-",
    "REPLY": Cut(_reply),
}


def _addresses(header: bytes, *names: str) -> list[str]:
    fields = BytesHeaderParser().parsebytes(header)
    values = [str(value) for name in names for value in fields.get_all(name, [])]
    return [address for _, address in getaddresses(values) if address]
