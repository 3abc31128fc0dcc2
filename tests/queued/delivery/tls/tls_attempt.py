"""One delivery over TLS: a next hop with a fault, and the answers about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, cast

from dns import rdata

from pgmta.errors import DeliveryError, Stage
from pgmta.model import Item, Message, StsPolicy, TlsResult
from queued.config import Delivery, Timeouts, Tls
from queued.delivery.dns.hosts import Host
from queued.delivery.dns.resolver import DnsAnswer
from queued.delivery.smtp.client_session import ClientSession
from queued.delivery.smtp.smtp_parameters import SmtpParameters
from queued.delivery.smtp.smtp_transport import SmtpTransport
from queued.delivery.tls.policy_finder import PolicyFinder
from queued.delivery.tls.tls_policy import TlsMode
from queued.delivery.transport.destination import Destination, TlsWish
from queued.delivery.transport.envelope import Envelope
from tests.support.certificates import Certificate
from tests.support.leases import ALWAYS
from tests.support.rawhop import run
from tests.support.tlshop import Fault, TlsHop, listening

MX, DOMAIN = "mx.b.example", "b.example"
ROOT = Certificate.root()
GOOD = ROOT.issue(MX)
CERTIFICATES = {
    "good": GOOD,
    "other name": ROOT.issue("mx.c.example"),
    "expired": ROOT.issue(MX, days=(-9, -2)),
    "self-signed": Certificate.self_signed(MX),
}
NOW = datetime.now(UTC)
NO, YES, PLAIN = "refused", "under TLS", "in plain text"


@dataclass
class Internet:
    """Answers of the DNS, hosts that are broken, policies and counted results: for one host."""

    port: int
    zone: dict[tuple[str, str], DnsAnswer] = field(default_factory=dict)
    known_hosts: dict[str, str] = field(default_factory=dict)
    worked_hosts: list[str] = field(default_factory=list)
    sts: StsPolicy | None = None
    counted: Counter[tuple[str, str]] = field(default_factory=Counter)
    secure: bool = True

    def records(self, name: str, kind: str, *texts: str, secure: bool = True) -> None:
        found = tuple(rdata.from_text("IN", kind, text) for text in texts)
        self.zone[name, kind] = DnsAnswer(found, secure, monotonic() + 60, True, name)

    def tlsa(self, *records: tuple[int, int, int, bytes], secure: bool = True) -> None:
        self.records(MX, "A", "127.0.0.1")
        texts = [f"{a} {b} {c} {data.hex()}" for a, b, c, data in records]
        self.records(f"_{self.port}._tcp.{MX}", "TLSA", *texts, secure=secure)

    async def ask(self, name: str, kind: str) -> DnsAnswer:
        found = self.zone.get((name, kind), DnsAnswer((), False, 0.0, False, name))
        if found.until < 0:
            raise DeliveryError(f"4.4.3 {kind} of {name}: SERVFAIL", Stage.ADDRESS)
        return found

    async def validating(self) -> bool:
        return True

    async def find_hosts(self, *_: object) -> AsyncIterator[Host]:
        yield Host(MX, self.port, secure=self.secure)

    async def addresses(self, *_: object) -> list[str]:
        return ["127.0.0.1"]

    async def is_broken(self, host: str) -> bool:
        return host in self.known_hosts

    async def note_failure(self, host: str, reason: str, begun: float) -> None:
        self.known_hosts[host] = reason

    def note_success(self, host: str) -> None:
        self.worked_hosts.append(host)

    async def find_policy(self, domain: str) -> StsPolicy | None:
        return self.sts

    async def keep_policy(self, policy: StsPolicy) -> None:
        self.sts = policy

    def count(self, result: TlsResult) -> None:
        self.counted[result.policy_type, result.result] += 1


@dataclass
class Attempt:
    """One message to the host under a mode."""

    hop: TlsHop
    internet: Internet
    folder: Path
    session: ClientSession | None = None
    error: DeliveryError | None = None

    def security(self, mode: str, **options: object) -> PolicyFinder:
        """Return what a worker has that trusts the root."""
        root, _ = ROOT.files(self.folder)
        config = Tls.model_validate({"mode": mode, "ca": str(root), **options})
        internet = cast(Any, self.internet)
        return PolicyFinder(config, internet, internet.addresses, internet)

    async def send(
        self,
        mode: str,
        requiretls: bool = False,
        tls_optional: bool = False,
        tls: TlsMode | None = None,
        security: PolicyFinder | None = None,
        **options: object,
    ) -> str:
        """Return whether the message went under TLS, in plain text, or not at all."""
        delivery = Delivery(timeouts=Timeouts(tls=2.0, command=5.0))
        internet = cast(Any, self.internet)
        opener = SmtpTransport("client.example", delivery, internet)
        opener.hosts = internet
        opener.security = security or self.security(mode, **options)
        wish = TlsWish.REQUIRED if requiretls else TlsWish.NONE
        wish = TlsWish.OPTIONAL if tls_optional else wish
        parameters = SmtpParameters(implicit=self.hop.implicit, tls=tls)
        destination = Destination("smtp", parameters, DOMAIN, wish)
        item = Item(1, 1, "s@a.example", "r@b.example", DOMAIN, 1, NOW, 1)
        message = Message(1, 3, False, "", 0, None, requiretls=requiretls)
        envelope = Envelope(
            [item], message, "s@a.example", b"X: y\r\n", 3, False, b"\r\nx", ALWAYS, NOW
        )
        self.error = None
        before = len(self.hop.taken)
        try:
            self.session = session = await opener.open(destination)
            (result,) = await session.send(envelope)
        except DeliveryError as error:
            self.error = error
            assert len(self.hop.taken) == before
            return NO
        assert result.reply.code == 250
        session.connection.quit()
        return YES if self.hop.taken[-1] else PLAIN


def attempt(
    folder: Path,
    certificate: Certificate,
    act: Any,
    fault: Fault = Fault.NONE,
    extensions: tuple[str, ...] = (),
    implicit: bool = False,
) -> None:
    async def main() -> None:
        context = certificate.server(folder)
        async with listening(TlsHop(context, fault, extensions, implicit)) as hop:
            await act(Attempt(hop, Internet(hop.port), folder))

    run(main())
