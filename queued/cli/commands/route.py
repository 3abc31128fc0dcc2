"""`queuectl route`: where mail for an address goes, and what workers remember of its TLS."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import psycopg

from pgmta.action import Action
from pgmta.command import EXIT_FAILURE, instant, print_json, print_line
from pgmta.config.environment import Environment
from pgmta.config.types import HostPort
from pgmta.errors import AddressError, DeliveryError, PgmtaError, StoreUnavailable
from pgmta.mail.address import normalise_domain, parse_mailbox, parse_recipient
from pgmta.mail.telephone import NUMBER_DOMAIN, is_number
from pgmta.model import Item, StsPolicy
from pgmta.postgres.locate import existing
from pgmta.postgres.operator import connect_operator, connected
from pgmta.store.changes.overview import Overview
from pgmta.store.records.tls_knowledge import BrokenHost, TlsKnowledge
from queued.cli.options.ceiling_lines import ceiling_lines
from queued.cli.options.queue_command import command, parse_pairs
from queued.config import SMTP_TRANSPORTS, read_config, whole_route
from queued.delivery.smtp.smtp_parameters import parameters_of
from queued.delivery.smtp.smtp_transport import SmtpTransport
from queued.delivery.smtp.survey import SurveyedHost, survey
from queued.delivery.tls.tls_memory import TlsMemory
from queued.delivery.tls.tls_policy import TlsMode
from queued.delivery.transport.destination import Destination
from queued.delivery.transports import parsers
from queued.outgoing.check_stage import NO_ROUTE_FOR_NUMBERS
from queued.routing.ceiling import ceiling
from queued.routing.routes import Routed, Routes


class RouteMemory:
    """The policies and the broken hosts of the database; without `knowledge` there are none."""

    def __init__(
        self, knowledge: TlsKnowledge | None = None, hosts: dict[str, BrokenHost] | None = None
    ) -> None:
        self._knowledge = knowledge
        self.functions = TlsMemory(self._find, is_broken=self._is_broken, note_failure=self._note)
        """The functions that the transport uses."""
        self.hosts = hosts or {}
        """Hosts whose TLS failed twice a while ago, by host:port."""
        self.kept: StsPolicy | None = None
        """The MTA-STS policy that was found in the database."""
        self.reasons: dict[str, str] = {}
        """The reasons for which the TLS of a host failed now, by host:port."""

    async def _find(self, domain: str) -> StsPolicy | None:
        try:
            self.kept = await self._knowledge.policy(domain) if self._knowledge else None
        except psycopg.Error as error:
            raise StoreUnavailable(" ".join(str(error).split())) from error
        return self.kept

    async def _is_broken(self, host: str) -> bool:
        return host in self.hosts

    async def _note(self, host: str, reason: str, begun: float) -> None:
        self.reasons[host] = reason


@asynccontextmanager
async def route_memory(
    environment: Environment, minimum: str
) -> AsyncIterator[tuple[RouteMemory, str]]:
    """Yield the memory, and why it is not that of the workers, or ''.

    `minimum` is the lowest version of TLS.
    """
    try:
        db = await connect_operator(existing(environment))
    except StoreUnavailable as error:
        yield RouteMemory(), " ".join(str(error).split())
        return
    try:
        try:
            knowledge = TlsKnowledge(db)
            memory, problem = RouteMemory(knowledge, await knowledge.broken(minimum)), ""
        except psycopg.Error as error:
            memory, problem = RouteMemory(), " ".join(str(error).split())
        yield memory, problem
    finally:
        await db.close()


@command(json=True)
@click.option("--sender", default="", help="Address of the sender; default: mail without one.")
@click.option("--tenant", default="", help="For whom the mail is; default: no tenant.")
@click.option(
    "--priority", type=click.IntRange(0, 9), default=5, show_default=True, help="0 is first."
)
@click.option(
    "--metadata", "pairs", multiple=True, metavar="KEY=VALUE", help="Metadata; may be repeated."
)
@click.option(
    "--probe", is_flag=True, help="Connect to each host: EHLO, STARTTLS, login, QUIT. No mail."
)
@click.argument("address")
async def route(
    config: Path,
    address: str,
    sender: str,
    tenant: str,
    priority: int,
    pairs: tuple[str, ...],
    probe: bool,
    as_json: bool,
) -> None:
    """Show where the mail for an address goes: route, hosts, TLS policy.

    It reads the files, and what workers remember in the database: MTA-STS policies, and hosts that
    get plain text because their TLS failed. Hosts are in the order of one delivery. Among equals
    each connection has a new order. A domain does for the address. Exits with 1 if no host can be
    used, or if no route takes telephone numbers and the address is one.
    """
    domain = _domain(address, "address")
    if sender:
        _domain(sender, "sender")
    settings = read_config(config, parsers(), passwords=probe)
    recipient, redirect = address, settings.delivery.redirect
    if redirect:
        recipient, domain = parse_mailbox(redirect, utf8=True)
    mail = Item(0, 0, sender, recipient, domain, 1, datetime.now(UTC), 0)
    mail.tenant, mail.priority = tenant, priority
    mail.metadata = json.dumps(parse_pairs(pairs))
    routed = Routes(settings.routes, settings.routing).find(mail)
    asked = {"address": address, "redirect": redirect}
    found_ceiling = ceiling(settings.delivery, routed)
    if routed.destination.transport not in SMTP_TRANSPORTS:
        await _show_other(asked, routed, found_ceiling, settings.environment, as_json=as_json)
        return
    if domain == NUMBER_DOMAIN:
        raise PgmtaError(NO_ROUTE_FOR_NUMBERS)
    async with route_memory(settings.environment, settings.delivery.tls.minimum) as (
        memory,
        problem,
    ):
        if problem:
            print_line(f"warning: what workers remember of TLS is not known: {problem}", err=True)
        smtp = SmtpTransport(settings.environment.hostname, settings.delivery, memory.functions)
        found, error = await _survey(smtp, routed.destination, probe=probe)
    usable = [each for each in found if not (each.error or (each.answer and each.answer.error))]
    hosts = [_host(each, memory, routed) for each in found]
    shown = {**asked, **_routed(routed), "mta_sts": _kept(memory), "hosts": hosts,
             "error": error or None, "ceiling": found_ceiling}  # fmt: skip
    if as_json:
        print_json(shown)
    else:
        _print(_route_lines(shown, None if problem else await delivering(settings.environment)))
        for host in hosts:
            print_line("")
            _print(_host_lines(host))
    if not usable:
        sys.exit(EXIT_FAILURE)


async def delivering(environment: Environment) -> dict[str, int] | None:
    """Return the number of workers that deliver, by process; None if the database is away."""
    try:
        async with connected(existing(environment)) as db:
            workers = await Overview(db).workers()
    except (StoreUnavailable, psycopg.Error):
        return None
    return Counter(
        each["owner"] for each in workers if each["alive"] and each["action"] == Action.DELIVER
    )


async def _show_other(
    asked: dict[str, Any],
    routed: Routed,
    found_ceiling: dict[str, Any],
    environment: Environment,
    *,
    as_json: bool,
) -> None:
    """Show a route whose transport has no hosts that this command knows."""
    destination = routed.destination
    found = {"route": routed.route, "to": str(destination), "transport": destination.transport}
    if as_json:
        print_json({**asked, **found, "ceiling": found_ceiling})
        return
    _print([_staging(asked), *found.items()])
    _print(ceiling_lines(found_ceiling, await delivering(environment)))


def _staging(shown: dict[str, Any]) -> tuple[str, str | None]:
    """Return the line of staging, which says that all mail has another recipient."""
    redirect = shown["redirect"]
    return "staging", redirect and f"it goes to {redirect} instead (delivery.redirect)"


async def _survey(
    smtp: SmtpTransport, destination: Destination, *, probe: bool
) -> tuple[list[SurveyedHost], str]:
    try:
        return await survey(smtp, destination, probe=probe), ""
    except DeliveryError as error:
        return [], error.line


def _domain(address: str, name: str) -> str:
    try:
        if "@" in address or is_number(address):
            return parse_recipient(address)[1]
        return normalise_domain(address)
    except AddressError as error:
        raise click.BadParameter(str(error), param_hint=name) from None


def _routed(routed: Routed) -> dict[str, Any]:
    destination = routed.destination
    parameters = parameters_of(destination)
    login = parameters.login
    return {
        "route": routed.route,
        "to": str(destination),
        "transport": destination.transport,
        "implicit_tls": parameters.implicit,
        "tls": str(parameters.tls) if parameters.tls else None,
        "login": login and {"name": login.name, "user": login.user},
        **{each.key: each.text(routed.limits) for each in whole_route().shown_limits()},
        "rewrite": rewriting.entry.shown if (rewriting := routed.rewriting) else None,
    }


def _words(value: Any) -> str:
    """Return a value of the configuration on one line."""
    if isinstance(value, dict):
        return ", ".join(f"{key} -> {new}" for key, new in value.items())
    return ", ".join(value) if isinstance(value, list) else str(value)


def _key(found: SurveyedHost) -> str:
    return str(HostPort(found.host.name, found.host.port))


def _kept(memory: RouteMemory) -> dict[str, Any] | None:
    """Return the MTA-STS policy that workers keep."""
    if not (kept := memory.kept):
        return None
    until = datetime.now(UTC) + timedelta(seconds=kept.left)
    return {"id": kept.id, "mode": kept.mode, "mx": list(kept.mx), "until": until}


def _broken(found: SurveyedHost, memory: RouteMemory) -> BrokenHost | None:
    """Return what makes queued leave out STARTTLS with a host, if anything does."""
    policy = found.policy
    opportunistic = policy and policy.mode is TlsMode.OPPORTUNISTIC and not policy.requiretls
    return memory.hosts.get(_key(found)) if opportunistic else None


def _host(found: SurveyedHost, memory: RouteMemory, routed: Routed) -> dict[str, Any]:
    policy, answer, broken = found.policy, found.answer, _broken(found, memory)
    login = parameters_of(routed.destination).login
    return {
        "host": found.host.name,
        "port": found.host.port,
        "secure": found.host.secure,
        "addresses": found.addresses,
        "left_out": found.left_out,
        "tls": policy
        and {
            "mode": str(policy.mode),
            "source": policy.source,
            "evidence": policy.evidence,
            "names": list(policy.names),
        },
        "plain_text": broken and {"until": broken.until, "reason": broken.reason},
        "error": found.error or None,
        "answer": answer
        and {
            "address": answer.facts.address,
            "tls_version": answer.facts.tls_version or None,
            "tls_cipher": answer.facts.tls_cipher or None,
            "tls_verified": answer.facts.tls_verified or None,
            "tls_error": memory.reasons.get(_key(found)),
            "login": login.user if login and not answer.error else None,
            "extensions": answer.extensions,
            "error": answer.error or None,
        },
    }


def _print(lines: Iterable[tuple[str, str | None]]) -> None:
    """Write the lines that have a text, each behind its label."""
    for label, text in lines:
        if text:
            print_line(f"{label:<10} {text}")


def _route_lines(
    shown: dict[str, Any], workers: dict[str, int] | None
) -> Iterator[tuple[str, str | None]]:
    yield _staging(shown)
    yield "route", shown["route"]
    yield "to", shown["to"]
    if shown["transport"] == "lmtp" or shown["implicit_tls"]:
        tls = ", TLS from the first octet" if shown["implicit_tls"] else ""
        yield "transport", f"{shown['transport']}{tls}"
    yield "tls", shown["tls"]
    if login := shown["login"]:
        yield "login", f"{login['name']}, as {login['user']}"
    for each in whole_route().shown_limits():
        yield each.key, shown[each.key]
    for key, value in (shown["rewrite"] or {}).items():
        yield "rewrite", f"{key}: {_words(value)}"
    if kept := shown["mta_sts"]:
        yield "mta-sts", f"{kept['mode']}, id {kept['id']}, kept until {instant(kept['until'])}"
    yield from ceiling_lines(shown["ceiling"], workers)
    yield "error", shown["error"]


def _host_lines(host: dict[str, Any]) -> Iterator[tuple[str, str | None]]:
    yield "host", str(HostPort(host["host"], host["port"]))
    yield "addresses", ", ".join(host["addresses"])
    for line in host["left_out"]:
        yield "left out", line
    if policy := host["tls"]:
        evidence = f": {policy['evidence']}" if policy["evidence"] else ""
        yield "policy", f"{policy['mode']}, by {policy['source']}{evidence}"
    if broken := host["plain_text"]:
        until = instant(broken["until"])
        yield "plain text", f"until {until}, as TLS failed: {broken['reason']}"
    yield "error", host["error"]
    if not (answer := host["answer"]):
        return
    if answer["error"]:
        yield "answer", answer["error"]
        return
    tls = f"no TLS: {answer['tls_error']}" if answer["tls_error"] else "no TLS"
    if answer["tls_version"]:
        tls = f"{answer['tls_version']} {answer['tls_cipher']}, verified: {answer['tls_verified']}"
    yield "answer", f"{answer['address']}: {tls}"
    yield "login", answer["login"] and f"accepted, as {answer['login']}"
    words = (f"{key} {value}".strip() for key, value in answer["extensions"].items())
    yield "offers", ", ".join(words) or "nothing"
