"""The rules that say which domain signs some mail (pure)."""

from __future__ import annotations

import re
from typing import NamedTuple

from pgmta.errors import AddressError
from pgmta.mail.address import domain_of, mailbox_key, normalise_domain
from pgmta.mail.address_list import UnreadableError, address_spans
from pgmta.model import Item, Origin
from queued.config import Signing, SigningRule
from queued.signing.canonical import Fields

type Rules = tuple[SigningRule, ...]

_PLAIN_MAILBOX = re.compile(
    rb'[ \t]*+(?:[^"<>(),:;@\\]*+<[^"<>(),:;@\\ \t]++@([A-Za-z0-9.-]++)>'
    rb'|[^"<>(),:;@\\ \t]++@([A-Za-z0-9.-]++))[ \t]*+'
)
_MAX_RULE_SETS = 1000  # in memory
_MAX_FROM_OCTETS = 10_000  # in all fields From together
_EVERY_MAIL = SigningRule()


def from_domain(fields: Fields) -> str:
    """Return the domain of the field From, '' if there is none or several.

    Mail that claims to be from two domains gets no signature by its From.
    """
    found = set()
    values = fields.get(b"from", ())
    if sum(map(len, values)) > _MAX_FROM_OCTETS:
        return ""
    for value in values:
        if match := _PLAIN_MAILBOX.fullmatch(value):
            found.add((match[1] or match[2]).decode().lower())
            continue
        try:
            addresses, whole = address_spans(value)
            found.update(normalise_domain(each.domain.decode()) for each in addresses)
        except (UnreadableError, UnicodeDecodeError, AddressError):
            return ""
        if not whole:
            return ""
    return found.pop() if len(found) == 1 else ""


class SigningRules:
    """The rules of a configuration, of which the first match counts."""

    def __init__(self, config: Signing) -> None:
        self._rules: Rules = tuple(config.rules) or (_EVERY_MAIL,)
        self.given = bool(config.rules)
        """Whether there are rules; without them a domain that has no key is no mistake."""
        self._by_address = any(rule.sender is not None for rule in self._rules)
        self._by_sender = self._by_address or any(
            rule.sender_domain is not None or rule.sign == "sender" for rule in self._rules
        )
        self._some: dict[tuple[bool, ...], Rules] = {}
        self._of: dict[Origin | None, Rules] = {}
        self._by_row = any(rule.of_row.groups or rule.submitted is not None for rule in self._rules)

    def name(self, rule: SigningRule) -> str:
        """Return how replies name a rule, which may be one of an older configuration."""
        numbers = (number for number, each in enumerate(self._rules) if each is rule)
        return f"signing.rules[{next(numbers, '')}]"

    def relevant(self, sender: str) -> str:
        """Return as much of a reverse-path as the rules look at."""
        if not self._by_sender:
            return ""
        return sender if self._by_address else domain_of(sender)

    def parts(self, items: list[Item]) -> list[tuple[Rules, list[Item]]]:
        """Return the rules that rows of a message may match, with these rows."""
        if not self._by_row:
            origin = items[0].origin
            if (rules := self._of.get(origin)) is None:
                rules = tuple(rule for rule in self._rules if origin in rule.origin)
                self._of[origin] = rules
            return [(rules, items)]
        found: dict[tuple[bool, ...], list[Item]] = {}
        for item in items:
            found.setdefault(tuple(_takes(rule, item) for rule in self._rules), []).append(item)
        return [(self._fitting(fits), rows) for fits, rows in found.items()]

    def _fitting(self, fits: tuple[bool, ...]) -> Rules:
        """Return the rules that fit; the same object for the same ones."""
        rules = self._some.get(fits)
        if rules is None:
            if len(self._some) >= _MAX_RULE_SETS:
                self._some.clear()
            rules = tuple(rule for rule, fit in zip(self._rules, fits, strict=True) if fit)
            self._some[fits] = rules
        return rules

    def find(self, rules: Rules, sender: str, fields: Fields) -> tuple[SigningRule | None, str]:
        """Return the first rule for mail with this reverse-path and header, and who signs.

        The domain is '' if the mail has none that the rule asks for.
        """
        path = _Path(mailbox_key(sender) if self._by_address else sender, from_domain(fields))
        for rule in rules:
            if rule.of_path.takes(path):
                sign = rule.sign
                if sign == "none":
                    return None, ""
                if sign == "from":
                    return rule, path.from_domain
                return rule, domain_of(sender) if sign == "sender" else sign
        return None, ""


class _Path(NamedTuple):
    """The reverse-path and the domain of From, as fields of a selection."""

    sender: str
    from_domain: str


def _takes(rule: SigningRule, item: Item) -> bool:
    """Return whether a row meets the conditions on rows."""
    if item.origin not in rule.origin:
        return False
    if rule.submitted is not None and rule.submitted is (item.submitted_by is None):
        return False
    try:
        return rule.of_row.takes(item)
    except (ValueError, RecursionError):  # raised for metadata that can't be read
        return False
