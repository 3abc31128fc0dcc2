"""Maps of addresses: which address becomes which (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from pgmta.address import normalise_domain, parse_mailbox
from pgmta.errors import AddressError


@dataclass(frozen=True, slots=True)
class _Target:
    key: str
    local: str | None  # None: the local part stays
    domain: str

    @property
    def changes_nothing(self) -> bool:
        local = "" if self.local is None else _plain(self.local)
        return self.key == f"{local}@{_normal(self.domain)}"


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
            normal = _key(key)
            local, domain = _value(value)
            self._targets[normal] = _Target(normal, local, domain)
        self.utf8 = not all(value.isascii() for value in entries.values())
        """Whether an address may become one that needs SMTPUTF8 (RFC 6531)."""

    def __len__(self) -> int:
        return len(self._targets)

    def new(self, local: str, domain: str) -> tuple[str, str] | None:
        """Return local part and domain of the new address, None if the address stays."""
        changed = False
        for _ in range(len(self._targets) + 1):
            target = self._find(local, domain)
            if target is None or target.changes_nothing:
                break
            new = local if target.local is None else target.local, target.domain
            if (_plain(new[0]), _normal(new[1])) == (_plain(local), _normal(domain)):
                break
            local, domain = new
            changed = True
        return (local, domain) if changed else None

    def address(self, address: str) -> str:
        """Return the new address, or the same."""
        local, _, domain = address.rpartition("@")
        new = self.new(local, domain)
        return f"{new[0]}@{new[1]}" if new else address

    def _find(self, local: str, domain: str) -> _Target | None:
        name = _normal(domain)
        found = self._targets.get(f"{_plain(local)}@{name}") or self._targets.get(f"@{name}")
        while found is None and "." in name:
            name = name.partition(".")[2]
            found = self._targets.get(f"@*.{name}")
        return found

    def endless(self, key: str) -> bool:
        """Return whether the addresses that a key is for would be changed without end."""
        key = _key(key)
        local, _, domain = key.rpartition("@")
        # no key is for these names alone
        local, domain = local or "\0", domain.replace("*", "\0")
        for _ in range(len(self._targets) + 1):
            target = self._find(local, domain)
            if target is None or target.changes_nothing:
                return False
            new = local if target.local is None else target.local, target.domain
            if (_plain(new[0]), _normal(new[1])) == (_plain(local), _normal(domain)):
                return False
            local, domain = new
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
    try:
        if at and not local:
            return (
                f"@*.{normalise_domain(domain[2:])}"
                if domain[:2] == "*."
                else f"@{normalise_domain(domain)}"
            )
        _, name = parse_mailbox(text, utf8=True)
    except AddressError as error:
        raise ValueError(f"expected an address, @domain or @*.domain: {error}") from None
    return f"{_plain(local)}@{name}"


def _value(text: str) -> tuple[str | None, str]:
    local, at, domain = text.rpartition("@")
    try:
        if at and not local:
            normalise_domain(domain)
            return None, domain
        parse_mailbox(text, utf8=True)
    except AddressError as error:
        raise ValueError(f"expected an address or @domain: {error}") from None
    return local, domain


def _plain(local: str) -> str:
    """Return a local part in lower case, without the quotes that it may or may not have."""
    if len(local) > 1 and local[0] == local[-1] == '"':
        text, parts = local[1:-1], []
        while text:
            head, backslash, text = text.partition("\\")
            parts += [head, text[:1] if backslash else ""]
            text = text[1:]
        local = "".join(parts)
    return local.lower()


@lru_cache(maxsize=4096)
def _normal(domain: str) -> str:
    """Return a domain as maps compare it; text that is no domain stays, in lower case."""
    domain = domain.removesuffix(".")
    try:
        return normalise_domain(domain)
    except AddressError:
        return domain.lower()
