"""The mail to the owner of an endpoint that is suspended."""

from __future__ import annotations

import shlex
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP

from pgmta.mail.text import printable
from queued.config import Bounces
from queued.config.bounces import DEFAULT_NAME, split_named

_MAX_SHOWN_CHARACTERS = 200


def make_notice(
    bounces: Bounces,
    hostname: str,
    owner: str,
    name: str,
    url: str,
    why: str,
    reason: str,
) -> tuple[str, bytes]:
    """Return the envelope sender and the content; From is that of DSNs.

    `why` ends a sentence, and `reason` is the last failure.
    """
    origin = bounces.origin or f"{DEFAULT_NAME} <mailer-daemon@{hostname}>"
    shown, address = split_named(origin)
    place = url.partition("?")[0]  # the query may have a secret
    mail = EmailMessage(policy=SMTP)
    mail["From"] = str(Address(display_name=shown, addr_spec=address))
    mail["To"] = owner
    mail["Subject"] = f"Webhook {name} is suspended"
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834
    mail.set_content(
        f"No events are posted to webhook {name} any more: {why}.\n"
        f"\nURL:           {printable(place)[:_MAX_SHOWN_CHARACTERS]}\n"
        f"Last failure:  {printable(reason)[:_MAX_SHOWN_CHARACTERS]}\n"
        "\nEvents wait for as long as they are kept. Once the endpoint works again, enable the\n"
        "webhook, by `enable` of the HTTP API or as an operator:\n"
        f"\n  queuectl webhook enable {shlex.quote(name)}\n"
        "\nIt then gets all events since the last one that it accepted.\n"
    )
    return bounces.postmaster or address, mail.as_bytes()
