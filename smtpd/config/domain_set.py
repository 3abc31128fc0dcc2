"""A set of domains and of patterns *.domain, such as relay.domains (pure)."""

from __future__ import annotations

from collections.abc import Iterable


class DomainSet:
    """Normalised domains; `*.domain` stands for all domains below it."""

    def __init__(self, domains: Iterable[str]) -> None:
        self._domains = frozenset(domains)

    def __contains__(self, domain: object) -> bool:
        if domain in self._domains:
            return True
        parts = str(domain).split(".")
        return any("*." + ".".join(parts[i:]) in self._domains for i in range(1, len(parts)))
