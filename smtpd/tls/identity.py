"""One certificate of this host with its key, as its PEM files have it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from smtpd.config import Certificate


class CertificateProblem(Exception):
    """A file of a certificate or key can't be used; the text says the file and the reason."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Names a certificate is for, the kind of its key, and when it expires.

    Names are in lower case, and one may begin with `*.`. Kinds are those of `cryptography`, such as
    `RSAPublicKey`: a TLS context has room for one certificate of each kind.
    """

    certificate: Path
    key: Path
    names: tuple[str, ...]
    kind: str
    until: datetime

    @classmethod
    def read(cls, entry: Certificate) -> Identity:
        """Return the identity in the files of an entry. Raises CertificateProblem."""
        from cryptography import x509  # not for an smtpd without TLS: it takes 10 MB

        try:
            first = x509.load_pem_x509_certificates(entry.certificate.read_bytes())[0]
        except OSError as error:
            raise CertificateProblem(f"{entry.certificate}: {error.strerror}") from None
        except ValueError:
            raise CertificateProblem(f"{entry.certificate}: has no certificate in PEM") from None
        try:
            extension = first.extensions.get_extension_for_class(x509.SubjectAlternativeName)
            names = extension.value.get_values_for_type(x509.DNSName)
        except (x509.ExtensionNotFound, ValueError):
            names = []
        identity = cls(
            entry.certificate,
            entry.key or entry.certificate,
            tuple(name.lower() for name in names),
            type(first.public_key()).__name__.lstrip("_"),
            first.not_valid_after_utc,
        )
        identity.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        return identity

    def load_into(self, context: ssl.SSLContext) -> None:
        """Give certificate and key to a context. Raises CertificateProblem."""
        try:
            self.key.open("rb").close()  # OpenSSL does not say which of the files it can't read
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                reason = f"is not the key of {self.certificate}"
            else:
                reason = "has no private key in PEM, or an encrypted one"
            raise CertificateProblem(f"{self.key}: {reason}") from None
        except OSError as error:
            raise CertificateProblem(f"{self.key}: {error.strerror}") from None

    def expired(self, now: datetime | None = None) -> bool:
        """Return whether the certificate has expired, now or at another time."""
        return self.until <= (now or datetime.now(UTC))


def _no_password() -> str:
    """Return no password: OpenSSL would ask for it on the terminal."""
    return ""
