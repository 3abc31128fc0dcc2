"""Key `rewrite` of a route in shaping.yaml: maps of addresses, fields, VERP addresses."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from pgmta.config.loader import Problem
from pgmta.config.types import Section, checked, listed, parse_network
from pgmta.mail.address import normalise_domain
from queued.config import address_map
from queued.config.mail_conditions import parse_pattern

MAX_ID_OCTETS = 27
"""The longest id has two numbers of 63 bits and a hyphen."""

HASH_OCTETS = 16

_MAX_LOCAL_PART_OCTETS = 64  # RFC 5321, section 4.5.3.1.1
# lower case, because hosts may change upper case to it
_LITERAL_TEXT = re.compile(r"[a-z0-9+=_.-]*")


class VerpTemplate:
    """The octets of a VERP address beside its id and its hash. Raises ValueError.

    `pattern` matches the local parts of such addresses, with groups for both.
    """

    def __init__(self, text: str) -> None:
        local, at, domain = text.rpartition("@")
        if not at:
            raise ValueError(f"{text!r} has no domain")
        self.domain = checked("", normalise_domain, domain)
        parts = re.split(r"(\{[^{}]*\})", local)
        names, literals = parts[1::2], parts[::2]
        if sorted(names) != ["{hash}", "{id}"]:
            raise ValueError(f"{text!r} needs {{id}} and {{hash}}, each once, before the @")
        if not all(_LITERAL_TEXT.fullmatch(literal) for literal in literals):
            raise ValueError(
                f"only a to z, digits and . + - = _ may be beside {' and '.join(names)}"
            )
        plain = local.format(id="i", hash="h")
        if plain[0] == "." or plain[-1] == "." or ".." in plain:
            raise ValueError("a dot is at an end of the local part, or beside another one")
        longest = len("".join(literals)) + MAX_ID_OCTETS + HASH_OCTETS
        if longest > _MAX_LOCAL_PART_OCTETS:
            raise ValueError(
                f"the local part has up to {longest} octets; "
                f"at most {_MAX_LOCAL_PART_OCTETS} are allowed"
            )
        self.text = f"{local}@{self.domain}"
        groups = {
            "{id}": "(?P<id>[0-9a-v]+-[0-9a-v]+)",
            "{hash}": f"(?P<hash>[0-9a-v]{{{HASH_OCTETS}}})",
        }
        self.pattern = re.compile("".join(groups.get(part) or re.escape(part) for part in parts))

    def address(self, identity: str, mac: str) -> str:
        """Return the address with this id and hash."""
        return self.text.format(id=identity, hash=mac)


# RFC 5322, section 3.6.8; * stands for any further characters
_NAME = re.compile(r"[!-)+-9;-~]+\*?")


def _map_or_template(value: Any) -> Any:
    if value is None or isinstance(value, str | dict):
        return value
    raise ValueError("expected a mapping of addresses, or a text with {id} and {hash}")


def _names(value: Any) -> Any:
    entries = listed(value)
    for entry in entries:
        if not (isinstance(entry, str) and _NAME.fullmatch(entry)):
            raise ValueError(
                f"{entry!r} is no field name; write for example X-Host or X-Internal-*"
            )
    return entries


def _host(entry: Any) -> str:
    try:
        return str(ipaddress.ip_network(str(entry)))
    except ValueError:
        pass
    if isinstance(entry, str) and "/" not in entry and not re.fullmatch(r"[\d.:]+", entry):
        return parse_pattern(entry)
    return str(parse_network(entry))  # whose error says why it is no network


def _hosts(value: Any) -> Any:
    return [_host(entry) for entry in listed(value)]


class ShapingRewrite(Section):
    """The changes to mail that leaves by a route; the stored message stays unchanged."""

    sender: Annotated[dict[str, str] | str | None, BeforeValidator(_map_or_template)] = Field(
        default=None,
        description="addresses of the envelope's sender and their new ones; or a VERP address with "
        "{id} and {hash}, which needs `verp`",
    )
    from_: dict[str, str] = Field(
        default={}, alias="from", description="likewise, for the fields in from_fields"
    )
    from_fields: list[Literal["From", "Sender", "Reply-To"]] = Field(
        default=["From"],
        min_length=1,
        description="From, Sender, Reply-To; with their Resent forms",
    )
    to: dict[str, str] = Field(
        default={}, description="likewise, for To, Cc, Resent-To and Resent-Cc"
    )
    remove: Annotated[list[str], BeforeValidator(_names)] = Field(
        default=[], description="names of fields; X-* for all that begin with X-"
    )
    remove_received: Annotated[list[str], BeforeValidator(_hosts)] = Field(
        default=[],
        description="networks and names of hosts whose Received fields are removed: 10.0.0.0/8, "
        "host.internal, *.internal",
    )

    def problems(self) -> Iterator[Problem]:
        """Yield the mistakes in addresses."""
        maps = {"sender": self.sender, "from": self.from_, "to": self.to}
        for name, entries in maps.items():
            if isinstance(entries, dict):
                for key, reason in address_map.problems(entries):
                    yield (name, key), reason
            elif entries is not None:
                try:
                    VerpTemplate(entries)
                except ValueError as error:
                    yield (name,), str(error)

    @property
    def shown(self) -> dict[str, Any]:
        """The keys that change something, with their values as the file has them."""
        return {k: v for k, v in self.model_dump(by_alias=True, exclude_defaults=True).items() if v}

    @property
    def verp(self) -> str | None:
        """The VERP address, if the sender becomes one."""
        return self.sender if isinstance(self.sender, str) else None
