"""Certificates: chosen by name and kind, read again when they change; those of clients."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pgmta.config.loader import load
from pgmta.errors import ConfigError
from smtpd import config
from smtpd.config import SmtpdConfig
from smtpd.tls import contexts as context_set
from smtpd.tls.certificate import CertificateProblem, Identity
from smtpd.tls.contexts import ContextSet
from tests.support.certificates import Certificate
from tests.support.serving import Client, serving
from tests.support.waiting import until

STRANGERS = {"networks": [], "domains": ["example.org"]}


def entry(certificate: Certificate, folder: Path) -> dict[str, str]:
    path, key = certificate.files(folder)
    return {"certificate": str(path), "key": str(key)}


def presented(port: int, name: str | None, ciphers: str = "") -> bytes:
    """The certificate that smtpd shows to a client that asks for a name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if ciphers:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(ciphers)
    with Client(port) as client:
        session = context.wrap_socket(client.socket, server_hostname=name)
        client.over(session)
        assert client.reply()[:3] == "220"
        return session.getpeercert(binary_form=True) or b""


def test_name_and_kind_of_key_choose(database: str, root: Certificate, tmp_path: Path) -> None:
    first, kind = root.issue("mx.example", "mx2.example"), root.issue("mx.example", rsa_key=True)
    other, wild = root.issue("other.example"), root.issue("*.wild.example")
    certificates = [entry(each, tmp_path) for each in (first, kind, other, wild)]
    listen = [{"tls": "implicit"}]
    with serving(database, listen=listen, certificates=certificates) as port:
        for name, expected in (
            (None, first), ("mx.example", first), ("MX2.example", first), ("nowhere", first),
            ("other.example", other), ("a.wild.example", wild), ("a.b.wild.example", first),
            ("wild.example", first),
        ):  # fmt: skip
            assert presented(port, name) == expected.der, name
        assert presented(port, "mx.example", "aRSA") == kind.der
        assert presented(port, None, "aRSA") == kind.der
        assert presented(port, "mx.example", "aECDSA") == first.der
        with pytest.raises(ssl.SSLError):
            presented(port, "other.example", "aRSA")


def test_changed_files_are_read_again(
    database: str, root: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_set, "_FILES_LOOK_INTERVAL_S", 0.05)
    old, new = root.issue("mx.example"), root.issue("mx.example")
    paths = [tmp_path / "mx.pem", tmp_path / "mx.key"]

    def install(source: Path, path: Path) -> None:
        shutil.copy(source, tmp_path / "new")
        os.replace(tmp_path / "new", path)

    for source, path in zip(old.files(tmp_path), paths, strict=True):
        install(source, path)
    certificates = [{"certificate": str(paths[0]), "key": str(paths[1])}]
    listen = [{"tls": "implicit"}]
    with serving(database, listen=listen, certificates=certificates) as port:
        assert presented(port, None) == old.der
        install(new.files(tmp_path)[0], paths[0])  # without its key, it is not used
        paths[1].write_text("nothing")
        assert presented(port, None) == old.der
        install(new.files(tmp_path)[1], paths[1])
        until(lambda: presented(port, None) == new.der)


def test_clients_with_a_certificate_are_trusted(
    database: str, root: Certificate, tmp_path: Path
) -> None:
    named, pinned = root.issue("web1.example"), Certificate.self_signed("satellite")
    authorities = tmp_path / "clients.pem"
    authorities.write_bytes(root.files(tmp_path)[0].read_bytes())
    with authorities.open("ab") as file:
        file.write(pinned.files(tmp_path)[0].read_bytes())
    clients = {
        "authorities": str(authorities),
        "names": ["WEB1.example"],
        "fingerprints": [hashlib.sha256(pinned.der).hexdigest()],
    }
    certificates = [entry(root.issue("mx.example"), tmp_path)]
    listen = [{"tls": "implicit", "client_certificates": clients}]
    with serving(database, listen=listen, certificates=certificates, relay=STRANGERS) as port:

        def reply(own: Certificate | None) -> str:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(cadata=root.der)
            if own:
                context.load_cert_chain(*own.files(tmp_path))
            with Client(port) as client:
                client.over(context.wrap_socket(client.socket, server_hostname="mx.example"))
                assert client.reply()[:3] == "220"
                for command in ("EHLO c", "MAIL FROM:<a@b.example>"):
                    assert client.say(command)[:3] == "250"
                return client.say("RCPT TO:<r@elsewhere.example>")[:3]

        assert reply(named) == reply(pinned) == "250"
        assert reply(None) == reply(root.issue("web2.example")) == "550"
        with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
            reply(Certificate.self_signed("web1.example"))


