"""TLS with next hops: every fault under every mode, against real servers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pgmta.errors import Stage
from pgmta.model import StsPolicy
from queued.delivery.dns.hosts import Host
from queued.delivery.dns.resolver import DnsAnswer
from queued.delivery.tls.tls_policy import TlsDemand, TlsMode
from queued.delivery.transport.transcript import transcript
from tests.queued.delivery.tls.tls_attempt import (
    CERTIFICATES,
    DOMAIN,
    GOOD,
    MX,
    NO,
    PLAIN,
    ROOT,
    YES,
    Attempt,
    attempt,
)
from tests.support.tlshop import Fault

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
        assert trial.session
        said = transcript((trial.session.facts.dialogue, ()))
        assert "# no STARTTLS: TLS with the host failed a while ago" in said
        assert await trial.send("encrypt") == NO  # a memory is no permission
        assert trial.internet.counted["no-policy-found", "validation-failure"] == 2

    attempt(tmp_path, GOOD, act, Fault.CLOSED)


def test_the_extensions_are_those_under_tls(tmp_path: Path) -> None:
    async def act(trial: Attempt) -> None:
        assert await trial.send("encrypt") == YES
        assert trial.session
        assert trial.internet.worked_hosts == [f"{MX}:{trial.hop.port}"]
        assert "STARTTLS" not in trial.session.extensions
        assert trial.session.extensions["SIZE"] == "1000"
        assert trial.hop.names == [MX]  # SNI
        said = transcript((trial.session.facts.dialogue, ()))
        assert re.search(r"# TLSv1\.3 TLS_\w+, verified: no\n", said)
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


async def mode_of(trial: Attempt, mode: str, login: bool, tls: TlsMode | None) -> str:
    demand, host = TlsDemand(tls, login=login), Host(MX, trial.hop.port, listed=True)
    return str((await trial.security(mode).policy(demand, host)).mode)


def test_a_host_that_gets_a_password_is_verified(tmp_path: Path) -> None:
    async def act(trial: Attempt) -> None:
        for mode in ("best", "none", "opportunistic", "encrypt", "verify"):
            assert await mode_of(trial, mode, True, None) == "verify", mode
        for tls in TlsMode("none"), TlsMode("opportunistic"), TlsMode("encrypt"):
            assert await mode_of(trial, "best", True, tls) == tls
        assert await mode_of(trial, "best", True, TlsMode.BEST) == "verify"
        assert await mode_of(trial, "best", False, None) == "opportunistic"
        trial.internet.tlsa((9, 9, 9, b"x"))
        assert await mode_of(trial, "best", True, None) == "verify", "only unusable records"
        trial.internet.tlsa(GOOD.tlsa(3, 1, 1))
        assert await mode_of(trial, "best", True, None) == "dane"
        assert await mode_of(trial, "verify", True, None) == "verify"

    attempt(tmp_path, GOOD, act)


WRONG = (3, 1, 1, b"x" * 32)


@pytest.mark.parametrize(
    ("certificate", "records", "expected", "verified"),
    [
        ("good", [GOOD.tlsa(3, 1, 1)], YES, "dane"),
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
        failure = DnsAnswer((), False, -1.0, False, "")  # SERVFAIL: bogus
        trial.internet.zone[f"_{trial.hop.port}._tcp.{MX}", "TLSA"] = failure
        assert await trial.send("best") == NO
        assert trial.error
        assert "TLSA" in trial.error.line
        assert trial.internet.counted["tlsa", "dnssec-invalid"] == 1
        trial.internet.zone[MX, "A"] = failure  # it comes when the host is connected to
        trial.internet.records(MX, "AAAA")
        assert await trial.send("best") == NO
        trial.internet.records(MX, "AAAA", secure=False)
        assert await trial.send("best") == PLAIN
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
            assert trial.error
            assert trial.error.line.endswith(f" (asked for by MTA-STS of {DOMAIN})")
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
        for mode in ("best", "verify"):  # a name that anybody may have made up
            assert await trial.send(mode, requiretls=True) == NO
            assert trial.error.line.startswith("5.7.10 ")

    attempt(tmp_path, GOOD, unaware)


def test_tls_required_no(tmp_path: Path) -> None:
    """RFC 8689, section 4.2.2: what the domain promises may fail, what the operator asks not."""

    async def wrong_certificate(trial: Attempt) -> None:
        trial.internet.tlsa(WRONG)
        assert await trial.send("best") == NO
        assert await trial.send("best", tls_optional=True) == YES
        assert trial.session
        assert trial.session.facts.tls_verified == "no"
        for mode in ("dane", "verify"):
            assert await trial.send(mode, tls_optional=True) == NO
            assert await trial.send("none", tls=TlsMode(mode), tls_optional=True) == NO
        trial.internet.tlsa(CERTIFICATES["other name"].tlsa(3, 1, 1))
        assert await trial.send("best", tls_optional=True) == YES
        assert trial.session.facts.tls_verified == "dane"
        trial.internet.zone.clear()
        trial.internet.sts = StsPolicy(DOMAIN, "2", "enforce", ("mx.c.example",), 86400, 86400.0)
        assert await trial.send("best") == NO
        assert await trial.send("best", tls_optional=True) == YES

    attempt(tmp_path, CERTIFICATES["other name"], wrong_certificate)

    async def plain(trial: Attempt) -> None:
        trial.internet.tlsa(GOOD.tlsa(3, 1, 1))
        assert await trial.send("best") == NO
        assert await trial.send("best", tls_optional=True) == PLAIN
        assert await trial.send("encrypt", tls_optional=True) == NO

    attempt(tmp_path, GOOD, plain, Fault.STRIPPED)


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
