"""The certificate and the user of `queuectl up`, so that a first try has TLS and a login."""

from __future__ import annotations

import ipaddress
import os
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pgmta.store.user_accounts import Rights, Secret, UserAccounts

USER = "me@example.org"
"""The login name; it may send from this address only."""
_NAMES = ("localhost", "pgmta.localhost")
_ADDRESSES = ("127.0.0.1", "::1")
_DAYS = 365
_LEFT = timedelta(days=30)  # of the certificate; then there is a new one


def make_certificate(directory: Path) -> Path:
    """Return the file of a certificate with its key, for this machine only.

    It is made if it is missing or about to expire. Clients that know the file accept it.
    """
    path = directory / "tls" / "localhost.pem"
    if not _lasts(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(path, _made())
    return path


def make_user(directory: Path, uri: str) -> Path:
    """Return the file of the password of USER, which is made if it is missing."""
    path = directory / "password"
    if not path.exists():
        _write(path, secrets.token_urlsafe(12).encode())
    secret = Secret.of(path.read_text(encoding="ascii"))
    accounts = UserAccounts(uri, "queuectl up")
    try:
        accounts.add(USER, secret, Rights(senders=[USER]))
    finally:
        accounts.close()
    return path


def _write(path: Path, content: bytes) -> None:
    """Write a file that only its owner reads."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    new.rename(path)


def _lasts(path: Path) -> bool:
    from cryptography import x509

    try:
        until = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        return False
    return until - _LEFT > datetime.now(UTC)


def _made() -> bytes:
    """Return a certificate and its key in PEM (RFC 5280)."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAMES[0])])
    now = datetime.now(UTC)
    addresses = [x509.IPAddress(ipaddress.ip_address(text)) for text in _ADDRESSES]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(
            x509.SubjectAlternativeName([*map(x509.DNSName, _NAMES), *addresses]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM) + private
