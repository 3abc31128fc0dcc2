"""Which destination the mail for a recipient goes to (pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Literal, cast

from pgmta.config.types import HostPort
from pgmta.mail.address import domains_above
from pgmta.model import OTHER_MAIL, Item, Labelled, NamedHop, RouteLimit
from pgmta.report_row import ReportRow
from pgmta.selection import Selection, Term, domain_as_stored
from queued.config import SMTP_TRANSPORTS, Retry, Shaping, ShapingRoute, domain_term
from queued.delivery.dns.hop import Hop
from queued.delivery.smtp.smtp_parameters import SmtpLogin, SmtpParameters
from queued.delivery.tls.tls_policy import TlsMode
from queued.delivery.transport.destination import Destination, TlsWish, TransportParameters
from queued.rewriting.rewrite import Rewriting
from queued.rewriting.verp import ReturnAddresses, VerpKeys

_MAX_CACHED_DOMAINS = 10_000  # in each cache
_SHOWN_CHARACTERS = 200  # of the name of a next hop
_DEFAULT_PORTS = {"smtp": 25, "lmtp": 24}
_IMPLICIT_TLS_PORT = 465

type Mail = Item | ReportRow
"""A row, of which the fields of a selection count."""


@dataclass(frozen=True, slots=True)
class Routed:
    """A destination, and the terms of the route that leads to it.

    `route` is its name, for operators. Mail with the same `group` may share a transaction: it is
    rewritten alike, too, and waits for the same.
    """

    destination: Destination
    route: str
    retry: Retry | None = field(default=None, repr=False, compare=False)
    rewriting: Rewriting | None = field(default=None, repr=False, compare=False)
    limits: tuple[RouteLimit, ...] = field(default=(), repr=False, compare=False)
    """What its mail waits for beside a connection, such as a time of a rate."""
    key: str = field(default="", compare=False)
    """Where its file has it, such as `routes[2]`."""
    group: str = field(init=False, repr=False, compare=False)
    next_hop: str = field(init=False, repr=False, compare=False)
    """The name in figures: the hosts of the route, else the recipient's domain."""

    def __post_init__(self) -> None:
        key = self.destination.key
        name = self.destination.domain or str(self.destination.parameters)
        object.__setattr__(self, "next_hop", name[:_SHOWN_CHARACTERS])
        group = f"{key} {self.rewriting.name}" if self.rewriting else key
        group = " ".join((group, *(each.name for each in self.limits)))
        object.__setattr__(self, "group", group)


@dataclass(slots=True)
class Route:
    """A route of shaping.yaml: a destination, and the mail for it.

    For MX hosts the destination has no domain: `to` fills it in.
    """

    domain: Term | None
    """Recipient domains; None: all."""
    rest: Selection
    """The other conditions."""
    labelled: Labelled
    routed: Routed
    _found: dict[str, Routed] = field(default_factory=dict)

    @property
    def by_mail(self) -> bool:
        """Whether more than the recipient's domain counts."""
        return bool(self.rest.groups)

    def to(self, domain: str) -> Routed:
        """Return the destination of mail for a domain that takes the route."""
        if not self.labelled.by_domain:
            return self.routed
        found = self._found.get(domain)
        if found is None:
            if len(self._found) >= _MAX_CACHED_DOMAINS:
                self._found.clear()
            destination = replace(self.routed.destination, domain=domain)
            found = self._found[domain] = replace(self.routed, destination=destination)
        return found

    @classmethod
    def of(
        cls, entry: ShapingRoute, number: int, parameters: TransportParameters, keys: VerpKeys
    ) -> Route:
        """Return a route as the file has it, with its number there."""
        name = entry.name or f"routes[{number}]"
        rewriting = Rewriting(entry.rewrite, keys, name) if entry.rewrite else None
        destination = Destination(entry.transport, parameters)
        domain, rest = domain_term("domain", entry.domain), entry.of_path & entry.of_row
        labelled = Labelled(entry.mail, f"route {number}", entry.by_domain)
        key = f"routes[{number}]"
        routed = Routed(destination, name, entry.retry, rewriting, entry.limits, key)
        return cls(domain, rest, labelled, routed)