def test_mistakes(root: Certificate, tmp_path: Path) -> None:
    good, other = entry(root.issue("mx.example"), tmp_path), entry(root.issue("b"), tmp_path)
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing\n")
    path = tmp_path / "smtpd.yaml"
    path.write_text(
        f"certificates:\n"
        f"  - {{certificate: {good['certificate']}, key: {other['key']}}}\n"
        f"  - {tmp_path}/missing.pem\n"
        f"  - {empty}\n"
        f"listen:\n"
        f"  - {{port: 25}}\n"
        f"  - {{port: 587, role: submission, tls: none}}\n"
        f"  - port: 588\n"
        f"    auth: offered\n"
        f"    certificates: [{good['certificate']}]\n"
        f"  - {{port: 589, client_certificates: {{authorities: {empty}, names: [a]}},"
        f" certificates: [{{certificate: {good['certificate']}, key: {good['key']}}}]}}\n"
    )
    with pytest.raises(ConfigError) as raised:
        ContextSet(load(path, SmtpdConfig)).load(path)
    assert raised.value.problems == [
        f"{path}:2: certificates[0]: {other['key']}: is not the key of {good['certificate']}",
        f"{path}:3: certificates[1]: {tmp_path}/missing.pem: No such file or directory",
        f"{path}:4: certificates[2]: {empty}: has no certificate in PEM",
        f"{path}:7: listen[1].tls: AUTH needs TLS, or auth_without_tls: true",
        f"{path}:10: listen[2].certificates[0]: {good['certificate']}: has no private key in PEM",
        f"{path}:11: listen[3].client_certificates.authorities: {empty}: has no certificate in PEM",
    ]
    path.write_text("listen: [{role: submission}, {tls: implicit}]\n")
    with pytest.raises(ConfigError) as raised:
        ContextSet(load(path, SmtpdConfig)).load(path)
    assert raised.value.problems == [
        f"{path}:1: listen[0].role: submission: needs certificates, or tls: none",
        f"{path}:1: listen[1].tls: implicit: needs certificates",
    ]


def test_warnings_by_age_and_name(root: Certificate, tmp_path: Path) -> None:
    path = tmp_path / "smtpd.yaml"
    contexts: list[ContextSet] = []

    def warnings(certificate: Certificate, hostname: str = "") -> list[str]:
        text = f"certificates: [{json.dumps(entry(certificate, tmp_path))}]\n"
        path.write_text(text + (f"environment: {{hostname: {hostname}}}\n" if hostname else ""))
        contexts.append(ContextSet(load(path, SmtpdConfig)).load(path))
        return [text.partition(": ")[2] for text in contexts[-1].warnings()]

    good = root.issue("mx.example", "*.wild.example")
    for hostname in ("", "mx.example", "a.wild.example"):
        assert warnings(good, hostname) == []
    assert warnings(good, "b.example") == [
        "is not for environment.hostname, b.example, but for mx.example, *.wild.example"
    ]
    assert warnings(root.issue("mx.example", days=(1, 9)))[0].startswith("is not valid before 20")
    assert warnings(root.issue("mx.example", days=(-18, 3)))[0].startswith("expires on 20")
    assert not warnings(root.issue("mx.example", days=(-1, 5)))
    assert warnings(root.issue("mx.example", days=(-9, -1)))[0].startswith("expired on 20")
    with capture_logs() as log:
        contexts[-1]._remind()
        contexts[-1]._remind()  # not again on the same day
        contexts[0]._remind()
    assert [line["reason"] for line in log] == contexts[-1].warnings()


def test_keys_that_cannot_be_used(tmp_path: Path) -> None:
    weak, sealed = tmp_path / "weak.pem", tmp_path / "sealed.pem"
    for file, options in ((weak, ["rsa:1024", "-nodes"]), (sealed, ["rsa:2048"])):
        subprocess.run(
            ["openssl", "req", "-x509", "-subj", "/CN=a", "-passout", "pass:secret", "-keyout",
             file, "-out", tmp_path / "crt", "-newkey", *options],
            check=True, capture_output=True,
        )  # fmt: skip
        with file.open("ab") as out:
            out.write((tmp_path / "crt").read_bytes())
    path = tmp_path / "smtpd.yaml"
    path.write_text(f"certificates: [{weak}, {sealed}]\n")
    with pytest.raises(ConfigError) as raised:
        ContextSet(load(path, SmtpdConfig)).load(path)
    assert [text.partition(".pem: ")[2] for text in raised.value.problems] == [
        f"{weak} is too weak: OpenSSL says EE_KEY_TOO_SMALL",
        "is encrypted, and smtpd has no password: store the key without one",
    ]


def test_certificates_of_other_programs(tmp_path: Path) -> None:
    """A byte order mark is no mistake, and a broken chain is none of the key."""
    file, key = tmp_path / "c.pem", tmp_path / "k.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-subj", "/CN=a", "-addext", "subjectAltName=DNS:MX.Example",
         "-nodes", "-newkey", "ed25519", "-keyout", key, "-out", file],
        check=True, capture_output=True,
    )  # fmt: skip
    sound = file.read_bytes()
    file.write_bytes(b"\xef\xbb\xbf" + sound)
    entry = config.Certificate(certificate=file, key=key)
    assert Identity.read(entry).names == ("mx.example",)
    file.write_bytes(sound + sound[: len(sound) // 2])
    with pytest.raises(CertificateProblem, match=r"c\.pem: one of its certificates is broken"):
        Identity.read(entry)
