"""DANE: which records count, which certificates match, and that OpenSSL agrees."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import process_time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import example, given
from hypothesis import strategies as st

from queued.delivery.tls import dane
from queued.delivery.tls.certificate_chain import name_matches, subject_public_key_info
from queued.delivery.tls.tls_policy import Tlsa
from tests.support.certificates import Certificate
from tests.support.rawhop import run
from tests.support.tlshop import TlsHop, listening

MX = "mx.b.example"
ROOT = Certificate.root()
BELOW = ROOT.issue("Below", ca=True)
DEEP = BELOW.issue(MX, "*.c.example")
OTHER = Certificate.root("Other")
IMPOSTOR = Certificate.root("Below")  # the name of the issuer, but not its key

CASES: dict[str, tuple[Certificate, list[Tlsa], bool]] = {
    "3 1 1": (DEEP, [DEEP.tlsa(3, 1, 1)], True),
    "3 0 1": (DEEP, [DEEP.tlsa(3, 0, 1)], True),
    "3 1 2": (DEEP, [DEEP.tlsa(3, 1, 2)], True),
    "3 0 0": (DEEP, [DEEP.tlsa(3, 0, 0)], True),
    "3 1 0": (DEEP, [DEEP.tlsa(3, 1, 0)], True),
    "2 0 1 root": (DEEP, [ROOT.tlsa(2, 0, 1)], True),
    "2 1 1 root": (DEEP, [ROOT.tlsa(2, 1, 1)], True),
    "2 0 1 intermediate": (DEEP, [BELOW.tlsa(2, 0, 1)], True),
    "2 1 2 intermediate": (DEEP.without(1), [BELOW.tlsa(2, 1, 2)], True),
    "2 0 0 not sent": (DEEP.without(1), [ROOT.tlsa(2, 0, 0)], True),
    "2 1 1 not sent": (DEEP.without(1), [ROOT.tlsa(2, 1, 1)], False),
    "2 1 1 of the host itself": (DEEP, [DEEP.tlsa(2, 1, 1)], False),
    "2 0 1 of another": (DEEP, [OTHER.tlsa(2, 0, 1)], False),
    "2 1 1 not its issuer": (
        Certificate(DEEP.key, DEEP.own, (IMPOSTOR.own,)), [IMPOSTOR.tlsa(2, 1, 1)], False,
    ),
    "2 1 1 expired": (BELOW.issue(MX, days=(-9, -1)), [ROOT.tlsa(2, 1, 1)], False),
    "2 1 1 not yet": (BELOW.issue(MX, days=(1, 9)), [ROOT.tlsa(2, 1, 1)], False),
    "2 1 1 other name": (BELOW.issue("mx.c.example"), [ROOT.tlsa(2, 1, 1)], False),
    "2 1 1 issuer expired": (
        ROOT.issue("Old", ca=True, days=(-9, -1)).issue(MX), [ROOT.tlsa(2, 1, 1)], False,
    ),
    "2 1 1 issuer is no CA": (ROOT.issue("No CA").issue(MX), [ROOT.tlsa(2, 1, 1)], False),
    "2 1 1 path too long": (
        ROOT.issue("Short", ca=True, path_length=0).issue("More", ca=True).issue(MX),
        [ROOT.tlsa(2, 1, 1)],
        False,
    ),
    "3 1 1 expired": (ROOT.issue(MX, days=(-9, -1)), [], True),  # neither dates
    "3 1 1 other name": (ROOT.issue("mx.c.example"), [], True),  # nor names count
    "3 1 1 wrong": (DEEP, [(3, 1, 1, b"x" * 32)], False),
    "wrong and right": (DEEP, [(3, 1, 1, b"x" * 32), DEEP.tlsa(3, 1, 1)], True),
    # a host that rolls its key over has the weaker digest of the old one
    "stronger digest": (DEEP, [DEEP.tlsa(3, 1, 1), (3, 1, 2, b"x" * 64)], False),
}  # fmt: skip
NOW = datetime.now(UTC)


def records_of(name: str) -> list[Tlsa]:
    certificate, records, _ = CASES[name]
    return records or [certificate.tlsa(3, 1, 1)]


def agrees(name: str, now: datetime = NOW) -> bool:
    try:
        dane.authenticate(dane.usable(records_of(name)), CASES[name][0].chain, [MX], now)
    except dane.DaneError:
        return False
    return True


@pytest.mark.parametrize("name", CASES)
def test_certificates_match_or_not(name: str) -> None:
    assert agrees(name) == CASES[name][2]


def test_the_reason_is_one_of_tlsrpt() -> None:
    for name, result in {
        "2 1 1 expired": "certificate-expired",
        "2 1 1 other name": "certificate-host-mismatch",
        "2 1 1 not its issuer": "certificate-not-trusted",
        "3 1 1 wrong": "validation-failure",
    }.items():
        with pytest.raises(dane.DaneError) as found:
            dane.authenticate(dane.usable(records_of(name)), CASES[name][0].chain, [MX], NOW)
        assert found.value.result == result
    assert not agrees("2 1 1 root", NOW + timedelta(days=91))
    assert agrees("3 1 1", NOW + timedelta(days=91))


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("openssl"), reason="needs the command openssl")
def test_openssl_agrees(tmp_path: Path) -> None:
    """`openssl s_client` says the same of every case."""

    async def ask(name: str) -> bool:
        certificate = CASES[name][0]
        async with listening(TlsHop(certificate.server(tmp_path), implicit=True)) as hop:
            rrdata = [
                word
                for a, b, c, data in records_of(name)
                for word in ("-dane_tlsa_rrdata", f"{a} {b} {c} {data.hex()}")
            ]
            process = await asyncio.create_subprocess_exec(
                "openssl", "s_client", "-connect", f"127.0.0.1:{hop.port}", "-brief",
                "-servername", MX, "-dane_tlsa_domain", MX, "-dane_ee_no_namechecks",
                "-verify_return_error", *rrdata,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            said, _ = await process.communicate()
        return b"Verification: OK" in said

    async def all_of_them() -> dict[str, bool]:
        return {name: await ask(name) for name in CASES}

    ours = {name: agrees(name) for name in CASES}
    assert run(all_of_them()) == ours


def test_certificates_that_all_issued_each_other_take_no_time() -> None:
    tangle = [ROOT.again().own for _ in range(9)]
    host = ROOT.issue(MX)
    chain = [host.der, *(each.public_bytes(Encoding.DER) for each in tangle), *OTHER.chain]
    anchors = [OTHER, *(Certificate.root(f"{number}") for number in range(200))]
    began = process_time()
    with pytest.raises(dane.DaneError):
        dane.authenticate([each.tlsa(2, 0, 0) for each in anchors], chain, [MX], NOW)
    assert process_time() - began < 1.0
    assert dane.authenticate([ROOT.tlsa(2, 1, 1)], chain, [MX], NOW)


def test_unusable_records() -> None:
    for record in [
        (0, 1, 1, b"x" * 32),
        (1, 0, 1, b"x" * 32),
        (3, 2, 1, b"x" * 32),
        (3, 1, 3, b"x" * 32),
        (3, 1, 1, b"x" * 31),
        (3, 1, 2, b"x" * 32),
        (3, 1, 0, b""),
    ]:
        assert dane.usable([record]) == ()
    good = DEEP.tlsa(3, 1, 1)
    assert dane.usable([good, good]) == (good,)


def test_the_key_is_as_the_certificate_has_it() -> None:
    for certificate in (ROOT, DEEP):
        assert subject_public_key_info(certificate.der) == certificate.key_info


@example(octets=DEEP.der[:12] + b"\x01" + DEEP.der[13:418])  # a version that is none
@given(st.binary(max_size=300) | st.builds(
    lambda cut, at, octet: DEEP.der[:at] + bytes([octet]) + DEEP.der[at + 1 : cut],
    st.integers(0, 900), st.integers(0, 200), st.integers(0, 255),
))  # fmt: skip
def test_no_octets_of_a_certificate_do_harm(octets: bytes) -> None:
    with suppress(ValueError):
        assert subject_public_key_info(octets) in octets
    for record in (DEEP.tlsa(3, 1, 1), ROOT.tlsa(2, 1, 1), ROOT.tlsa(2, 0, 0)):
        try:
            dane.authenticate([record], [octets, *DEEP.chain[1:]], [MX], NOW)
        except dane.DaneError:
            continue
        # whatever matches has the key of the host, or the signature of its issuer
        assert record[0] == 3 or x509.load_der_x509_certificate(octets) == DEEP.own


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("mx.b.example", "MX.b.example.", True),
        ("*.b.example", "mx.b.example", True),
        ("*.b.example", "b.example", False),
        ("*.b.example", "a.mx.b.example", False),
        ("m*.b.example", "mx.b.example", False),
        ("*.example", "b.example", False),
        ("*", "example", False),
    ],
)
def test_names_of_certificates(pattern: str, name: str, expected: bool) -> None:
    assert name_matches(pattern, name) is expected