class Routes:
    """The routes of shaping.yaml, of which the first match wins, and after them the short form.

    In `routes` of queued.yaml an exact domain wins over the longest `*.domain`, then `*`.
    """

    def __init__(
        self, short: Mapping[str, HostPort | Literal["mx"]], shaping: Shaping | None = None
    ) -> None:
        self.known: dict[str, Routed] = {}
        """Destinations that `find` has returned for domains whose mail has only this one."""
        self._short = dict(short)
        self._routes = _routes(shaping) if shaping else []
        self._candidates: dict[str, list[Route]] = {}
        last = max((n for n, route in enumerate(self._routes) if route.by_mail), default=-1)
        self._labelled = self._routes[: last + 1]
        self.retries = [r.routed.retry for r in self._routes if r.routed.retry]
        """The retry policies of routes that have their own."""

    def may_use_dane(self, usual: TlsMode) -> bool:
        """Return whether TLSA records of MX hosts may count; `usual` is delivery.tls.mode."""
        found = (r.routed.destination.parameters for r in self._routes if r.labelled.by_domain)
        modes = {each.tls for each in found if isinstance(each, SmtpParameters)}
        if "mx" in self._short.values():
            modes.add(None)
        return any((mode or usual) in (TlsMode.BEST, TlsMode.DANE) for mode in modes)

    @property
    def labelled(self) -> list[Labelled]:
        """The mail that claims leave out by other names than its domain, in order.

        It is empty if the domain alone decides on every destination.
        """
        found: list[Labelled] = []
        for by_mail, routes in groupby(self._labelled, lambda route: route.by_mail):
            if by_mail:
                found += [route.labelled for route in routes]
                continue
            domains = [route.domain for route in routes]
            some = tuple(domain for domain in domains if domain)
            found.append(Labelled(Selection((some,) if all(domains) else ()), OTHER_MAIL))
        return found

    @property
    def limits(self) -> list[RouteLimit]:
        """The mail that claims leave out by its limit, in order; that of routes without one, too.

        It is empty if no route has a limit.
        """
        routes = self._routes
        last = max((n for n, route in enumerate(routes) if route.routed.limits), default=-1)
        return [
            next(iter(route.routed.limits), RouteLimit(route.labelled.selection))
            for route in routes[: last + 1]
        ]

    @property
    def next_hops(self) -> list[NamedHop]:
        """The next hop of some mail, in order: the first selection that has a row names it.

        A row of none has its domain as next hop, as mail by MX has.
        """
        found = [
            NamedHop(r.labelled.selection, "" if r.labelled.by_domain else r.routed.next_hop)
            for r in self._routes
        ]
        # an exact domain wins over the longest pattern
        for pattern in sorted(self._short, key=lambda p: (p[0] == "*", -len(p))):
            routed = self._by_short_form(pattern)
            name = "" if routed.destination.domain else routed.next_hop
            found.append(NamedHop(Selection.every(domain_term("domain", [pattern])), name))
        while found and not found[-1].name:
            found.pop()
        return found

    @property
    def by_mail(self) -> bool:
        """Whether more than the domain decides on some destination."""
        return bool(self._labelled)

    def next_hop(self, mail: Mail) -> str:
        """Return the name of the next hop of mail in figures; its domain if it has no route."""
        try:
            return (self.known.get(mail.domain) or self.find(mail)).next_hop
        except Exception:  # as in `retry`
            return mail.domain[:_SHOWN_CHARACTERS]

    def find(self, mail: Mail) -> Routed:
        """Return the destination of mail; without any route it is the MX of its domain.

        smtpd has normalised the domain. A non-ASCII one comes by SQL and is normalised here,
        because the DNS library would encode it by IDNA 2003. If that fails, it is for its transport
        to refuse it.
        """
        domain = mail.domain
        found = self.known.get(domain)
        if found is None:
            name = domain if domain.isascii() else domain_as_stored(domain)
            route = self._first(name, mail)
            found = route.to(name) if route else self._by_short_form(name)
            if self._settled(name):
                if len(self.known) >= _MAX_CACHED_DOMAINS:
                    self.known.clear()
                self.known[domain] = found
        return found

    def possible(self, domain: str) -> list[Routed]:
        """Return the routes that mail for a domain may take; all but the first depend on more."""
        routes = self._possible(domain)
        found = [route.to(domain) for route in routes]
        if not routes or routes[-1].by_mail:
            found.append(self._by_short_form(domain))
        return found

    def has_name(self, name: str) -> bool:
        """Return whether a route has this name, in lower case."""
        names = (each.routed.route for each in self._routes)
        return any(each.lower() == name for each in (*names, *(f"routes.{p}" for p in self._short)))

    def leading_to(self, destination: Destination) -> list[Routed]:
        """Return the routes whose mail may go to a destination, in order."""
        domain = destination.domain
        found = [
            route.to(domain)
            for route in self._routes
            if not domain or route.domain is None or route.domain.fits(domain)
        ]
        found += [self._by_short_form(each) for each in ([domain] if domain else self._short)]
        usual = replace(destination, wish=TlsWish.NONE)
        return [each for each in found if each.destination.key == usual.key]

    def retry(self, mail: Mail) -> Retry | None:
        """Return the retry policy of the route that mail takes; None if it has no own policy."""
        if not self.retries:
            return None
        try:
            return self.find(mail).retry
        except Exception:  # mail without a route has a result that says so
            return None

    def limits_of(self, mail: Mail) -> tuple[RouteLimit, ...]:
        """Return what mail waits for on its route beside a connection."""
        try:
            return self.find(mail).limits
        except Exception:  # as in `retry`
            return ()

    def label(self, mail: Mail) -> str:
        """Return the text with which claims leave out this mail, and other mail of its next hop.

        It is the domain, unless mail of the domain may have several destinations.
        """
        domain = mail.domain
        if domain in self.known:
            return domain
        route = self._first(domain, mail)
        if self._settled(domain):
            return domain
        if not (route and route.by_mail):
            return f"{OTHER_MAIL} {domain}"
        found = route.labelled
        return f"{found.label} {domain}" if found.by_domain else found.label

    def _settled(self, domain: str) -> bool:
        """Return whether the domain alone decides, once `_first` has seen it."""
        return not any(route.by_mail for route in self._candidates[domain])

    def _first(self, domain: str, mail: Mail) -> Route | None:
        candidates = self._candidates.get(domain)
        if candidates is None:
            if len(self._candidates) >= _MAX_CACHED_DOMAINS:
                self._candidates.clear()
            candidates = self._candidates[domain] = self._possible(domain)
        return next((route for route in candidates if route.rest.takes(mail)), None)

    def _possible(self, domain: str) -> list[Route]:
        """Return the routes that mail for a domain may take; the last one may be for all of it."""
        found: list[Route] = []
        for route in self._routes:
            if route.domain is None or route.domain.fits(domain):
                found.append(route)
                if not route.by_mail:
                    break
        return found

    def _by_short_form(self, domain: str) -> Routed:
        pattern = self._pattern(domain)
        target = self._short.get(pattern, "mx")
        if target == "mx":
            destination = Destination("smtp", SmtpParameters(), domain)
        else:
            hop = Hop(target.host, target.port)
            destination = Destination("smtp", SmtpParameters((hop,)))
        return Routed(destination, f"routes.{pattern}")

    def _pattern(self, domain: str) -> str:
        if domain in self._short:
            return domain
        patterns = (f"*.{above}" for above in domains_above(domain))
        return next((each for each in patterns if each in self._short), "*")


