"""TLS with next hops: every fault under every mode, against real servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, cast

import pytest
from dns import rdata

from pgmta.errors import DeliveryError, Stage
from pgmta.model import Item, StsPolicy, TlsResult
from queued.config import Delivery, Timeouts, Tls
from queued.delivery.connect import Connector
from queued.delivery.dns import Answer
from queued.delivery.envelope import Envelope
from queued.delivery.hosts import Host
from queued.delivery.route import Destination
from queued.delivery.security import Security
from queued.delivery.session import Session
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
    zone: dict[tuple[str, str], Answer] = field(default_factory=dict)
    broken: Any = None
    policies: Any = None
    results: Any = None
    known_hosts: dict[str, str] = field(default_factory=dict)
    sts: StsPolicy | None = None
    counted: Counter[tuple[str, str]] = field(default_factory=Counter)
    secure: bool = True

    def __post_init__(self) -> None:
        self.broken = self.policies = self.results = self

    def records(self, name: str, kind: str, *texts: str, secure: bool = True) -> None:
        found = tuple(rdata.from_text("IN", kind, text) for text in texts)
        self.zone[name, kind] = Answer(found, secure, monotonic() + 60, True, name)

    def tlsa(self, *records: tuple[int, int, int, bytes], secure: bool = True) -> None:
        self.records(MX, "A", "127.0.0.1")
        texts = [f"{a} {b} {c} {data.hex()}" for a, b, c, data in records]
        self.records(f"_{self.port}._tcp.{MX}", "TLSA", *texts, secure=secure)

    async def ask(self, name: str, kind: str) -> Answer:
        found = self.zone.get((name, kind), Answer((), False, 0.0, False, name))
        if found.until < 0:
            raise DeliveryError(f"4.4.3 {kind} of {name}: SERVFAIL", Stage.ADDRESS)
        return found

    async def validating(self) -> bool:
        return True

    async def of(self, *_: object) -> AsyncIterator[Host]:
        yield Host(MX, self.port, secure=self.secure)

    async def addresses(self, *_: object) -> list[str]:
        return ["127.0.0.1"]

    async def known(self, host: str) -> bool:
        return host in self.known_hosts

    async def remember(self, host: str, reason: str) -> None:
        self.known_hosts[host] = reason

    async def find(self, domain: str) -> StsPolicy | None:
        return self.sts

    async def keep(self, policy: StsPolicy) -> None:
        self.sts = policy

    def count(self, result: TlsResult) -> None:
        self.counted[result.policy_type, result.result] += 1


@dataclass
class Attempt:
    """One message to the host under a mode."""

    hop: TlsHop
    internet: Internet
    folder: Path
    session: Session | None = None
    error: DeliveryError | None = None

    def security(self, mode: str, **options: object) -> Security:
        """Return what a worker has that trusts the root."""
        root, _ = ROOT.files(self.folder)
        config = Tls.model_validate({"mode": mode, "ca": str(root), **options})
        internet = cast(Any, self.internet)
        return Security(config, internet, internet.addresses, internet)

    async def send(
        self,
        mode: str,
        requiretls: bool = False,
        security: Security | None = None,
        **options: object,
    ) -> str:
        """Return whether the message went under TLS, in plain text, or not at all."""
        delivery = Delivery(timeouts=Timeouts(tls=2.0, command=5.0))
        internet = cast(Any, self.internet)
        opener = Connector("client.example", delivery, internet)
        opener._hosts = internet
        opener.security = security or self.security(mode, **options)
        destination = Destination(domain=DOMAIN, implicit=self.hop.implicit, requiretls=requiretls)
        item = Item(1, 1, "s@a.example", "r@b.example", DOMAIN, 1, NOW, 1)
        envelope = Envelope([item], "s@a.example", b"X: y\r\n", 3, False, b"\r\nx", ALWAYS, NOW,
                            requiretls=requiretls)  # fmt: skip
        self.error = None
        before = len(self.hop.taken)
        try:
            self.session = session = await opener.open(destination, set())
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


#         none   opportunistic  encrypt  verify
EXPECTED = {
    ("good", Fault.NONE): (PLAIN, YES, YES, YES),
    ("other name", Fault.NONE): (PLAIN, YES, YES, NO),
    ("expired", Fault.NONE): (PLAIN, YES, YES, NO),
    ("self-signed", Fault.NONE): (PLAIN, YES, YES, NO),
    ("good", Fault.STRIPPED): (PLAIN, PLAIN, NO, NO),
    ("good", Fault.REFUSED): (PLAIN, PLAIN, NO, NO),
    ("good", Fault.CLOSED): (PLAIN, PLAIN, NO, NO),
    ("good", Fault.GARBAGE): (PLAIN, PLAIN, NO, NO),
    ("good", Fault.INJECTED): (PLAIN, NO, NO, NO),
}
MODES = ("none", "opportunistic", "encrypt", "verify")


@pytest.mark.parametrize(("certificate", "fault"), EXPECTED, ids=lambda value: str(value))
def test_each_mode_with_each_fault(tmp_path: Path, certificate: str, fault: Fault) -> None:
    async def act(trial: Attempt) -> None:
        for mode, expected in zip(MODES, EXPECTED[certificate, fault], strict=True):
            trial.internet.known_hosts.clear()
            assert await trial.send(mode) == expected, mode
            if expected == NO:
                assert trial.error is not None
                assert trial.error.stage is Stage.TLS
                assert not trial.error.permanent
            if expected == YES and trial.session:
                facts = trial.session.facts
                assert facts.tls_version == "TLSv1.3"
                assert facts.tls_cipher.startswith("TLS_")
                assert facts.tls_verified == ("pkix" if mode == "verify" else "no")
        # without a promise `best` is opportunistic
        trial.internet.known_hosts.clear()
        assert await trial.send("best") == EXPECTED[certificate, fault][1]
        assert "injected" not in str(trial.hop.commands)

    attempt(tmp_path, CERTIFICATES[certificate], act, fault)


def test_plain_text_after_a_broken_handshake_is_remembered(tmp_path: Path) -> None:
    async def act(trial: Attempt) -> None:
        assert await trial.send("opportunistic") == PLAIN
        assert list(trial.internet.known_hosts) == [f"{MX}:{trial.hop.port}"]
        assert trial.hop.commands.count("STARTTLS") == 1
        assert await trial.send("opportunistic") == PLAIN
        assert trial.hop.commands.count("STARTTLS") == 1  # not tried again
        assert await trial.send("encrypt") == NO  # a memory is no permission
        assert trial.internet.counted["no-policy-found", "validation-failure"] == 2

    attempt(tmp_path, GOOD, act, Fault.CLOSED)


def test_the_extensions_are_those_under_tls(tmp_path: Path) -> None:
    async def act(trial: Attempt) -> None:
        assert await trial.send("encrypt") == YES
        assert trial.session
        assert "STARTTLS" not in trial.session.extensions
        assert trial.session.extensions["SIZE"] == "1000"
        assert trial.hop.names == [MX]  # SNI
        assert trial.hop.commands[:3] == ["EHLO client.example", "STARTTLS", "EHLO client.example"]

    attempt(tmp_path, GOOD, act, extensions=("SIZE 1000",))


def test_implicit_tls(tmp_path: Path) -> None:
    async def act(trial: Attempt) -> None:
        assert await trial.send("verify") == YES
        assert "STARTTLS" not in trial.hop.commands

    attempt(tmp_path, GOOD, act, implicit=True)

    async def refused(trial: Attempt) -> None:
        assert await trial.send("verify") == NO
        assert trial.hop.commands == []

    attempt(tmp_path, CERTIFICATES["other name"], refused, implicit=True)


WRONG = (3, 1, 1, b"x" * 32)


@pytest.mark.parametrize(
    ("certificate", "records", "expected", "verified"),
    [
        ("good", [GOOD.tlsa(3, 1, 1)], YES, "dane"),
        ("good", [GOOD.tlsa(3, 0, 1)], YES, "dane"),
        ("good", [ROOT.tlsa(2, 0, 1)], YES, "dane"),
        ("good", [ROOT.tlsa(2, 1, 1)], YES, "dane"),
        ("good", [WRONG, GOOD.tlsa(3, 1, 2)], YES, "dane"),
        ("good", [WRONG], NO, ""),
        (
            "good",
            [(1, 1, 1, b"x" * 32), (3, 2, 1, b"x" * 32), (3, 1, 9, b"x")],
            YES,
            "no",
        ),  # only unusable ones
        ("other name", [CERTIFICATES["other name"].tlsa(3, 1, 1)], YES, "dane"),
        ("other name", [ROOT.tlsa(2, 1, 1)], NO, ""),
        ("expired", [CERTIFICATES["expired"].tlsa(3, 1, 1)], YES, "dane"),
        ("expired", [ROOT.tlsa(2, 1, 1)], NO, ""),
        ("self-signed", [CERTIFICATES["self-signed"].tlsa(3, 1, 1)], YES, "dane"),
    ],
)
def test_dane(
    tmp_path: Path, certificate: str, records: list[Any], expected: str, verified: str
) -> None:
    async def act(trial: Attempt) -> None:
        trial.internet.tlsa(*records)
        assert await trial.send("best") == expected
        assert await trial.send("dane") == (expected if verified in ("dane", "") else NO)
        if trial.session and verified:
            assert trial.session.facts.tls_verified == verified
        trial.internet.tlsa(*records, secure=False)
        assert await trial.send("best") == YES  # without DNSSEC nothing is promised
        assert await trial.send("dane") == NO
        assert False not in trial.hop.taken

    # the root comes with the certificates of the host
    attempt(tmp_path, CERTIFICATES[certificate], act)


def test_no_downgrade_of_dane(tmp_path: Path) -> None:
    async def act(trial: Attempt) -> None:
        trial.internet.tlsa(GOOD.tlsa(3, 1, 1))
        assert await trial.send("best") == NO
        assert trial.internet.counted["tlsa", "starttls-not-supported"] == 1
        failure = Answer((), False, -1.0, False, "")  # SERVFAIL: bogus
        trial.internet.zone[f"_{trial.hop.port}._tcp.{MX}", "TLSA"] = failure
        assert await trial.send("best") == NO
        assert trial.error
        assert "TLSA" in trial.error.line
        assert trial.internet.counted["tlsa", "dnssec-invalid"] == 1
        trial.internet.records(MX, "A", "127.0.0.1", secure=False)
        assert await trial.send("best") == PLAIN  # an insecure address: TLSA is not asked

    attempt(tmp_path, GOOD, act, Fault.STRIPPED)


@pytest.mark.parametrize("certificate", ["good", "other name"])
def test_mta_sts(tmp_path: Path, certificate: str) -> None:
    async def act(trial: Attempt) -> None:
        good = certificate == "good"
        internet = trial.internet
        internet.sts = StsPolicy(DOMAIN, "1", "enforce", ("*.b.example",), 86400, 86400.0)
        assert await trial.send("best") == (YES if good else NO)
        if good and trial.session:
            assert trial.session.facts.tls_verified == "sts"
            assert internet.counted["sts", "successful"] == 1
        else:
            assert internet.counted["sts", "certificate-host-mismatch"] == 1
        internet.sts = StsPolicy(DOMAIN, "1", "testing", ("*.b.example",), 86400, 86400.0)
        assert await trial.send("best") == YES
        assert internet.counted["sts", "certificate-host-mismatch"] == (0 if good else 2)
        for mode, expected in ("enforce", NO), ("testing", YES), ("none", YES):
            internet.sts = StsPolicy(DOMAIN, "2", mode, ("mx.c.example",), 86400, 86400.0)
            assert await trial.send("best") == expected
        assert internet.counted["sts", "validation-failure"] == 2
        internet.sts = StsPolicy(DOMAIN, "2", "enforce", ("mx.c.example",), 86400, 86400.0)
        assert await trial.send("best", sts=False) == YES
        internet.tlsa(CERTIFICATES[certificate].tlsa(3, 1, 1))
        assert await trial.send("best") == YES  # DANE goes first
        internet.tlsa(WRONG)
        assert await trial.send("best") == NO

    attempt(tmp_path, CERTIFICATES[certificate], act)


def test_requiretls(tmp_path: Path) -> None:
    async def knows(trial: Attempt) -> None:
        trial.internet.tlsa(GOOD.tlsa(3, 1, 1))
        assert await trial.send("none", requiretls=True) == YES
        assert any(each.endswith(" REQUIRETLS") for each in trial.hop.commands)
        del trial.internet.zone[f"_{trial.hop.port}._tcp.{MX}", "TLSA"]
        assert await trial.send("best", requiretls=True) == YES  # secure MX, trusted CA

    attempt(tmp_path, GOOD, knows, extensions=("REQUIRETLS",))

    async def unaware(trial: Attempt) -> None:
        trial.internet.tlsa(GOOD.tlsa(3, 1, 1))
        assert await trial.send("best", requiretls=True) == NO
        assert trial.error
        assert trial.error.permanent
        assert trial.error.line.startswith("5.7.30 ")
        trial.internet.secure = False
        trial.internet.zone.clear()
        assert await trial.send("best", requiretls=True) == NO
        assert trial.error.line.startswith("5.7.10 ")

    attempt(tmp_path, GOOD, unaware)


@pytest.mark.parametrize("mode", ["opportunistic", "verify", "dane"])
def test_sessions_are_resumed(tmp_path: Path, mode: str) -> None:
    async def act(trial: Attempt) -> None:
        trial.internet.tlsa(ROOT.tlsa(2, 0, 1))
        security = trial.security(mode)
        for number in range(3):
            assert await trial.send(mode, security=security) == YES
            assert trial.session
            assert trial.session.connection.tls
            resumed = number > 0 and mode != "dane"  # TLSA records may change
            assert trial.session.connection.tls.session_reused == resumed
        # another host has taken the name: it has no such session
        trial.hop.context = CERTIFICATES["other name"].server(tmp_path)
        expected = YES if mode == "opportunistic" else NO
        assert await trial.send(mode, security=security) == expected

    attempt(tmp_path, GOOD, act)
