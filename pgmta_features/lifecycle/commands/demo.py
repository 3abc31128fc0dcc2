"""`queuectl lifecycle demo`: accounts whose mail arrives in the sink of `make run`."""

from __future__ import annotations

import mailbox
import re
import secrets
import time
from pathlib import Path

from pgmta.command import print_line
from pgmta.config.loader import load
from pgmta.errors import PgmtaError
from pgmta.postgres.operator import connected
from pgmta_features.lifecycle.accounts import insert_accounts
from queued.cli.options.queue_command import command, database_of
from queued.config import whole_model

_MAIL_TIMEOUT_S = 30.0
_LINK = re.compile(r"http://\S+/activate\?token=[A-Za-z0-9_-]{86}")


@command()
async def demo(config: Path) -> None:
    """Insert three accounts, and print the links of their mail; `make run` has to run."""
    name = secrets.token_hex(3)
    logins = [f"{each}-{name}" for each in ("ann", "bob", "eve")]
    async with connected(database_of(config)) as db:
        await insert_accounts(db, [(f"{login}@example.com", login) for login in logins])
    print_line(f"inserted the accounts {', '.join(logins)}; waiting for their mail")
    sink = load(config, whole_model()).environment.directory.resolve() / "sink"
    links = _links(sink, logins)
    for login in logins:
        print_line(f"{login:12} {links[login]}")


def _links(sink: Path, logins: list[str]) -> dict[str, str]:
    """Return the link in the mail of each login. Raises PgmtaError if it does not come."""
    found: dict[str, str] = {}
    end = time.monotonic() + _MAIL_TIMEOUT_S
    while len(found) < len(logins):
        if time.monotonic() > end:
            left = ", ".join(login for login in logins if login not in found)
            raise PgmtaError(f"no mail for {left} in {sink} within {_MAIL_TIMEOUT_S:.0f} s")
        if sink.is_dir():
            for message in mailbox.Maildir(sink, create=False):
                to = str(message["Delivered-To"] or "").strip("<>").partition("@")[0]
                content = message.get_payload(decode=True)
                text = content.decode("utf-8", "replace") if isinstance(content, bytes) else ""
                if to in logins and (link := _LINK.search(text)):
                    found[to] = link[0]
        time.sleep(0.2)
    return found
