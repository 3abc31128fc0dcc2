"""Which Received fields are of internal hosts (RFC 5321, section 4.4; pure)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from pgmta.config.types import Network

_MOST = 4096  # octets of a value that are looked at
_FOLD = re.compile(rb"[ \t\r\n]++")
_NAME = rb"[A-Za-z0-9._-]{1,255}"
_FROM = re.compile(rb"from (\S{1,255})", re.IGNORECASE)  # the name that the client gave
_BY = re.compile(rb"(?:^| )by (" + _NAME + rb")", re.IGNORECASE)
_LITERAL = re.compile(rb"[\[(](?:IPv6:)?([0-9A-Fa-f:.]{2,45})[])]", re.IGNORECASE)
_BARE = re.compile(rb"(" + _NAME + rb")(?= |\[|$)")


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
        text = _FOLD.sub(b" ", value[:_MOST]).strip()
        client = _FROM.match(text)
        server = _BY.search(text, client.end() if client else 0)
        names = [server[1]] if server else []
        if client:
            given = client[1]
            noted = text[client.end() : server.start() if server else None]
            address = _LITERAL.search(noted)
            if address:
                names += _BARE.findall(noted[: address.start()])
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
