"""A test CA: certificates as hosts have them, right and wrong ones, and their TLSA values."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Certificate:
    """A certificate with its key, in one PEM file that has the chain too."""

    path: Path
    certificate: x509.Certificate

    def tlsa(self, selector: int = 1, matching: int = 1) -> str:
        """Return the certificate association data of a TLSA record (RFC 6698, section 2.1)."""
        if selector:
            key = self.certificate.public_key()
            data = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        else:
            data = self.certificate.public_bytes(Encoding.DER)
        if matching == 1:
            data = hashlib.sha256(data).digest()
        elif matching == 2:
            data = hashlib.sha512(data).digest()
        return data.hex()

    def context(self) -> ssl.SSLContext:
        """Return a TLS context for a server with it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path)
        return context


class Authority:
    """A CA, whose certificate is in the file `path`."""

    def __init__(self, folder: Path, name: str = "pgmta test CA") -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.now(UTC)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 1000 * DAY)
            .not_valid_after(now + 1000 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_usage(ca=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, SHA256())
        )
        self.path = folder / "ca.pem"
        self.path.write_bytes(self.certificate.public_bytes(Encoding.PEM))
        self.own = Certificate(self.path, self.certificate)
        self._made: dict[str, Certificate] = {}

    def issue(self, names: Iterable[str], *, expired: bool = False) -> Certificate:
        """Return a certificate of the names, with the chain up to the CA's certificate."""
        names = list(names)
        label = f"{names[0]}-{'expired' if expired else 'good'}"
        if label in self._made:
            return self._made[label]
        key = self._leaf_key
        now = datetime.now(UTC)
        first, last = (now - 90 * DAY, now - DAY) if expired else (now - DAY, now + 90 * DAY)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])]))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(first)
            .not_valid_after(last)
            .add_extension(x509.SubjectAlternativeName(map(x509.DNSName, names)), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(ca=False), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .sign(self._key, SHA256())
        )
        path = self._folder / f"{label}.pem"
        path.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            + certificate.public_bytes(Encoding.PEM)
            + self.certificate.public_bytes(Encoding.PEM)
        )
        made = self._made[label] = Certificate(path, certificate)
        return made


def _usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )
