"""Checks of what others see: DNS, the reverse name, port 25 and the records of DKIM keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

import uvloop

from pgmta.errors import DeliveryError, PgmtaError
from pgmta.model import Item
from pgmta.store.admin.examination import Examination
from queued.cli.commands.route import RouteMemory
from queued.cli.doctor.diagnosis import Check, Diagnosis, error, unknown, warning
from queued.cli.options.shown_keys import UNPUBLISHED, check_keys, shown_keys
from queued.config import SMTP, QueuedConfig
from queued.delivery.dns.dns import Questions
from queued.delivery.smtp.smtp_transport import SmtpTransport
from queued.delivery.smtp.survey import survey
from queued.delivery.tls.tls_policy import TlsMode
from queued.routing.routes import Routes

_SLOW = 2.0  # seconds for an answer of DNS
_PATIENCE = 30.0  # seconds for a host that listens on port 25


class InternetChecks:
    """Checks with the name servers of queued.yaml; `probe` is a domain with MX hosts."""

    def __init__(
        self, path: Path, config: QueuedConfig, examination: Examination | None, probe: str
    ) -> None:
        self._path = path
        self._config = config
        self._ask = examination.ask if examination else None
        self._probe = probe
        self._hostname = config.environment.hostname
        self._routes = Routes(config.routes, config.routing)

    def all(self) -> dict[str, Check]:
        """Return the checks by name; those of mail to MX hosts only if there is such mail."""
        checks: dict[str, Check] = {}
        if self._config.signing.keys or self._config.signing.table:
            checks["DKIM"] = self.dkim
        if self._to_mx:
            checks |= {
                "DNS": self.dns,
                "reverse name": self.reverse_name,
                "port 25": self.port,
            }
        return checks

    @property
    def _to_mx(self) -> bool:
        """Whether mail for the probed domain goes to its MX hosts."""
        destination = self._routes.find(self._mail()).destination
        return destination.transport in SMTP and bool(destination.domain)

    def _mail(self) -> Item:
        address = f"postmaster@{self._probe}"
        return Item(0, 0, "", address, self._probe, 1, datetime.now(UTC), 0)

    def dkim(self) -> Iterator[Diagnosis]:
        """Compare the keys with their records in DNS."""
        try:
            keys = shown_keys(self._path, None, None)
        except PgmtaError as fault:
            yield warning("DKIM", str(fault), "`queuectl dkim new DOMAIN SELECTOR` makes one")
            return
        for key, result in zip(keys, uvloop.run(check_keys(self._config, keys)), strict=True):
            if key.state == UNPUBLISHED:
                yield warning(
                    "DKIM",
                    f"the key {key.key.name} signs nothing yet",
                    f"publish the record that `queuectl dkim dns {key.key.domain}` prints, "
                    f"then `queuectl dkim test {key.key.domain} {key.key.selector}`",
                )
            elif result.error:
                yield error(
                    "DKIM",
                    f"key {key.key.name}: {result.error}",
                    f"`queuectl dkim dns {key.key.domain}` prints the record to be published",
                )

    def dns(self) -> Iterator[Diagnosis]:
        """Ask the name servers for the hosts of the probed domain."""

        async def ask() -> tuple[float, bool]:
            questions = Questions(self._config.delivery.dns)
            began = time.monotonic()
            await questions.ask(self._probe, "MX")
            took = time.monotonic() - began
            return took, await questions.validating()

        remedy = "name others in delivery.dns.servers; a resolver on this host is best"
        try:
            took, validating = uvloop.run(ask())
        except DeliveryError as fault:
            yield error("DNS", f"the name servers do not answer: {fault.line}", remedy)
            return
        if took > _SLOW:
            yield warning("DNS", f"an answer took {took:.1f} s", remedy)
        wanted = self._routes.may_use_dane(TlsMode(self._config.delivery.tls.mode))
        if wanted and not validating:
            yield warning(
                "DNS",
                "the name servers do not validate, so mail is sent without DANE",
                "run a validating resolver on this host, or set delivery.dns.trust_ad",
            )

    def reverse_name(self) -> Iterator[Diagnosis]:
        """Look whether the addresses of environment.hostname lead back to it."""

        async def ask() -> list[tuple[str, list[str]]]:
            questions = Questions(self._config.delivery.dns)
            found = []
            for kind in ("A", "AAAA"):
                for record in (await questions.ask(self._hostname, kind)).records:
                    address = ip_address(record.to_text())
                    if address.is_global:
                        reverse = await questions.ask(address.reverse_pointer, "PTR")
                        names = [each.to_text().rstrip(".").lower() for each in reverse.records]
                        found.append((str(address), names))
            return found

        try:
            found = uvloop.run(ask())
        except DeliveryError as fault:
            yield unknown("reverse name", f"{self._hostname}: {fault.line}")
            return
        remedy = "ask the provider of the address for a PTR record with this name"
        if not found:
            yield warning(
                "reverse name",
                f"environment.hostname, {self._hostname}, has no public address",
                "set environment.hostname to a name with the address from which mail goes out",
            )
        for address, names in found:
            if self._hostname.lower() not in names:
                there = f"leads to {', '.join(names)}" if names else "has no reverse name"
                yield warning("reverse name", f"{address} of {self._hostname} {there}", remedy)

    def port(self) -> Iterator[Diagnosis]:
        """Look whether hosts answer on port 25: by the log, or by the probed domain."""
        if self._ask and self._ask("reached")[0]["reached"]:
            return
        config = self._config

        async def connect() -> str:
            smtp = SmtpTransport(self._hostname, config.delivery, RouteMemory().functions)
            destination = self._routes.find(self._mail()).destination
            try:
                async with asyncio.timeout(_PATIENCE):
                    hosts = await survey(smtp, destination, probe=True)
            except DeliveryError as fault:
                return fault.line
            except TimeoutError:
                return f"no host of {self._probe} answered within {_PATIENCE:.0f} s"
            answers = [each.error or (each.answer.error if each.answer else "") for each in hosts]
            return answers[0] if answers and all(answers) else ""

        if reason := uvloop.run(connect()):
            yield error(
                "port 25",
                f"no connection to a host of {self._probe}: {reason}",
                "ask your provider to open port 25, or route mail to a relay on port 587",
            )
