"""Checks of what others see: DNS, the reverse name, port 25 and the records of DKIM keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import psycopg

from pgmta.errors import DeliveryError, PgmtaError
from pgmta.model import Item
from pgmta.store.admin.examination import Examination
from queued.cli.commands.route import RouteMemory
from queued.cli.doctor.diagnosis import Check, Diagnosis, error, unknown, warning
from queued.cli.options.shown_keys import (
    UNPUBLISHED_STATE,
    KeyCheck,
    ShownKey,
    check_keys,
    shown_keys,
)
from queued.config import SMTP_TRANSPORTS, QueuedConfig
from queued.delivery.dns.resolver import Questions
from queued.delivery.smtp.smtp_transport import SmtpTransport
from queued.delivery.smtp.survey import survey
from queued.delivery.tls.tls_policy import TlsMode
from queued.routing.routes import Routes
from queued.signing.signing_key import zone_line

_SLOW_ANSWER_S = 2.0  # of name servers
_TIMEOUT_S = 10.0  # for all checks together, which run at one time
_LOCAL_RESOLVER_HINT = (
    "`delivery.dns.servers: [127.0.0.1]` in queued.yaml, for a resolver such as unbound here"
)

_QUESTION_TIMEOUT_S = 4.0  # to all name servers

type _AsyncCheck = Callable[[], AsyncIterator[Diagnosis]]


class InternetChecks:
    """Checks with the name servers of queued.yaml; `probe` is a domain with MX hosts."""

    def __init__(
        self, path: Path, config: QueuedConfig, examination: Examination | None, probe: str
    ) -> None:
        self._path = path
        self._config = _hurried(config)
        self._ask = examination.ask if examination else None
        self._probe = probe
        self._hostname = config.environment.hostname
        self._routes = Routes(config.routes, config.routing)
        self._checks: dict[str, _AsyncCheck] = {}
        self._found: dict[str, list[Diagnosis]] = {}
        self._raised: dict[str, Exception] = {}
        self._deadline = 0.0

    def all(self) -> dict[str, Check]:
        """Return the checks by name; those of mail to MX hosts only if there is such mail."""
        if self._config.signing.keys or self._config.signing.table:
            self._checks["DKIM"] = self._dkim
        if self._to_mx:
            self._checks |= {
                "DNS": self._dns,
                "reverse name": self._reverse_name,
                "port 25": self._port,
            }
        return {name: partial(self._result, name) for name in self._checks}

    @property
    def _to_mx(self) -> bool:
        """Whether mail for the probed domain goes to its MX hosts."""
        destination = self._routes.find(self._mail()).destination
        return destination.transport in SMTP_TRANSPORTS and bool(destination.domain)

    def _mail(self) -> Item:
        address = f"postmaster@{self._probe}"
        return Item(0, 0, "", address, self._probe, 1, datetime.now(UTC), 0)

    async def _result(self, name: str) -> AsyncIterator[Diagnosis]:
        """Yield what a check found; the first one that is asked for runs all at one time."""
        if not self._found:
            await self._run_all()
        for each in self._found[name]:
            yield each
        if fault := self._raised.get(name):
            raise fault

    async def _run_all(self) -> None:
        self._questions = Questions(self._config.delivery.dns)
        self._deadline = asyncio.get_running_loop().time() + _TIMEOUT_S
        await asyncio.gather(*(self._run(*each) for each in self._checks.items()))

    async def _run(self, name: str, check: _AsyncCheck) -> None:
        found = self._found[name] = []
        try:
            async with asyncio.timeout_at(self._deadline):
                async for each in check():
                    found.append(each)  # noqa: PERF401 (kept when time is over)
        except TimeoutError:
            found.append(unknown(name, f"no answer within {_TIMEOUT_S:.0f} s", self._by_hand))
        except (psycopg.Error, PgmtaError) as fault:
            self._raised[name] = fault

    @property
    def _by_hand(self) -> str:
        """The command that asks the first of the name servers."""
        servers = self._config.delivery.dns.servers
        where = f"-p {servers[0].port} @{servers[0].host} " if servers else ""
        return f"`dig {where}MX {self._probe}` asks by hand"

    @property
    def _servers(self) -> str:
        servers = self._config.delivery.dns.servers
        return ", ".join(map(str, servers)) or "those of /etc/resolv.conf"

    async def _dkim(self) -> AsyncIterator[Diagnosis]:
        """Compare the keys with their records in DNS."""
        try:
            keys = await shown_keys(self._path, None, None)
        except PgmtaError as fault:
            yield warning("DKIM", str(fault), "`queuectl dkim new DOMAIN SELECTOR` makes one")
            return
        results = await check_keys(self._config, keys, self._deadline - 0.5)
        for key, result in zip(keys, results, strict=True):
            for each in self._of_key(key, result):
                yield each

    def _of_key(self, shown: ShownKey, result: KeyCheck) -> Iterator[Diagnosis]:
        key = shown.key
        test = f"`queuectl dkim test {key.domain} {key.selector}`"
        record = f"publish {zone_line(key.owner, shown.record)}" if shown.record else ""
        if key.problem:
            remedy = f"mend its file, or its entry in signing.keys of queued.yaml; then {test}"
            yield error("DKIM", f"key {key.name}: {key.problem}", remedy)
        elif shown.state == UNPUBLISHED_STATE:
            yield warning(
                "DKIM", f"the key {key.name} signs nothing yet", f"{record}, then run {test}"
            )
        elif result.unanswered:
            yield unknown("DKIM", f"key {key.name}: {result.error}", f"{test} asks again")
        elif result.error:
            yield error("DKIM", f"key {key.name}: {result.error}", f"{record}, then run {test}")

    async def _dns(self) -> AsyncIterator[Diagnosis]:
        """Ask the name servers for the hosts of the probed domain."""
        remedy = f"{self._by_hand}; {_LOCAL_RESOLVER_HINT}, then `systemctl reload queued`"
        began = time.monotonic()
        try:
            await self._questions.ask(self._probe, "MX")
        except DeliveryError as fault:
            silent = f"the name servers do not answer ({self._servers}): {fault.line}"
            yield error("DNS", silent, remedy)
            return
        took = time.monotonic() - began
        if took > _SLOW_ANSWER_S:
            yield warning("DNS", f"an answer took {took:.1f} s ({self._servers})", remedy)
        wanted = self._routes.may_use_dane(TlsMode(self._config.delivery.tls.mode))
        if wanted and not await self._questions.validating():
            yield warning(
                "DNS",
                f"the name servers do not validate ({self._servers}): mail is sent without DANE",
                f"{_LOCAL_RESOLVER_HINT}; or `trust_ad: true` beside it, if the network to them is "
                "safe",
            )

    async def _reverse_name(self) -> AsyncIterator[Diagnosis]:
        """Look whether the addresses of environment.hostname lead back to it."""
        name, addresses = self._hostname, []
        try:
            for kind in ("A", "AAAA"):
                for record in (await self._questions.ask(name, kind)).records:
                    address = ip_address(record.to_text())
                    if address.is_global:
                        addresses.append(address)
        except DeliveryError as fault:
            yield unknown("reverse name", f"{name}: {fault.line}", self._by_hand)
            return
        if not addresses:
            yield warning(
                "reverse name",
                f"environment.hostname, {name}, has no public address",
                f"publish `{name}. IN A ADDRESS` with the address that mail goes out from, or set "
                "environment.hostname of queued.yaml to the name that has it",
            )
        for address in addresses:
            pointer = address.reverse_pointer
            try:
                answer = await self._questions.ask(pointer, "PTR")
            except DeliveryError as fault:
                yield unknown("reverse name", f"{address}: {fault.line}", f"`dig -x {address}`")
                continue
            names = [each.to_text().rstrip(".").lower() for each in answer.records]
            if name.lower() not in names:
                there = f"leads to {', '.join(names)}" if names else "has no reverse name"
                remedy = f"ask the provider of {address} for the record `{pointer}. IN PTR {name}.`"
                yield warning("reverse name", f"{address} of {name} {there}", remedy)

    async def _port(self) -> AsyncIterator[Diagnosis]:
        """Look whether hosts answer on port 25: by the log, or by the probed domain."""
        if self._ask and (await self._ask("reached"))[0]["reached"]:
            return
        smtp = SmtpTransport(self._hostname, self._config.delivery, RouteMemory().functions)
        destination = self._routes.find(self._mail()).destination
        untried, reason = "no answer of the name servers", ""
        try:
            async with asyncio.timeout_at(self._deadline - 0.5):
                await survey(smtp, destination, probe=False)
                untried = ""
                hosts = await survey(smtp, destination, probe=True)
        except DeliveryError as fault:
            untried = fault.line
        except TimeoutError:
            reason = "no answer"  # also if no address was tried
        else:
            answers = [each.answer.error for each in hosts if each.answer]
            untried = "" if answers else ", ".join({each.error for each in hosts})
            reason = answers[0] if answers and all(answers) else ""
        if untried:
            where = f"no host of {self._probe} was tried: {untried}"
            yield unknown("port 25", where, "`--probe DOMAIN` tries those of another domain")
        elif reason:
            yield error(
                "port 25",
                f"no connection to a host of {self._probe}: {reason}",
                'ask your provider to open port 25, or set `routes: {"*": RELAY:587}` in '
                "queued.yaml for a relay that takes your mail",
            )


def _hurried(config: QueuedConfig) -> QueuedConfig:
    """Return a copy whose questions to name servers end before the time of all checks does."""
    delivery = config.delivery
    timeout = min(delivery.dns.timeout, _QUESTION_TIMEOUT_S)
    dns = delivery.dns.model_copy(update={"timeout": timeout})
    return config.model_copy(update={"delivery": delivery.model_copy(update={"dns": dns})})
