"""The message as a program gives it: line ends, and the header fields that smtpd wants."""

from __future__ import annotations

import os
import pwd
import re
import time
from collections.abc import Iterable

from smtpd.sendmail.addresses import listed
from smtpd.sendmail.exits import DATA_ERROR, Exit

_FIELD = re.compile(rb"[!-9;-~]+[ \t]*:")
_LINE_END = re.compile(rb"\r\n|\r|\n")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9 _'-]*")


def until_dot(lines: Iterable[bytes]) -> bytes:
    """Return the octets up to a line that has only a dot, or all of them."""
    taken = []
    for line in lines:
        if line.rstrip(b"\r\n") == b".":
            break
        taken.append(line)
    return b"".join(taken)


class SubmittedMessage:
    """A header and a body with CRLF at the end of each line (RFC 5322, section 2.1)."""

    def __init__(self, octets: bytes) -> None:
        octets = _LINE_END.sub(b"\r\n", octets)
        if octets[:5] == b"From ":  # the first line of an mbox file
            octets = octets[octets.find(b"\r\n") + 2 :] if b"\r\n" in octets else b""
        self.fields, self.body = _split(octets)
        if self.body and not self.body.endswith(b"\r\n"):
            self.body += b"\r\n"

    @property
    def octets(self) -> bytes:
        """The whole message."""
        return b"".join(self.fields) + b"\r\n" + self.body

    def values_of(self, name: str) -> list[bytes]:
        """Return the values of the fields of that name, unfolded."""
        start = name.lower().encode()
        return [
            value.replace(b"\r\n", b"").strip()
            for field in self.fields
            for key, _, value in [field.partition(b":")]
            if key.strip().lower() == start
        ]

    def remove_fields(self, name: str) -> None:
        """Remove all fields of that name."""
        start = name.lower().encode()
        self.fields = [f for f in self.fields if f.partition(b":")[0].strip().lower() != start]

    def recipients(self, domain: str) -> list[str]:
        """Return the addresses in To, Cc and Bcc, or in Resent-To … if there are any.

        A recipient of Bcc is no business of the others, so these fields are removed (RFC 5322,
        section 3.6.3). Raises Exit with code 65 if a field can't be read.
        """
        resent = [
            value for name in ("to", "cc", "bcc") for value in self.values_of(f"resent-{name}")
        ]
        prefix = "resent-" if resent else ""
        found = []
        for name in ("to", "cc", "bcc"):
            for value in self.values_of(prefix + name):
                text = value.decode("utf-8", "surrogateescape")
                found += [qualified(a, domain) for a in listed(text, prefix + name) if a]
        self.remove_fields(f"{prefix}bcc")
        return found

    def complete(self, sender: str, full_name: str) -> None:
        """Add From, Date and Message-ID where they are missing (RFC 6409, section 8)."""
        now = time.time()
        if not self.values_of("from"):
            address = sender or "MAILER-DAEMON"
            name = _phrase(full_name)
            text = f"{name} <{address}>" if name else address
            self.fields.append(f"From: {text}\r\n".encode("utf-8", "surrogateescape"))
        if not self.values_of("date"):
            text = time.strftime("%a, %d %b %Y %H:%M:%S %z", time.localtime(now))
            self.fields.append(f"Date: {text}\r\n".encode())
        if not self.values_of("message-id"):
            domain = sender.rpartition("@")[2] or "localhost"
            unique = f"{int(now):x}.{os.urandom(10).hex()}"
            self.fields.append(f"Message-ID: <{unique}@{domain}>\r\n".encode())


def _split(octets: bytes) -> tuple[list[bytes], bytes]:
    """Return the fields of the header, each with its folded lines, and the body."""
    fields: list[bytes] = []
    at = 0
    while at < len(octets):
        end = octets.find(b"\r\n", at)
        end = len(octets) if end < 0 else end + 2
        line = octets[at:end]
        if line == b"\r\n":
            return fields, octets[end:]
        if line[:1] in b" \t" and fields:
            fields[-1] += line
        elif _FIELD.match(line):
            fields.append(line if line.endswith(b"\r\n") else line + b"\r\n")
        else:
            break  # the body begins without an empty line before it
        at = end
    return fields, octets[at:]


def _phrase(name: str) -> str:
    """Return a display name for From (RFC 5322, section 3.4)."""
    name = " ".join(name.split())
    if _PLAIN_NAME.fullmatch(name):
        return name
    if not name.isascii():
        from base64 import b64encode

        words = [name[at : at + 12] for at in range(0, len(name), 12)]
        return " ".join(f"=?utf-8?b?{b64encode(w.encode('utf-8', 'replace')).decode()}?="
                        for w in words)  # fmt: skip
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def qualified(address: str, domain: str) -> str:
    """Return the address without angle brackets; one without a domain gets this one."""
    address = address.strip().removeprefix("<").removesuffix(">")
    if any(char in address for char in "\r\n\0"):
        raise Exit(DATA_ERROR, f"no address: {address!r}")
    return address if not address or "@" in address else f"{address}@{domain}"


def caller() -> tuple[str, str]:
    """Return login name and full name of the user who runs the command."""
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:
        return f"uid{os.getuid()}", ""
    name = entry.pw_gecos.split(",")[0].replace("&", entry.pw_name.capitalize())
    return entry.pw_name, name
