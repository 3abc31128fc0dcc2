"""The whole of shaping.yaml: routes and logins. Twin of etc/shaping.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from pydantic import Field, PrivateAttr

from pgmta.config.loader import Problem
from pgmta.config.types import Section, hint, is_address
from queued.config.retry import Retry
from queued.config.shaping_login import ShapingLogin, read_password
from queued.config.shaping_route import ShapingRoute
from queued.config.shaping_verp import ShapingVerp, read_verp_key


class Shaping(Section):
    """The whole of shaping.yaml."""

    logins: dict[str, ShapingLogin] = Field(default={}, description="names and passwords")
    routes: list[ShapingRoute] = Field(
        default=[], description="the first that matches says where mail goes"
    )
    verp: ShapingVerp = Field(default=ShapingVerp())
    _passwords: dict[str, str] = PrivateAttr(default={})
    _verp_keys: list[bytes] = PrivateAttr(default=[])

    @property
    def verp_keys(self) -> tuple[bytes, ...]:
        """The keys of VERP addresses; empty until `read_passwords` has read them."""
        return tuple(self._verp_keys)

    def password(self, login: str) -> str:
        """Return the password of a login; empty until `read_passwords` has read it."""
        return self._passwords.get(login, "")

    def read_passwords(self, folder: Path) -> list[Problem]:
        """Read passwords and keys; their files are relative to `folder`. Return the mistakes."""
        problems: list[Problem] = []
        for name, login in self.logins.items():
            try:
                self._passwords[name] = read_password(folder / login.password_file)
            except ValueError as error:
                problems.append((("logins", name, "password_file"), str(error)))
        for number, file in enumerate(self.verp.keys):
            try:
                self._verp_keys.append(read_verp_key(folder / file))
            except ValueError as error:
                problems.append((("verp", "keys", number), str(error)))
        return problems

    def with_retry(self, usual: Retry) -> Shaping:
        """Return the same, and each `retry` has from the section what the route does not say."""
        routes = [
            route.model_copy(update={"retry": route.retry.over(usual)}) if route.retry else route
            for route in self.routes
        ]
        return self.model_copy(update={"routes": routes})

    def problems(self, usual_tls: str = "best") -> list[Problem]:
        """Return the mistakes that no single key has; `usual_tls` is delivery.tls.mode."""
        found: list[Problem] = []
        names: dict[str, int] = {}
        for number, route in enumerate(self.routes):
            for key, reason in chain(self._wrong(route), _wrong_dane(route, usual_tls)):
                found.append((("routes", number, key), reason))
            for keys, reason in route.retry.problems() if route.retry else ():
                found.append((("routes", number, "retry", *keys), reason))
            if route.rewrite:
                found += ((("routes", number, "rewrite", *key), reason)
                          for key, reason in route.rewrite.problems())  # fmt: skip
                if route.rewrite.verp and not self.verp.keys:
                    where = "routes", number, "rewrite", "sender"
                    found.append((where, "needs a key: `verp.keys` has none"))
            if route.name in names:
                reason = f"routes[{names[route.name]}] has the same name"
                found.append((("routes", number, "name"), reason))
            elif route.name:
                names[route.name] = number
        for number, route in enumerate(self.routes[:-1]):
            if takes_all(route):
                reason = "takes all mail, so the routes after it are never used"
                found.append((("routes", number), reason))
                break
        return found

    def _wrong(self, route: ShapingRoute) -> Iterator[tuple[str, str]]:
        """Yield keys of a route that do not fit together, and the reasons."""
        if route.login is not None and route.login not in self.logins:
            advice = hint(route.login, self.logins) if self.logins else "there are no logins"
            yield "login", f"no login {route.login!r}; {advice}"
        if not route.to:
            for key in ("login", "implicit"):
                if getattr(route, key):
                    yield key, "needs hosts in `to`, not mx"
            if route.protocol == "lmtp":
                yield "protocol", "lmtp needs hosts in `to`, not mx"
        if route.implicit and route.tls == "none":
            yield "tls", "is none, but implicit is true"
        ports = (host.port or route.port for host in route.to)
        if 465 in ports and "implicit" not in route.model_fields_set:
            yield "implicit", "is missing: port 465 speaks TLS from the first octet (RFC 8314)"
        if route.protocol == "lmtp" and 25 in (route.port, *(host.port for host in route.to)):
            yield "protocol", "lmtp must not use port 25 (RFC 2033, section 5)"


def _wrong_dane(route: ShapingRoute, usual_tls: str) -> Iterator[tuple[str, str]]:
    """Yield the key that asks for TLSA records of an address, and the reason."""
    found = next((host.host for host in route.to if is_address(host.host)), None)
    if found and (route.tls or usual_tls) == "dane":
        words = f"is dane, but no TLSA record can be for {found}; write the host's name"
        if route.tls:
            yield "tls", f"{words} in `to`, or tls: verify"
        else:
            yield "to", f"delivery.tls.mode {words}, or add tls: verify"


def takes_all(route: ShapingRoute) -> bool:
    """Return whether a route is for all mail."""
    every = all(words is None or "*" in words for words in (route.domain, route.sender_domain))
    return every and route.sender is None and route.tenant is None and not route.metadata
