"""Options of commands that submit mail: when, how urgent, and what follows a failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from pgmta.client.own_connection import enqueue
from pgmta.client.results import stored
from pgmta.command import print_json, print_line
from pgmta.compose.submitted_mail import SubmittedMail
from pgmta.postgres.operator import connected
from queued.cli.options.queue_command import (
    database_of,
    parse_pairs,
    read_begin,
    read_time,
)

_OPTIONS = [
    click.option("--at", metavar="TIME", help="Send it then: '2026-12-24 18:00', 'in 2h'."),
    click.option("--deadline", metavar="TIME", help="Do not send it after this time."),
    click.option("--priority", default=5, show_default=True, help="0 is first, 9 is last."),
    click.option("--metadata", multiple=True, metavar="K=V", help="Metadata of the rows."),
    click.option("--key", help="The same key and mail again: only the first one is sent."),
    click.option("--tenant", default="", help="For whom the mail is; keys belong to a tenant."),
    click.option(
        "--on-failed",
        type=click.Choice(["hold", "remove", "bounce"]),
        default="hold",
        show_default=True,
        help="After a final failure: put the row on hold, remove it, or bounce it.",
    ),
    click.option("--unsubscribe", metavar="SCOPE", help="Add a link to unsubscribe from it."),
    click.option("--once", is_flag=True, help="Never a second copy, if an outcome is unknown."),
]


def mail_options[F: Callable[..., Any]](function: F) -> F:
    """Give a command these options; `mail_arguments` reads them."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def mail_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of submit() that the options are. Raises ConfigError."""
    given = {key: value for key, value in options.items() if key not in ("at", "deadline")}
    return {
        **given,
        "metadata": parse_pairs(options["metadata"]),
        "send_at": read_begin(options["at"]),
        "deadline": read_time(options["deadline"], "--deadline"),
    }


async def print_submitted(config: Path, mail: SubmittedMail, *, as_json: bool) -> None:
    """Submit mail, wake the workers, and print the message id. Raises SubmissionError.

    Recipients who get nothing, because they are suppressed, are named too.
    """
    async with connected(database_of(config)) as db:
        found = await enqueue(db, mail, wake=True)
    suppressed = stored(found).suppressed
    if as_json:
        print_json({"id": found, "suppressed": [asdict(each) for each in suppressed]})
    else:
        print_line(str(found))
        for each in suppressed:
            print_line(f"{each.recipient}: {each.reason}", err=True)
