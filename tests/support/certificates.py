"""A certification authority for tests."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256, sha512
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from queued.delivery.tls.certificate_chain import subject_public_key_info

DAY = timedelta(days=1)
_Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
_PEM = serialization.Encoding.PEM
_DER = serialization.Encoding.DER


@dataclass(frozen=True)
class Certificate:
    """A certificate with its key and the certificates above it."""

    key: _Key
    own: x509.Certificate
    above: tuple[x509.Certificate, ...] = ()

    @property
    def der(self) -> bytes:
        return self.own.public_bytes(_DER)

    @property
    def chain(self) -> list[bytes]:
        """All certificates that a server sends, in DER."""
        return [each.public_bytes(_DER) for each in (self.own, *self.above)]

    @property
    def key_info(self) -> bytes:
        return self.own.public_key().public_bytes(
            _DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def issue(
        self,
        *names: str,
        ca: bool = False,
        days: tuple[int, int] = (-1, 90),
        path_length: int | None = None,
        rsa_key: bool = False,
    ) -> Certificate:
        """Return a certificate for these names, or of an authority below this one."""
        key = rsa.generate_private_key(65537, 2048) if rsa_key else None
        made = _make(self, names, ca, days, path_length, key)
        return Certificate(made.key, made.own, (self.own, *self.above))

    def again(self) -> Certificate:
        """Return another root with the same name and key."""
        (name,) = self.own.subject
        return _make(None, (str(name.value),), True, (-1, 900), None, self.key)

    @classmethod
    def root(cls, name: str = "Root") -> Self:
        made = _make(None, (name,), True, (-1, 900), None)
        return cls(made.key, made.own)

    @classmethod
    def self_signed(cls, *names: str) -> Self:
        made = _make(None, names, False, (-1, 90), None)
        return cls(made.key, made.own)

    def without(self, number: int) -> Certificate:
        """Return the same one that sends the last `number` certificates above it no more."""
        return Certificate(self.key, self.own, self.above[:-number])

    def files(self, folder: Path) -> tuple[Path, Path]:
        """Write the chain and the key in PEM; return both files."""
        name = sha256(self.der).hexdigest()[:8]
        chain, key = folder / f"{name}.pem", folder / f"{name}.key"
        chain.write_bytes(b"".join(each.public_bytes(_PEM) for each in (self.own, *self.above)))
        key.write_bytes(
            self.key.private_bytes(
                _PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return chain, key

    def server(self, folder: Path) -> ssl.SSLContext:
        """Return the settings of a server with this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.files(folder))
        return context

    def tlsa(self, usage: int, selector: int, matching: int) -> tuple[int, int, int, bytes]:
        """Return the TLSA record that names this certificate."""
        part = subject_public_key_info(self.der) if selector else self.der
        data = (part, sha256(part).digest(), sha512(part).digest())[matching]
        return usage, selector, matching, data


def _make(
    issuer: Certificate | None,
    names: tuple[str, ...],
    ca: bool,
    days: tuple[int, int],
    path_length: int | None,
    key: _Key | None = None,
) -> Certificate:
    key = key or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.own.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + days[0] * DAY)
        .not_valid_after(now + days[1] * DAY)
        .add_extension(x509.BasicConstraints(ca, path_length), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(
                (issuer.key if issuer else key).public_key()
            ),
            False,
        )
    )
    if not ca:
        alternative = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
        builder = builder.add_extension(alternative, False)
    return Certificate(key, builder.sign(issuer.key if issuer else key, hashes.SHA256()))
