"""Metadata of a row at intake: from the listener, the client, the addresses or a header (pure)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pgmta.config.metadata_source import MetadataSource
from pgmta.mail.header import header_value


@dataclass(frozen=True, slots=True)
class MessageOrigin:
    """The origin of a message at its end; `header` returns its header block."""

    listener: str
    client: str
    user: str
    sender: str
    header: Callable[[], bytes]


class MetadataRules:
    """The rules of a configuration file: key by key, for each recipient."""

    def __init__(self, rules: Mapping[str, MetadataSource]) -> None:
        self._rules = dict(rules)
        self._of_recipients = {key: rule for key, rule in rules.items() if rule.of_recipient}

    def row_metadata(
        self,
        origin: MessageOrigin,
        recipients: list[tuple[str, str]],
        own: Mapping[str, str] = MappingProxyType({}),
    ) -> list[str]:
        """Return the metadata as JSON for each recipient (mailbox and domain), in order.

        A key whose source is empty and that has no default is left out. `own` are keys of the
        user, which count more than the rules.
        """
        common = {
            key: _derive(rule, _value(rule, origin, "", ""))
            for key, rule in self._rules.items()
            if not rule.of_recipient  # derived once a message: it may search the header
        }
        if not self._of_recipients:
            return [_dump({**common, **own})] * len(recipients)
        return [
            _dump(
                common
                | {
                    key: _derive(rule, _value(rule, origin, mailbox, domain))
                    for key, rule in self._of_recipients.items()
                }
                | dict(own)
            )
            for mailbox, domain in recipients
        ]


def _dump(values: Mapping[str, str | None]) -> str:
    return json.dumps({key: value for key, value in values.items() if value is not None})


def _value(rule: MetadataSource, origin: MessageOrigin, recipient: str, domain: str) -> str:
    name, _, field = rule.source.partition(":")
    if name == "header":
        return header_value(origin.header(), field)
    return {
        "listener": origin.listener,
        "client": origin.client,
        "user": origin.user,
        "sender": origin.sender,
        "sender_domain": origin.sender.rpartition("@")[2].lower(),
        "recipient": recipient,
        "recipient_domain": domain,
    }[name]


def _derive(rule: MetadataSource, value: str) -> str | None:
    if not value:
        return rule.default
    if rule.map:
        return rule.map.get(value, rule.default)
    if rule.buckets:
        digest = hashlib.blake2b(value.lower().encode("utf-8", "replace"), digest_size=8).digest()
        return str(int.from_bytes(digest) % rule.buckets + 1)
    return value[:1000].replace("\0", "")
