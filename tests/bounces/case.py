"""One case: a directory with the hosts' script, the mail, the configuration and the expectation.

- `case.yaml`: `about`, `hosts`, `mail`, `queued`, `listener`, `command`; and the expectation:
  `rows`, `log`, `reports`, `saw`. Domains of hosts are HOST.CASE.test; `a` has the senders.
- `message.eml`: the content, with LF for CRLF. Without it the content is that of `default.eml`.
- `dsn*.eml`: each DSN that arrives, octet for octet, with wildcards.

`$CASE` stands for the case's name. Wildcards: `%*` any text of a line; `%**` any octets; `%NAME`
a word, the same one at each place of this name; `%DATE` and `%DAY` times; `%ORIGINAL` the content
that was sent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from tests.bounces.hosts import Host

CASES = Path(__file__).parent / "cases"
Plan = dict[str, Any]
_TOKEN = re.compile(rb"%(\*\*|\*|[A-Z]+)")
_FIXED = {
    b"*": rb"[^\r\n]*",
    b"**": rb"(?s:.*)",
    b"DATE": rb"[A-Z][a-z]{2}, \d\d? [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}",
    b"DAY": rb"\d{4}-\d\d-\d\d \d\d:\d\d UTC",
}


@dataclass
class Mail:
    """A message on its way in: by SMTP, or by SQL if rows have `columns`."""

    recipients: dict[str, str] = field(default_factory=dict)  # parameters of RCPT
    sender: str = "alice@a.$CASE.test"
    parameters: str = ""  # of MAIL
    many: int = 0  # recipients user0@…, by SQL
    octets: int = 0  # of content, at least
    login: str = ""
    columns: Plan = field(default_factory=dict)
    submit: Plan | None = None  # arguments of the SQL function


@dataclass
class Case:
    """A case; `rows`, `log` and `reports` have a line for each row of the table."""

    name: str
    about: str
    folder: Path
    mail: list[Mail]
    hosts: dict[str, Host] = field(default_factory=dict)
    queued: Plan = field(default_factory=dict)
    listener: Plan = field(default_factory=dict)  # of smtpd, instead of the usual one
    command: list[str] = field(default_factory=list)  # of queuectl, once all rows have settled
    settled: list[str] = field(default_factory=list)  # rows before the command
    rows: list[str] = field(default_factory=list)
    log: list[str] | None = None
    reports: list[str] | None = None
    saw: dict[str, list[str]] = field(default_factory=dict)  # commands by host, expressions
    mails: list[str] | None = None  # MAIL of each DSN
    all_in_one: int = 0  # recipients of the only DSN
    content: bytes = b""

    @property
    def dsns(self) -> list[bytes]:
        """The expected DSNs, with wildcards."""
        return [self.fill(_crlf(path)) for path in sorted(self.folder.glob("dsn*.eml"))]

    def fill(self, octets: bytes) -> bytes:
        """Put the name of the case in."""
        return octets.replace(b"$CASE", self.domain_label.encode())

    @property
    def domain_label(self) -> str:
        """The name as a label of a domain."""
        return self.name.replace("_", "-")


def _crlf(path: Path) -> bytes:
    return path.read_bytes().replace(b"\n", b"\r\n")


def matches(pattern: bytes, octets: bytes, original: bytes) -> bool:
    """Return whether octets are as a text with wildcards says."""
    if original:  # it may have 50 MB
        octets = octets.replace(original, b"%ORIGINAL")
    expression, seen, end = b"", set[bytes](), 0
    for token in _TOKEN.finditer(pattern):
        expression += re.escape(pattern[end : token.start()])
        end, name = token.end(), token[1]
        if name == b"ORIGINAL":
            expression += token[0]
        elif name in _FIXED:
            expression += _FIXED[name]
        elif name in seen:
            expression += rb"(?P=%s)" % name
        else:
            seen.add(name)
            expression += rb"(?P<%s>[^\s<>\"]+)" % name
    return re.fullmatch(expression + re.escape(pattern[end:]), octets) is not None


def _typed[T](kind: type[T], plan: Plan, where: str) -> T:
    known = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    assert set(plan) <= known, f"{where}: unknown keys {sorted(set(plan) - known)}"
    return kind(**plan)


def load(folder: Path) -> Case:
    """Return the case of a directory. Raises AssertionError for a mistake in it."""
    name = folder.name
    text = (folder / "case.yaml").read_text(encoding="utf-8")
    plan = yaml.safe_load(text.replace("$CASE", name.replace("_", "-")))
    mails = [_typed(Mail, mail, name) for mail in plan.pop("mail")]
    for mail in mails:
        mail.sender = mail.sender.replace("$CASE", name.replace("_", "-"))
    scripts = {"a": {}} | plan.pop("hosts", {})
    hosts = {host: _typed(Host, script or {}, name) for host, script in scripts.items()}
    for host in hosts.values():
        if host.once_reported:
            host.reported = lambda: hosts["a"].kept
    message = folder / "message.eml"
    return _typed(
        Case,
        {
            "name": name,
            "folder": folder,
            "mail": mails,
            "hosts": hosts,
            "content": _crlf(message if message.exists() else CASES.parent / "default.eml"),
            **plan,
        },
        name,
    )


def all_cases() -> list[Case]:
    """Return every case with mail, by name."""
    return [load(path.parent) for path in sorted(CASES.glob("*/case.yaml"))]
