"""The command `queuectl send`: mail as parts, or by a template."""

from __future__ import annotations

import mimetypes
import re
import sys
from pathlib import Path
from typing import Any

import click

from pgmta.compose.submitted_mail import Attachment, Mail, TemplateMail
from pgmta.errors import AddressError, ConfigError, SubmissionError
from pgmta.mail.telephone import is_number, number_of
from queued.cli.options.mail_options import mail_arguments, mail_options, print_submitted
from queued.cli.options.queue_command import command, parse_pairs
from queued.cli.options.word_options import read_words, word_options

_OPTIONS_BY_PART = {
    "sender": "--sender", "from_": "--from", "subject": "--subject", "text": "--text",
    "html": "--html", "cc": "--cc", "bcc": "--bcc", "reply_to": "--reply-to",
    "header": "--header",
}  # fmt: skip
_ARGUMENTS = {
    "recipient": "--to", "body": "--text", "headers": "--header", "attachments": "--attach",
    "params": "--param", "send_at": "--at", "from_": "--from",
}  # fmt: skip
# as submit_mail() of the database finds the address of a mailbox
_ANGLE_ADDRESS = re.compile(r"<([^<>]*)>[ \t]*\Z")
_OF_TEMPLATE = {"param": "--param", "params_file": "--params-file", "version": "--version"}


@command(json=True)
@click.option("--to", multiple=True, metavar="MAILBOX", help="bob@example.com, 'Bob <bob@…>' …")
@click.option("--cc", multiple=True, metavar="MAILBOX", help="Gets a copy.")
@click.option("--bcc", multiple=True, metavar="MAILBOX", help="Gets a copy; no reader sees it.")
@click.option("--from", "from_", metavar="MAILBOX", help="Who writes.  [default: the sender]")
@click.option("--sender", help="Reverse-path, '' for none.  [default: the address in --from]")
@click.option("--reply-to", metavar="MAILBOX", help="The address for answers.")
@click.option("--subject", help="One line.")
@click.option("--text", metavar="TEXT", help="Plain text; @FILE reads a file, @- standard input.")
@click.option("--html", metavar="HTML", help="HTML, from a file in the same way.")
@click.option("--header", multiple=True, metavar="NAME=VALUE", help="Another header field.")
@click.option("--attach", multiple=True, metavar="FILE[:TYPE]", help="Attach a file.")
@click.option("--picture", multiple=True, metavar="ID=FILE", help="A picture of the html: cid:ID.")
@click.option("--template", metavar="NAME", help="Use a template, for one recipient.")
@click.option("--version", type=int, help="Version of the template.  [default: the last one]")
@word_options
@mail_options
async def send(
    config: Path,
    to: tuple[str, ...],
    attach: tuple[str, ...],
    picture: tuple[str, ...],
    template: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Compose mail from parts or a template, put it into the queue, and print its id.

    A recipient may be a telephone number, such as +491701234567, which gets the text by SMS.
    """
    parts = {name: options.pop(name) for name in _OPTIONS_BY_PART}
    of_template = {name: options.pop(name) for name in _OF_TEMPLATE}
    to = tuple(map(_recipient, to))
    given = {**mail_arguments(options), "attachments": _attachments(attach, picture)}
    _refuse(of_template if template is None else parts,
            "with --template" if template is None else "without --template")  # fmt: skip
    if template is None:
        mail: Mail | TemplateMail = _mail(to, parts, given)
    elif len(to) != 1:
        raise ConfigError(["--to: a template is for one recipient, so name one"])
    else:
        values = read_words(of_template["param"], of_template["params_file"])
        mail = TemplateMail(template=template, recipient=to[0], params=values,
                            version=of_template["version"], **given)  # fmt: skip
    try:
        await print_submitted(config, mail, as_json=as_json)
    except SubmissionError as error:
        flag = _ARGUMENTS.get(error.argument, "--" + error.argument.replace("_", "-"))
        rest = str(error).removeprefix(f"{error.argument}:")
        raise ConfigError([f"{flag}:{rest}" if error.argument else rest]) from None


def _recipient(text: str) -> str:
    """Return a telephone number in E.164, and other text as it is. Raises ConfigError."""
    try:
        return number_of(text) if is_number(text) else text
    except AddressError as error:
        raise ConfigError([f"--to: {error}"]) from None


def _refuse(options: dict[str, Any], when: str) -> None:
    """Refuse options that have no effect. Raises ConfigError."""
    names = {**_OPTIONS_BY_PART, **_OF_TEMPLATE}
    for name, value in options.items():
        if value not in (None, ()):
            raise ConfigError([f"{names[name]}: it counts only {when}"])


def _mail(to: tuple[str, ...], parts: dict[str, Any], given: dict[str, Any]) -> Mail:
    sender, from_ = parts["sender"], parts["from_"]
    if sender is None:
        if not from_:
            raise ConfigError(["--from: it is missing, and --sender too"])
        named = _ANGLE_ADDRESS.search(from_)
        sender = named[1] if named else from_
    subject = parts["subject"]
    if subject is None:
        if not any(map(is_number, to)):
            raise ConfigError(["--subject: it is missing"])
        subject = ""
    return Mail(
        sender=sender, to=to, subject=subject, body=_text("--text", parts["text"]),
        html=_text("--html", parts["html"]), cc=parts["cc"], bcc=parts["bcc"],
        reply_to=parts["reply_to"], from_=from_, headers=parse_pairs(parts["header"], "--header"),
        **given,
    )  # fmt: skip


def _text(flag: str, value: str | None) -> str | None:
    """Return a text, from a file if it begins with @. Raises ConfigError."""
    if value is None or not value.startswith("@"):
        return value
    try:
        octets = sys.stdin.buffer.read() if value == "@-" else Path(value[1:]).read_bytes()
        return octets.decode()
    except OSError as error:
        raise ConfigError([f"{flag} {value}: {error.strerror or error}"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"{flag} {value}: is not UTF-8"]) from None


def _attachments(attach: tuple[str, ...], picture: tuple[str, ...]) -> list[Attachment]:
    pictures = [_attachment("--picture", name, None, content_id)
                for content_id, name in parse_pairs(picture, "--picture").items()]  # fmt: skip
    files = []
    for each in attach:
        name, colon, kind = each.rpartition(":")
        typed = bool(colon) and "/" in kind and not Path(each).exists()
        files.append(_attachment("--attach", name if typed else each, kind if typed else None))
    return pictures + files


def _attachment(
    flag: str, name: str, kind: str | None, content_id: str | None = None
) -> Attachment:
    path = Path(name)
    guessed, encoding = mimetypes.guess_type(path.name)
    kind = kind or (guessed if guessed and not encoding else "application/octet-stream")
    try:
        return Attachment(path.name, path.read_bytes(), kind, content_id)
    except OSError as error:
        raise ConfigError([f"{flag} {name}: {error.strerror or error}"]) from None
