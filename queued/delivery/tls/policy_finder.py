"""The TLS policy of a host, by what its route and its domain ask for."""

from __future__ import annotations

from dataclasses import replace

from pgmta.config.types import is_address
from pgmta.errors import DeliveryError, Stage
from pgmta.model import TlsResult
from queued.config import Tls
from queued.delivery.dns.hosts import Host
from queued.delivery.dns.resolver import Questions, tlsa_records
from queued.delivery.tls import dane
from queued.delivery.tls.mta_sts import mx_matches
from queued.delivery.tls.sts_cache import StsCache
from queued.delivery.tls.sts_fetch import FindAddresses, PolicyFetcher
from queued.delivery.tls.tls_contexts import TlsContexts
from queued.delivery.tls.tls_memory import TlsMemory
from queued.delivery.tls.tls_policy import HostPolicy, TlsDemand, TlsMode

_MAX_REASON_CHARACTERS = 120  # in the reports
_AUTHENTICATED_MODES = (TlsMode.VERIFY, TlsMode.DANE)


class PolicyFinder:
    """Finds the TLS policy of hosts, and has what sessions under these policies need.

    `addresses` are those of web servers of policies.
    """

    def __init__(
        self, config: Tls, questions: Questions, addresses: FindAddresses, memory: TlsMemory
    ) -> None:
        self._mode = TlsMode(config.mode)
        self._questions = questions
        self.memory = memory
        """The knowledge about TLS that workers share."""
        self.contexts = contexts = TlsContexts(config)
        """The settings of TLS sessions."""
        self._domains: StsCache | None = None
        self.fetcher: PolicyFetcher | None = None
        """Fetches MTA-STS policies; None if they are off."""
        if config.sts:
            self.fetcher = PolicyFetcher(lambda: contexts.pkix, addresses, config.sts_port)
            self._domains = StsCache(questions, self.fetcher, memory)

    async def policy(self, demand: TlsDemand, host: Host) -> HostPolicy:
        """Return the policy of a host.

        Raises DeliveryError if the host must not have the mail: no name server answers for its TLSA
        records, an MTA-STS policy does not name it, or nothing can authenticate it. With
        TLS-Required: No in the mail, no promise of the domain stops it (RFC 8689, section 4.2.2).
        """
        mode = demand.mode or self._mode
        if not demand.optional or mode is not TlsMode.BEST or demand.login:
            return await self._policy(demand, host)
        if not demand.implicit:
            try:
                return replace(await self._policy(demand, host), testing=True)
            except DeliveryError:
                pass  # the failure was counted where it was raised
        # implicit TLS has no plain text to return to
        least = TlsMode.ENCRYPT if demand.implicit else TlsMode.OPPORTUNISTIC
        return HostPolicy(least, (host.name,), report=("no-policy-found", demand.domain, ""))

    async def _policy(self, demand: TlsDemand, host: Host) -> HostPolicy:
        mode = demand.mode or self._mode
        source = "route" if demand.mode else "default"
        strict = demand.requiretls
        if strict and mode is not TlsMode.DANE and not (mode is TlsMode.VERIFY and host.listed):
            # the sender's wish goes before the route, and MX have to be validated (RFC 8689, 4.2.1)
            mode = TlsMode.BEST
        elif demand.login and not demand.mode and mode not in _AUTHENTICATED_MODES:
            mode = TlsMode.BEST  # a host that gets a password has to be verified
        report = "no-policy-found", demand.domain, ""
        if demand.implicit and mode in (TlsMode.NONE, TlsMode.OPPORTUNISTIC):
            mode = TlsMode.ENCRYPT
        if mode not in (TlsMode.BEST, TlsMode.DANE):
            return HostPolicy(mode, (host.name,), source=source, requiretls=strict, report=report)
        by_dns = await self._by_tlsa(demand, host)
        if by_dns and by_dns.mode is TlsMode.DANE:
            return by_dns
        if mode is TlsMode.DANE:
            why = by_dns.evidence if by_dns else "no TLSA records that DNSSEC secures"
            self.count(("tlsa", host.name, ""), "dane-required", host.name, "", why)
            raise DeliveryError(f"4.7.5 DANE of {host.name}: {why}", Stage.TLS)
        if by_policy := await self._by_sts(demand, host):
            return by_policy
        if strict and not (host.secure or host.listed):
            raise DeliveryError(
                f"5.7.10 REQUIRETLS: nothing authenticates {host.name}", Stage.TLS, permanent=True
            )
        if strict:
            return HostPolicy(TlsMode.VERIFY, (host.name,), requiretls=True, report=report)
        if demand.login:
            evidence = "it has a login"
            return HostPolicy(TlsMode.VERIFY, (host.name,), (), "route", evidence, report=report)
        if by_dns:
            return by_dns
        # implicit TLS has no plain text to return to
        least = TlsMode.ENCRYPT if demand.implicit else TlsMode.OPPORTUNISTIC
        return HostPolicy(least, (host.name,), source=source, report=report)

    async def _by_tlsa(self, demand: TlsDemand, host: Host) -> HostPolicy | None:
        """Return the policy by TLSA records (RFC 7672, section 2.2); None if there are none.

        Raises DeliveryError if no name server answers: no downgrade (section 2.1.2).
        """
        if is_address(host.name):
            return None
        # a validated MX answer proves that the name servers validate; without one the log says so
        if not host.secure and not (await self._questions.validating() and host.listed):
            return None
        for base in await self._bases(host):
            try:
                answer = await self._questions.ask(f"_{host.port}._tcp.{base}", "TLSA")
            except DeliveryError as error:
                self.count(("tlsa", base, ""), "dnssec-invalid", host.name, "", error.line)
                line = error.line.partition(" ")[2]
                raise DeliveryError(f"4.7.5 DANE of {base}: {line}", Stage.TLS) from None
            records = tlsa_records(answer.records) if answer.secure else ()
            if not records:
                continue
            shown = ", ".join(dane.shown(each) for each in records[:5])
            report = "tlsa", base, shown
            if good := dane.usable(records):
                names = tuple(dict.fromkeys(filter(None, (base, host.name, demand.domain))))
                return HostPolicy(TlsMode.DANE, names, good, "dane", shown,
                                  requiretls=demand.requiretls, report=report)  # fmt: skip
            evidence = f"only unusable TLSA records: {shown}"
            return HostPolicy(TlsMode.ENCRYPT, (base,), (), "dane", evidence, report=report)
        return None

    async def _bases(self, host: Host) -> list[str]:
        """Return the names below which TLSA records may be (RFC 7672, section 2.2.2).

        Without a validated address there is none: name servers of such zones often fail for TLSA.
        Raises DeliveryError for a host from MX records if its addresses can't be had. Else an
        attacker could hold them back now, and let them pass when queued connects (section 2.1.2).
        """
        failure: DeliveryError | None = None
        for kind in ("A", "AAAA"):
            try:
                answer = await self._questions.ask(host.name, kind)
            except DeliveryError as error:
                failure = error
                continue
            if not answer.secure:
                return []
            if answer.records:
                return list(dict.fromkeys((answer.name, host.name.lower())))
        if failure and host.secure:
            raise failure
        return []

    async def _by_sts(self, demand: TlsDemand, host: Host) -> HostPolicy | None:
        """Return the policy by MTA-STS (RFC 8461, section 5); None if the domain has none."""
        domain = demand.domain
        if self._domains is None or not domain or domain.startswith("[") or host.listed:
            return None
        policy = await self._domains.policy(domain)
        if policy is None or policy.mode == "none":
            return None
        testing = policy.mode == "testing"
        report = "sts", domain, policy.id
        evidence = f"MTA-STS {policy.mode}, id {policy.id}, mx {', '.join(policy.mx[:5])}"
        if mx_matches(policy.mx, host.name):
            return HostPolicy(TlsMode.VERIFY, (host.name,), (), "sts", evidence, testing=testing,
                              requiretls=demand.requiretls, report=report)  # fmt: skip
        why = f"MTA-STS policy of {domain} does not name the host"
        self.count(report, "validation-failure", host.name, "", why)
        if testing and not demand.requiretls:
            return HostPolicy(TlsMode.OPPORTUNISTIC, (host.name,), (), "sts", evidence,
                              report=report)  # fmt: skip
        raise DeliveryError(f"4.7.5 {host.name}: {why}", Stage.TLS)

    def count(
        self,
        report: tuple[str, str, str],
        result: str = "successful",
        host: str = "",
        address: str = "",
        why: str = "",
    ) -> None:
        """Count the result of a session for the reports to the domain (RFC 8460)."""
        policy_type, domain, policy = report
        if domain:
            text = why[:_MAX_REASON_CHARACTERS]
            self.memory.count(TlsResult(domain, policy_type, policy, result, host, address, text))
