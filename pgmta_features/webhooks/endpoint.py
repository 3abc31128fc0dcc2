"""What an endpoint is: its URL, the kinds of events that it gets, and its condition (pure)."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

from pgmta.config.types import hint
from pgmta.errors import AddressError
from pgmta.mail.address import domain_of, normalise_domain
from pgmta.password import KEY_PREFIX
from pgmta.selection import Selection, parse

MAX_URL_CHARACTERS = 2000
"""Of a URL."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
"""The name of an endpoint: letters, digits and . _ -"""
CONDITION_FIELDS = ("sender", "recipient", "domain", "tenant", "metadata")
"""What a condition may be about, as `queuectl list` has it."""

_OF_RECIPIENTS = ("recipient", "domain")
_MAX_CONDITION_TEXTS = 100
_MAX_RECIPIENT_PATTERNS = 10  # each is compared with each recipient of a mail
_MAX_TEXT_CHARACTERS = 500
_LEAST_FREE_PORT = 1024  # below it, public hosts are asked at the ports of HTTP alone
_PORTS = {"https": 443, "http": 80}
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_VISIBLE = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class EndpointUrl:
    """A URL of HTTP, as a request needs it. `host` is in A-labels, or an address."""

    tls: bool
    host: str
    port: int
    target: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a URL. Raises ValueError, whose text does not repeat it: it may have a secret."""
        if len(text) > MAX_URL_CHARACTERS or not _VISIBLE.fullmatch(text):
            raise ValueError(f"a URL has at most {MAX_URL_CHARACTERS} visible ASCII characters")
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise ValueError("no URL such as https://shop.example/mail-events") from None
        if parts.scheme not in _PORTS or not parts.hostname or port == 0:
            raise ValueError("no URL such as https://shop.example/mail-events")
        if "@" in parts.netloc:
            raise ValueError("a URL can't have a login: receivers verify the signature")
        if "#" in text:
            raise ValueError("a URL of an endpoint can't have a fragment")
        query = f"?{parts.query}" if parts.query else ""
        return cls(
            parts.scheme == "https",
            _host(parts.hostname),
            port or _PORTS[parts.scheme],
            f"{parts.path or '/'}{query}",
        )

    @property
    def authority(self) -> str:
        """The field Host (RFC 9110, section 7.2)."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = _PORTS["https" if self.tls else "http"]
        return host if self.port == usual else f"{host}:{self.port}"

    @property
    def usual_port(self) -> bool:
        """Whether a public host may be asked at this port."""
        return self.port in _PORTS.values() or self.port >= _LEAST_FREE_PORT


def _host(name: str) -> str:
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        pass
    with suppress(AddressError):
        host = normalise_domain(name.removesuffix("."))
        # 127.1 and 0x7f.1 are addresses for the C library
        if not _NUMBER.fullmatch(host.rpartition(".")[2]):
            return host
    raise ValueError("the host is neither a name nor an IP address")


def is_foreign(tenant: str | None, viewer: str | None, created_by: str) -> bool:
    """Return whether an endpoint is that of a tenant or key, who may not reach our networks."""
    return bool(tenant or viewer) or created_by.startswith(KEY_PREFIX)


def read_condition(given: Mapping[str, Any]) -> Selection:
    """Return the mail of a condition: texts by field, which are alternatives; all fields must hold.

    The texts are those of the filters of `queuectl list`: `*` stands for any text, and those of
    metadata are `key=value`. Raises ValueError, which begins with the field.
    """
    texts: dict[str, list[str]] = {}
    for field, values in given.items():
        if field not in CONDITION_FIELDS:
            raise ValueError(f"{field[:80]!r}: unknown key; {hint(field, CONDITION_FIELDS)}")
        if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
            raise ValueError(f"{field}: expected a list of texts")
        if any(len(each) > _MAX_TEXT_CHARACTERS or "\0" in each for each in values):
            raise ValueError(f"{field}: a text has at most {_MAX_TEXT_CHARACTERS} characters")
        texts[field] = values
    if sum(map(len, texts.values())) > _MAX_CONDITION_TEXTS:
        raise ValueError(f"a condition has at most {_MAX_CONDITION_TEXTS} texts")
    patterns = [text for field in _OF_RECIPIENTS for text in texts.get(field, []) if "*" in text]
    if len(patterns) > _MAX_RECIPIENT_PATTERNS:
        raise ValueError(f"at most {_MAX_RECIPIENT_PATTERNS} texts about recipients have a *")
    try:
        return parse(**texts)
    except ValueError as error:
        raise ValueError(str(error).removeprefix("--")) from None


@dataclass(frozen=True, slots=True)
class _EventMail:
    """The mail of an event, with the fields that a selection asks for."""

    sender: str
    recipient: str
    tenant: str
    metadata: str

    @property
    def domain(self) -> str:
        return domain_of(self.recipient)


def fits(condition: Selection, document: str) -> bool:
    """Return whether the mail of an event, by its JSON document, meets a condition.

    Of an event about several recipients one has to meet it.
    """
    event: dict[str, Any] = json.loads(document)
    recipients: Sequence[str] = event.get("recipients") or [event.get("recipient", "")]
    metadata = json.dumps(event.get("metadata", {}))
    sender, tenant = event.get("sender", ""), event.get("tenant", "")
    each = Selection(tuple(g for g in condition.groups if g[0].field in _OF_RECIPIENTS))
    common = Selection(tuple(g for g in condition.groups if g[0].field not in _OF_RECIPIENTS))
    # an event may have thousands of recipients, and queued delivers mail meanwhile
    return common.takes(_EventMail(sender, "", tenant, metadata)) and any(
        each.takes(_EventMail(sender, to, tenant, metadata)) for to in recipients
    )
