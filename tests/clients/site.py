"""A running smtpd with a listener of each kind, and a user."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.authority import Authority
from tests.support.daemons import Smtpd
from tests.support.system import System
from tests.support.users import add_user
from tests.support.waiting import PATIENCE, free_port, until

USER, PASSWORD = "shop@example.org", 's3cr"et+/=$x'
HOST = "localhost"
DOMAIN = "example.com"


@dataclass
class Site:
    """Its ports, and questions about what it has taken."""

    system: System
    daemon: Smtpd
    folder: Path
    ca: Path
    internal: int
    submission: int
    implicit: int
    lmtp: int
    proxied: int

    def run(
        self,
        command: Sequence[str | Path],
        text: str | bytes = "",
        within: float = PATIENCE,
        **variables: str,
    ) -> str:
        """Run a client that has to end with 0; return its output."""
        done = subprocess.run(
            command,
            input=text.encode() if isinstance(text, str) else text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            env={**os.environ, "HOME": str(self.folder), "LC_ALL": "C.UTF-8", **variables},
            timeout=within,
            check=False,
        )
        output = done.stdout.decode(errors="replace")
        assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{output}"
        return output

    def file(self, name: str, text: str, mode: int = 0o600) -> Path:
        """Write a file for a client."""
        path = self.folder / name
        path.write_text(text)
        path.chmod(mode)
        return path

    def mail(self) -> list[Mapping[str, Any]]:
        """Return rows with trace and content, in order."""
        rows = self.system.ask(
            "SELECT q.sender, q.recipient, m.submitted_by, m.trace, m.body FROM queue q"
            " JOIN messages m ON m.id = q.message_id ORDER BY q.id"
        )
        return [{**row, "body": bytes(row["body"])} for row in rows]

    def wait(self, count: int, within: float = PATIENCE) -> list[Mapping[str, Any]]:
        """Wait for that number of rows."""
        return until(lambda: mail if len(mail := self.mail()) >= count else None, within) or []

    def submitted(self, token: str, client: str = "127.0.0.1") -> Mapping[str, Any]:
        """Return the only row: it came over TLS from the user, and has that text."""
        (row,) = self.mail()
        assert row["recipient"] == f"alice@{DOMAIN}"
        assert row["sender"] == row["submitted_by"] == USER
        assert re.search(r" with (ESMTP|UTF8SMTP)SA \(TLSv1\.[23] ", row["trace"]), row["trace"]
        assert f"[{client}]" in row["trace"], row["trace"]
        assert token.encode() in row["body"], row["body"]
        return row


@contextmanager
def site(system: System, folder: Path) -> Iterator[Site]:
    """Start one."""
    authority = Authority(folder / "ca")
    ports = {name: free_port() for name in ("submission", "implicit", "lmtp", "proxied")}
    internal = free_port()
    add_user(system.uri, USER, PASSWORD)
    daemon = system.smtpd(
        relay={"networks": ["127.0.0.1"], "domains": [DOMAIN]},
        certificates=[str(authority.issue([HOST]).path)],
        listen=[
            {"port": internal, "role": "internal"},
            {"port": ports["submission"], "role": "submission"},
            {"port": ports["implicit"], "role": "submission", "tls": "implicit"},
            {"port": ports["lmtp"], "role": "relay", "protocol": "lmtp"},
            {"port": ports["proxied"], "role": "submission", "proxy": ["127.0.0.0/8"]},
        ],
        maildrop={"directory": str(folder / "maildrop")},
    )
    yield Site(system, daemon, folder, authority.path, internal, **ports)