def return_addresses(shaping: Shaping) -> ReturnAddresses:
    """Return the VERP addresses that the routes make."""
    rewritten = (route.rewrite for route in shaping.routes)
    return ReturnAddresses((r.verp for r in rewritten if r and r.verp), _verp_keys(shaping))


def _verp_keys(shaping: Shaping) -> VerpKeys:
    return VerpKeys(shaping.verp_keys, math.ceil(shaping.verp.age / 86400))


def _routes(shaping: Shaping) -> list[Route]:
    logins = {
        name: SmtpLogin(name, login.user, shaping.password(name), tuple(login.mechanisms))
        for name, login in shaping.logins.items()
    }
    keys = _verp_keys(shaping)
    return [
        Route.of(entry, number, _parameters(entry, logins, shaping.secret_values), keys)
        for number, entry in enumerate(shaping.routes)
    ]


def _parameters(
    entry: ShapingRoute, logins: Mapping[str, SmtpLogin], secrets: Mapping[str, str]
) -> TransportParameters:
    # without an import of the transport's code, whose memory a queued without such routes saves
    if with_secrets := getattr(entry.parameters, "with_secrets", None):
        return cast(TransportParameters, with_secrets(secrets))
    if entry.transport not in SMTP_TRANSPORTS:
        return cast(TransportParameters, entry.parameters)
    usual = _IMPLICIT_TLS_PORT if entry.implicit else _DEFAULT_PORTS[entry.transport]
    hops = tuple(
        Hop(host.host, host.port or entry.port or usual, host.weight, host.fallback)
        for host in entry.to
    )
    return SmtpParameters(
        hops,
        None if hops else entry.port,
        entry.implicit,
        TlsMode(entry.tls) if entry.tls else None,
        logins[entry.login] if entry.login else None,
    )
