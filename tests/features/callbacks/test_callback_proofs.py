"""Proofs: vectors of the providers' own SDKs, keys in turn, ages, logins and secret URLs."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from pgmta.config.types import FOLDER
from pgmta_features.callbacks.proof import CallbackRequest, Prover
from pgmta_features.callbacks.settings import CallbackProof, shipped_callback
from tests.features.callbacks.provided import secret_file

# sendgrid 6.12.5, test/unit/test_eventwebhook.py
SENDGRID_KEY = (
    "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE83T4O/n84iotIvIW4mdBgQ/7dAfSmpqIM8kF9mN1flpVKS3GRqe62gw"
    "+2fNNRaINXvVpiglSI8eNEc6wEA3F+g=="
)
SENDGRID_OTHER = (
    "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEqTxd43gyp8IOEto2LdIfjRQrIbsd4SXZkLW6jDutdhXSJCWHw8REntl"
    "o7aNDthvj+y7GjUuFDb/R1NGe1OPzpA=="
)
SENDGRID_SIGN = (
    "MEUCIGHQVtGj+Y3LkG9fLcxf3qfI10QysgDWmMOVmxG0u6ZUAiEAyBiXDWzM+uOe5W0JuG+luQAbPIqHh89M15TluLt"
    "EZtM="
)
SENDGRID_BODY = (
    b'[{"email":"hello@world.com","event":"dropped","reason":"Bounced Address",'
    b'"sg_event_id":"ZHJvcC0xMDk5NDkxOS1MUnpYbF9OSFN0T0doUTRrb2ZTbV9BLTA",'
    b'"sg_message_id":"LRzXl_NHStOGhQ4kofSm_A.filterdrecv-p3mdw1-756b745b58-kmzbl-18-5F5FC76C-9.0",'
    b'"smtp-id":"<LRzXl_NHStOGhQ4kofSm_A@ismtpd0039p1iad1.sendgrid.net>","timestamp":1600112492}]\r\n'
)
SENDGRID_TIME = 1600112502
# twilio-python, tests/unit/test_request_validator.py
TWILIO_KEY = "12345"
TWILIO_URL = "https://mycompany.com/myapp.php?foo=1&bar=2"
TWILIO_FORM = {
    "CallSid": "CA1234567890ABCDE", "Digits": "1234", "From": "+14158675309",
    "To": "+18005551212", "Caller": "+14158675309",
}  # fmt: skip


def prover(folder: Path, keys: list[str], **proof: Any) -> Prover:
    files = [secret_file(folder, f"key{n}", key) for n, key in enumerate(keys)]
    given = {"keys": files, **proof}
    return Prover(CallbackProof.model_validate(given, context={FOLDER: folder}))


def request(body: bytes = b"", url: str = "https://a.example/callbacks/x", **more: Any) -> Any:
    headers = {name.lower().replace("_", "-"): value for name, value in more.items()}
    return CallbackRequest(url, headers.pop("secret", ""), headers, body)


def sendgrid(
    sign: str = SENDGRID_SIGN, at: str = str(SENDGRID_TIME), body: bytes = SENDGRID_BODY
) -> Any:
    return request(
        body, X_Twilio_Email_Event_Webhook_Signature=sign,
        X_Twilio_Email_Event_Webhook_Timestamp=at,
    )  # fmt: skip


def test_the_vectors_of_sendgrid(tmp_path: Path) -> None:
    proof = shipped_callback("sendgrid")["proof"]
    one = prover(tmp_path, [SENDGRID_KEY], **proof)
    assert one.proves_header(sendgrid())
    assert one.proves(sendgrid(), SENDGRID_TIME + 3600)
    both = prover(tmp_path, [SENDGRID_OTHER, SENDGRID_KEY], **proof)
    assert both.proves(sendgrid(), SENDGRID_TIME)
    for bad in (
        sendgrid(at=str(SENDGRID_TIME + 1)), sendgrid(body=b"payload"), sendgrid(sign="AAAA"),
        sendgrid(sign="%"), sendgrid(at="timestamp"), sendgrid(sign=""), request(SENDGRID_BODY),
    ):  # fmt: skip
        assert not one.proves(bad, SENDGRID_TIME)
    assert not prover(tmp_path, [SENDGRID_OTHER], **proof).proves(sendgrid(), SENDGRID_TIME)
    for late in (86401, -86401):
        assert not one.proves(sendgrid(), SENDGRID_TIME + late)


@pytest.mark.parametrize(
    ("url", "sign"),
    [
        (TWILIO_URL, "RSOYDt4T1cUTdK1PDd93/VVr8B8="),
        (TWILIO_URL.replace(".com", ".com:1234"), "RSOYDt4T1cUTdK1PDd93/VVr8B8="),
        (TWILIO_URL, "kvajT1Ptam85bY51eRf/AJRuM3w="),  # with the port 443
        (TWILIO_URL.replace("https", "http"), "0ZXoZLH/DfblKGATFgpif+LLRf4="),  # 80
        (TWILIO_URL.replace("https", "http").replace(".com", ".com:1234"),
         "Zmvh+3yNM1Phv2jhDCwEM3q5ebU="),
    ],
)  # fmt: skip
def test_the_vectors_of_twilio(
    tmp_path: Path, url: str, sign: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # their key is short
    monkeypatch.setattr("pgmta_features.callbacks.settings._MIN_SECRET_OCTETS", 5)
    one = prover(tmp_path, [TWILIO_KEY], **shipped_callback("twilio")["proof"])
    body = urlencode(TWILIO_FORM).encode()
    assert one.proves(request(body, url, X_Twilio_Signature=sign), 0.0)
    assert not one.proves(request(body + b"&x=1", url, X_Twilio_Signature=sign), 0.0)
    assert not one.proves(request(body, url + "&x=1", X_Twilio_Signature=sign), 0.0)
    assert not one.proves(request(b"\xff", url, X_Twilio_Signature=sign), 0.0)
    assert not one.proves(request(body, url + "&x=\udcff\ud800", X_Twilio_Signature=sign), 0.0)
    body, sign = (
        b"Sid=CA123&SidAccount=AC123&Digits=5678&Digits=1234",
        "IK+Dwps556ElfBT0I3Rgjkr1wJU=",
    )
    assert one.proves(request(body, TWILIO_URL, X_Twilio_Signature=sign), 0.0)  # a name twice


def test_a_key_of_resend_is_base64_and_may_sign_twice(tmp_path: Path) -> None:
    """As resend 2.52.0 verifies: HMAC-SHA256 over id.timestamp.body, by the decoded secret."""
    octets = b"secret of this endpoint"
    key = "whsec_" + base64.b64encode(octets).decode()
    one = prover(tmp_path, [key], **shipped_callback("resend")["proof"])
    body = b'{"type":"email.sent"}'
    mac = hmac.digest(octets, b"msg_1.1700000000." + body, hashlib.sha256)
    good = "v1," + base64.b64encode(mac).decode()
    for sign, right in [(good, True), (f"v1,AAAA {good}", True), (good[3:], False), ("v1,", False)]:
        asked = request(
            body, svix_id="msg_1", svix_timestamp="1700000000", svix_signature=sign
        )  # fmt: skip
        assert one.proves(asked, 1_700_000_000) is right


def test_a_signature_of_mailgun_is_in_the_body(tmp_path: Path) -> None:
    """As mailgun 1.10.0 verifies: HMAC-SHA256 over timestamp and token, as hexadecimal digits."""
    key = "TEST_WEBHOOK_SIGNING_KEY"
    one = prover(tmp_path, [key], **shipped_callback("mailgun")["proof"])
    token = "651869375b9df3c98fc15c4889b102119add1235c38fc92824"
    digits = hmac.digest(key.encode(), b"1534108637" + token.encode(), hashlib.sha256).hex()
    body = '{"signature": {"timestamp": "1534108637", "token": "%s", "signature": "%s"}}'
    assert one.proves(
        request(
            (body % (token, digits)).encode(),
        ),
        1534108637,
    )
    assert not one.proves(request((body % ("x" + token, digits)).encode()), 1534108637)
    stranger = (body % ("\\ud800", digits)).encode()
    for bad in (stranger, b"{", b"[" * 100_000, b"[]", b"null", b'{"signature": "x"}'):
        assert not one.proves(request(bad), 1534108637)


def test_a_message_with_no_path(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'a\.\.b' is no path"):
        prover(tmp_path, ["x" * 16], by="hmac", message="{{json.a..b}}", signature="query.s")


def test_ed25519_by_pem(tmp_path: Path) -> None:
    private = ed25519.Ed25519PrivateKey.generate()
    pem = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    one = prover(
        tmp_path, [pem.decode()], by="public_key", message="{{body}}{{query.n}}",
        signature="query.sign", encoding="hex",
    )  # fmt: skip
    url = f"https://a.example/x?n=7&sign={private.sign(b'hello7').hex()}"
    assert one.proves(request(b"hello", url), 0.0)
    assert not one.proves(request(b"hello!", url), 0.0)


def test_logins_and_secret_urls(tmp_path: Path) -> None:
    basic = prover(tmp_path, ["user:a long password", "user:the one before"], by="basic")
    for login, right in [
        ("user:a long password", True), ("user:the one before", True), ("user:other", False),
        ("", False),
    ]:  # fmt: skip
        field = "Basic " + base64.b64encode(login.encode()).decode()
        assert basic.proves_header(request(Authorization=field)) is right
    for field in ("", "Basic", "Basic %%%", "Bearer dXNlcg=="):
        assert not basic.proves_header(request(Authorization=field))
    assert basic.proves(request(), 0.0)
    by_url = prover(tmp_path, ["abcdefghijklmnop"], by="secret_url")
    assert by_url.proves_header(request(secret="abcdefghijklmnop"))
    for secret in ("", "abcdefghijklmno", "abcdefghijklmnop/", "ABCDEFGHIJKLMNOP", "é", "\udcff"):
        assert not by_url.proves_header(request(secret=secret))


def test_no_key_of_rsa(tmp_path: Path) -> None:
    pem = rsa.generate_private_key(65537, 2048).public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )  # fmt: skip
    for text in (pem.decode(), "no key", "-----BEGIN PUBLIC KEY-----"):
        with pytest.raises(ValueError, match="key0"):
            prover(tmp_path, [text], **shipped_callback("sendgrid")["proof"])
