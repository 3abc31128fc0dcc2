"""A header as it leaves: without Bcc and internal hosts, with addresses of the route (pure)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from pgmta.config.types import Network
from pgmta.mail.address_list import AddressSpan, UnreadableError, replaced
from pgmta.mail.header import MAX_STORED_HEADER_OCTETS, PART
from pgmta.model import Item
from queued.config import ShapingRewrite
from queued.config.address_map import AddressMap
from queued.rewriting.verp import VerpAddresses, VerpKeys

_MAX_VALUE_OCTETS = 4096  # the rest of a value is not looked at
_FOLD = re.compile(rb"[ \t\r\n]++")
_NAME = rb"[A-Za-z0-9._-]{1,255}"
_FROM_CLIENT = re.compile(rb"from (\S{1,255})", re.IGNORECASE)  # the name that the client gave
_BY = re.compile(rb"(?:^| )by (" + _NAME + rb")", re.IGNORECASE)
_LITERAL = re.compile(rb"[\[(](?:IPv6:)?([0-9A-Fa-f:.]{2,45})[])]", re.IGNORECASE)
_BARE_NAME = re.compile(rb"(" + _NAME + rb")(?= |\[|$)")


class InternalHosts:
    """The networks and names of internal hosts, as the configuration has them."""

    def __init__(self, words: Iterable[str]) -> None:
        self._networks: list[Network] = []
        self._names: set[str] = set()
        self._domains: list[str] = []
        for word in words:
            try:
                self._networks.append(ipaddress.ip_network(word))
            except ValueError:
                if word.startswith("*."):
                    self._domains.append(word[1:])
                else:
                    self._names.add(word)
        self._every = "*" in self._names

    def sent_or_took(self, value: bytes) -> bool:
        """Return whether the Received field with this value names an internal host.

        It does by the client's address, or by the name of server or client. The name that a client
        gave counts only if the server noted no address: anybody can give any name.
        """
        if self._every:
            return True
        text = _FOLD.sub(b" ", value[:_MAX_VALUE_OCTETS]).strip()
        client = _FROM_CLIENT.match(text)
        server = _BY.search(text, client.end() if client else 0)
        names = [server[1]] if server else []
        if client:
            given = client[1]
            noted = text[client.end() : server.start() if server else None]
            address = _LITERAL.search(noted)
            if address:
                names += _BARE_NAME.findall(noted[: address.start()])
            else:
                address = _LITERAL.fullmatch(given)
                names.append(given)
            if address and self._contains(address[1].decode()):
                return True
        return any(self._is_internal(name.decode("latin-1").lower()) for name in names)

    def _contains(self, text: str) -> bool:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any(address in each or (mapped and mapped in each) for each in self._networks)

    def _is_internal(self, name: str) -> bool:
        name = name.removesuffix(".")
        return name in self._names or any(name.endswith(domain) for domain in self._domains)


_BCC_NAMES = frozenset({b"bcc", b"resent-bcc"})
_RECIPIENT_NAMES = (b"to", b"cc", b"resent-to", b"resent-cc")
_RESENT_PREFIX = b"resent-"
_MAX_MAPPED_OCTETS = 1 << 17  # of the fields of one map: so many take the event loop 0.3 s
# Callers use both patterns directly, so mail without Bcc costs next to nothing.
BEGINS_WITH_BCC = re.compile(rb"(?:[Rr][Ee][Ss][Ee][Nn][Tt]-)?[Bb][Cc][Cc][ \t]*:").match
"""Finds a Bcc field at the beginning of content."""

# Each alternative begins with a set or a letter, which is quick.
BCC_OR_END = re.compile(
    rb"\n(?:[Bb][Cc][Cc][ \t]*:()|[Rr][Ee][Ss][Ee][Nn][Tt]-[Bb][Cc][Cc][ \t]*:()|\r\n|\n)"
).search
"""Finds a Bcc field of a header, with a group, or the end of the header."""


@dataclass(slots=True)
class Rewritten:
    """Content after rewriting, and what could not be done, for the log."""

    content: bytes
    problems: list[str] = field(default_factory=list)


class Rewriting:
    """The changes to the mail of a route; without a section only Bcc fields go."""

    def __init__(
        self, entry: ShapingRewrite | None = None, keys: VerpKeys | None = None, name: str = ""
    ) -> None:
        entry = entry or ShapingRewrite()
        self.name = name
        """The route, for operators."""
        self.entry = entry
        self.verp = VerpAddresses(entry.verp, keys) if entry.verp and keys else None
        self._sender = AddressMap(entry.sender) if isinstance(entry.sender, dict) else None
        authors, recipients = AddressMap(entry.from_), AddressMap(entry.to)
        self._maps: dict[bytes, AddressMap] = {}
        if authors:
            for word in entry.from_fields:
                self._maps[word.lower().encode()] = authors
                self._maps[_RESENT_PREFIX + word.lower().encode()] = authors
        if recipients:
            self._maps |= dict.fromkeys(_RECIPIENT_NAMES, recipients)
        words = [word.lower().encode() for word in entry.remove]
        self._removed = _BCC_NAMES | {word for word in words if not word.endswith(b"*")}
        self._removed_prefixes = tuple(word[:-1] for word in words if word.endswith(b"*"))
        self._hosts = InternalHosts(entry.remove_received) if entry.remove_received else None
        self.adds_utf8 = any(each.utf8 for each in (authors, recipients))
        """Whether a header may need SMTPUTF8 that did not."""
        self.in_header = bool(self._maps or words or self._hosts)
        """Whether more than Bcc fields may change in a header."""

    def sender(self, item: Item, now: datetime) -> str:
        """Return the reverse-path of a row; the null reverse-path stays."""
        if not item.sender:
            return ""
        if self.verp:
            return self.verp.address(item.message_id, item.id, now)
        return self._sender.address(item.sender) if self._sender else item.sender

    def content(self, content: bytes) -> Rewritten:
        """Return content with a rewritten header.

        Fields behind the first MB stay as they are.
        """
        found = Rewritten(content)
        end = min(len(content), MAX_STORED_HEADER_OCTETS)
        cut = len(content) > MAX_STORED_HEADER_OCTETS
        # octets that may still be mapped: in fields of authors, and of recipients
        left = {False: _MAX_MAPPED_OCTETS, True: _MAX_MAPPED_OCTETS}
        parts: list[bytes] = []
        done = position = 0
        while match := PART.match(content, position, end):
            if cut and match.end() == end:
                found.problems.append("the header is over 1 MB: its rest stays as it is")
                break
            start, position = position, match.end()
            if not match["name"]:  # the line that a mailbox file puts before a message
                continue
            name = match["name"].lower()
            if self._goes(name, match["value"]):
                if start > done:
                    parts.append(content[done:start])
                done = position
                if parts and content[position : position + 1] == b".":
                    parts[-1] = _safe_end(parts[-1], content[start:position])
            elif addresses := self._maps.get(name):
                to = name in _RECIPIENT_NAMES
                if left[to] < 0:
                    continue
                left[to] -= len(match["value"])
                if left[to] < 0:
                    found.problems.append(
                        f"{name.decode()} and such fields after it stay: over 128 KB"
                    )
                    continue
                value = self._value(name, match["value"], addresses, found)
                if value is not None:
                    parts += [content[done : match.start("value")], value]
                    done = match.end("value")
        if done:
            found.content = b"".join([*parts, content[done:]])
        return found

    def _goes(self, name: bytes, value: bytes) -> bool:
        if name in self._removed or (
            self._removed_prefixes and name.startswith(self._removed_prefixes)
        ):
            return True
        return self._hosts is not None and name == b"received" and self._hosts.sent_or_took(value)

    def _value(
        self, name: bytes, value: bytes, addresses: AddressMap, found: Rewritten
    ) -> bytes | None:
        """Return the new value of an address field, None if it stays."""

        def change(place: AddressSpan) -> bytes | None:
            new = addresses.new(_text(place.local), _text(place.domain))
            return f"{new[0]}@{new[1]}".encode("utf-8", "surrogateescape") if new else None

        try:
            new, whole = replaced(value, change)
        except UnreadableError as error:
            found.problems.append(f"{name.decode()} stays as it is: {error}")
            return None
        if not whole:
            found.problems.append(f"{name.decode()} has parts that are no addresses: they stay")
        return new if new != value else None


def _safe_end(before: bytes, removed: bytes) -> bytes:
    """Return the octets before a removed field, for a dot that follows it.

    A dot after CRLF gets a transparency dot. After a bare LF it may end the data for the next hop.
    """
    if removed.endswith(b"\r\n") and before.endswith(b"\n") and not before.endswith(b"\r\n"):
        return before[:-1] + b"\r\n"
    return before


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogateescape")


BCC_ONLY = Rewriting()
"""The rewriting of mail whose route asks for none: only Bcc is removed."""
