"""The options that choose rows, or mail in queue and log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from pgmta.command import print_line
from pgmta.errors import ConfigError
from pgmta.states import Status
from pgmta.store.queue.conditions import case_hint, check_conditions
from pgmta.store.queue.filters import filter_condition

_SENDER = click.option("--sender", multiple=True, help="Reverse-path, * for any text.")
_RECIPIENT = click.option(
    "--recipient", multiple=True, help="Address of the recipient, * for any text."
)
_TENANT = click.option("--tenant", multiple=True, help="For whom the mail is, * for any text.")
_DOMAIN = click.option("--domain", multiple=True, help="Domain of the recipient, * for any text.")
_SUBMITTED_BY = click.option(
    "--submitted-by",
    multiple=True,
    metavar="WHO",
    help="Who handed it over: a user, or key:NAME of the HTTP API; * for any text.",
)
_MAIL_OPTIONS = (
    _SENDER,
    _RECIPIENT,
    _DOMAIN,
    _TENANT,
    click.option(
        "--metadata", multiple=True, metavar="K=V", help="Metadata; K= finds rows without K."
    ),
)
_LOG_OPTIONS = (
    _RECIPIENT,
    _DOMAIN,
    _SENDER,
    _TENANT,
    click.option(
        "--message-id",
        "message_id_header",
        multiple=True,
        help="Message-ID of the header, * for any text.",
    ),
    click.option(
        "--client",
        multiple=True,
        metavar="IP",
        help="Client that handed it over: address or network.",
    ),
    _SUBMITTED_BY,
    click.option(
        "--metadata", multiple=True, metavar="K=V", help="Metadata; K= finds mail without K."
    ),
)
_PRIORITY = click.option("--priority", multiple=True, help="Priority: 3, '<=3', 2..5; 0 is first.")
_ROW_OPTIONS = (
    click.option("--where", metavar="SQL", help="Condition on columns of queue."),
    click.option("--id", type=int, multiple=True, help="Message id."),
    click.option(
        "--status",
        multiple=True,
        type=click.Choice([status.value for status in Status], case_sensitive=False),
        help="Status of the row.",
    ),
    click.option("--age", multiple=True, help="Time since acceptance: '>2h', '<10m', 10m..2h."),
    click.option("--attempts", multiple=True, help="Attempts so far: 3, '>3', 2..5."),
    click.option("--reply", multiple=True, metavar="PATTERN", help="Text within the last reply."),
    click.option(
        "--hold-reason",
        multiple=True,
        metavar="PATTERN",
        help="Text within the reason of a hold; 'TEXT*' begins with it.",
    ),
)


def mail_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose mail; the command gets them as keywords for `parse`."""
    for option in reversed((*_MAIL_OPTIONS, _PRIORITY)):
        command = option(command)
    return command


def search_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options by which queue and log are searched, as keywords for `Wanted`."""
    for option in reversed(_LOG_OPTIONS):
        command = option(command)
    return command


def filter_options(command: Callable[..., Any], *, priority: bool = True) -> Callable[..., Any]:
    """Add these and the options on the state of rows, as keywords for `condition`.

    Without `priority` the command has an option of that name itself.
    """
    for option in reversed((*_MAIL_OPTIONS, *([_PRIORITY] if priority else ()), *_ROW_OPTIONS)):
        command = option(command)
    return command


def queue_options(command: Callable[..., Any], *, priority: bool = True) -> Callable[..., Any]:
    """Add those and who handed mail over, which a standing rule can't ask of a row."""
    return _SUBMITTED_BY(filter_options(command, priority=priority))


async def condition(uri: str, options: dict[str, Any]) -> str | None:
    """Return the condition of the options, --where checked by PostgreSQL; None: every row.

    Raises ConfigError.
    """
    where = options.get("where")
    if where is not None:
        await check_conditions(uri, {"--where": where})
        if hint := case_hint(where):
            print_line(f"warning: {hint}", err=True)
    try:
        return filter_condition(**options)
    except ValueError as error:
        raise ConfigError([str(error)]) from None
