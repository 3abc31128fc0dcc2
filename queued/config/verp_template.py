"""The text of a VERP address, with {id} and {hash} (pure)."""

from __future__ import annotations

import re

from pgmta.address import normalise_domain
from pgmta.errors import AddressError

ID = 27
"""Octets of the longest id: two numbers of 63 bits and a hyphen."""

HASH = 16
"""Octets of a hash."""

_MOST = 64  # octets of a local part (RFC 5321, section 4.5.3.1.1)
_LITERAL = re.compile(r"[a-z0-9+=_.-]*")  # hosts may change upper case to lower case


class VerpTemplate:
    """The octets of a VERP address beside its id and its hash. Raises ValueError.

    `pattern` matches the local parts of such addresses, with groups for both.
    """

    def __init__(self, text: str) -> None:
        local, at, domain = text.rpartition("@")
        if not at:
            raise ValueError(f"{text!r} has no domain")
        try:
            self.domain = normalise_domain(domain)
        except AddressError as error:
            raise ValueError(str(error)) from None
        parts = re.split(r"(\{[^{}]*\})", local)
        names, literals = parts[1::2], parts[::2]
        if sorted(names) != ["{hash}", "{id}"]:
            raise ValueError(f"{text!r} needs {{id}} and {{hash}}, each once, before the @")
        if not all(_LITERAL.fullmatch(literal) for literal in literals):
            raise ValueError(
                f"only a to z, digits and . + - = _ may be beside {' and '.join(names)}"
            )
        plain = local.format(id="i", hash="h")
        if plain[0] == "." or plain[-1] == "." or ".." in plain:
            raise ValueError("a dot is at an end of the local part, or beside another one")
        longest = len("".join(literals)) + ID + HASH
        if longest > _MOST:
            raise ValueError(
                f"the local part has up to {longest} octets; at most {_MOST} are allowed"
            )
        self.text = f"{local}@{self.domain}"
        groups = {"{id}": "(?P<id>[0-9a-v]+-[0-9a-v]+)", "{hash}": f"(?P<hash>[0-9a-v]{{{HASH}}})"}
        self.pattern = re.compile("".join(groups.get(part) or re.escape(part) for part in parts))

    def address(self, identity: str, mac: str) -> str:
        """Return the address with this id and hash."""
        return self.text.format(id=identity, hash=mac)
