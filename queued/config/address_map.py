"""Maps of addresses: which address becomes which (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from pgmta.config.types import checked
from pgmta.errors import AddressError
from pgmta.mail.address import domains_above, normalise_domain, parse_mailbox, unquoted


class _Target(NamedTuple):
    local: str | None  # None: the local part stays
    domain: str


class AddressMap:
    """Knows which address another one becomes; neither depends on upper and lower case.

    A key is an address, `@domain`, or `@*.domain` for all domains below one. The first of these
    counts, and the longest `@*.domain`. A value is an address, or `@domain` with which the local
    part stays. The new address is looked up again, until nothing changes it. So an address that was
    mapped once stays the same. Raises ValueError for entries that `problems` reports.
    """

    def __init__(self, entries: Mapping[str, str]) -> None:
        self._targets: dict[str, _Target] = {}
        for key, value in entries.items():
            self._targets[_key(key)] = _value(value)
        self.utf8 = not all(value.isascii() for value in entries.values())
        """Whether an address may become one that needs SMTPUTF8 (RFC 6531)."""

    def __len__(self) -> int:
        return len(self._targets)

    def new(self, local: str, domain: str) -> tuple[str, str] | None:
        """Return local part and domain of the new address, None if the address stays."""
        found: tuple[str, str] | None = None
        for _ in range(len(self._targets) + 1):
            new = self._step(local, domain)
            if new is None:
                break
            found = local, domain = new
        return found

    def address(self, address: str) -> str:
        """Return the new address, or the same."""
        local, _, domain = address.rpartition("@")
        new = self.new(local, domain)
        return f"{new[0]}@{new[1]}" if new else address

    def _step(self, local: str, domain: str) -> tuple[str, str] | None:
        """Return the address that one entry makes of another one, None if that stays."""
        target = self._find(local, domain)
        if target is None:
            return None
        new = local if target.local is None else target.local, target.domain
        same = (_plain(new[0]), _normal(new[1])) == (_plain(local), _normal(domain))
        return None if same else new

    def _find(self, local: str, domain: str) -> _Target | None:
        name = _normal(domain)
        found = self._targets.get(f"{_plain(local)}@{name}") or self._targets.get(f"@{name}")
        above = (self._targets.get(f"@*.{each}") for each in domains_above(name))
        return found or next(filter(None, above), None)

    def endless(self, key: str) -> bool:
        """Return whether the addresses that a key is for would be changed without end."""
        local, _, domain = _key(key).rpartition("@")
        # NUL stands for any local part or label: no other key matches it
        address = local or "\0", domain.replace("*", "\0")
        for _ in range(len(self._targets) + 1):
            new = self._step(*address)
            if new is None:
                return False
            address = new
        return True


def problems(entries: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the keys of entries that no map can have, and the reasons."""
    good: dict[str, str] = {}
    seen: dict[str, str] = {}
    for key, value in entries.items():
        try:
            normal = _key(key)
            _value(value)
        except ValueError as error:
            yield key, str(error)
            continue
        if normal in seen:
            yield key, f"is the same address as {seen[normal]!r}"
            continue
        seen[normal] = key
        good[key] = value
    found = AddressMap(good)
    for key in good:
        if found.endless(key):
            yield key, "leads back to itself"


def _key(text: str) -> str:
    local, at, domain = text.rpartition("@")
    if local == "*":
        raise ValueError(f"write @{domain} for all addresses of a domain")
    expected = "expected an address, @domain or @*.domain: "
    if at and not local:
        below = "*." if domain[:2] == "*." else ""
        return f"@{below}{checked(expected, normalise_domain, domain.removeprefix(below))}"
    name = checked(expected, parse_mailbox, text, utf8=True)[1]
    return f"{_plain(local)}@{name}"


def _value(text: str) -> _Target:
    local, at, domain = text.rpartition("@")
    expected = "expected an address or @domain: "
    if at and not local:
        checked(expected, normalise_domain, domain)
        return _Target(None, domain)
    checked(expected, parse_mailbox, text, utf8=True)
    return _Target(local, domain)


def _plain(local: str) -> str:
    """Return a local part in lower case, without quotes that it does not need."""
    return unquoted(local).lower()


@lru_cache(maxsize=4096)
def _normal(domain: str) -> str:
    """Return a domain as maps compare it; text that is no domain stays, in lower case."""
    domain = domain.removesuffix(".")
    try:
        return normalise_domain(domain)
    except AddressError:
        return domain.lower()
