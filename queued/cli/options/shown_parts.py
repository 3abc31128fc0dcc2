"""Options of commands that show composed mail, and how they show it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from pgmta.command import print_json, print_line, print_text
from pgmta.compose.mime import MessageIdentity, compose_head
from pgmta.compose.parts import Parts
from pgmta.errors import PgmtaError
from pgmta.mail.telephone import Segments, is_number, segments_of
from queued.cli.options.mail_page import mail_page, open_page

_MESSAGE_ID = "<0.0000000000000000@localhost>"  # stands in mail that is only shown

_SUBJECT = re.compile(r"(?m)^Subject:.*\r\n(?:[ \t].*\r\n)*")

_OPTIONS = [
    click.option("--text", "view", flag_value="text", help="Print the text alone."),
    click.option("--html", "view", flag_value="html", help="Print the html alone."),
    click.option(
        "--parts",
        "view",
        flag_value="parts",
        help="Print header, text, html and size; of an SMS its segments.",
    ),
    click.option("--open", "opened", is_flag=True, help="Show text and html in the browser."),
]


def view_options[F: Callable[..., Any]](function: F) -> F:
    """Give a command these options, whose values `show_parts` takes."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def show_parts(parts: Parts, *, view: str | None, opened: bool, as_json: bool) -> None:
    """Print mail that is not sent, or show it in the browser. Date and Message-ID are examples.

    A subject is printed as it is read, and not as an encoded word (RFC 2047). The segments of a
    text to a telephone number are on stderr.
    """
    sms = segments_of(parts.body or "") if parts.to and is_number(parts.to[0][1]) else None
    if opened:
        path, found = open_page(mail_page(parts))
        if not found:
            raise PgmtaError(f"no browser was found; the page is in {path}")
        print_line(f"opened {path}")
        return
    octets = compose_head(parts, MessageIdentity(_MESSAGE_ID, datetime.now(UTC)))
    readable = octets.decode()
    if parts.subject.strip(" "):
        readable = _SUBJECT.sub(lambda _: f"Subject: {parts.subject}\r\n", readable, count=1)
    if as_json:
        print_json({"subject": parts.subject, "text": parts.body, "html": parts.html,
                    "size": len(octets), "segments": sms and asdict(sms),
                    "content": octets.decode()})  # fmt: skip
        return
    if view == "parts":
        _print_all(parts, readable.partition("\r\n\r\n")[0], len(octets), sms)
        return
    shown = {"text": parts.body, "html": parts.html, None: readable}[view]
    if shown is None:
        raise PgmtaError(f"the template has no {view}")
    _print_lines(shown)
    if sms:
        print_line(f"SMS: {sms}", err=True)


def _print_all(parts: Parts, header: str, size: int, sms: Segments | None) -> None:
    """Print what a recipient sees, each part below its name."""
    found: dict[str, str | None]
    if sms:
        found = {f"SMS: {sms}": parts.body}
    else:
        found = {"header": header, "plain text": parts.body, "html": parts.html,
                 f"size: {size:,} octets": ""}  # fmt: skip
    for name, text in found.items():
        print_line(f"--- {name}{': none' if text is None else ''}")
        if text:
            _print_lines(text)


def _print_lines(text: str) -> None:
    print_text(text.replace("\r\n", "\n").rstrip("\n"))
