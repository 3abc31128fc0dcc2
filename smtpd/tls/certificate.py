"""One certificate of this host with its key, as its PEM files have it."""

from __future__ import annotations

import codecs
import ssl
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from smtpd.config import Certificate

_PEM_LABELS = ("CERTIFICATE", "X509 CERTIFICATE")  # RFC 7468, section 5.1
# Clients of authorities renew long before; a certificate for six days has a third of its time.
_EXPIRY_WARNING = timedelta(days=7)
_EXPIRY_WARNING_FRACTION = 3


class CertificateProblem(Exception):
    """A file of a certificate or key can't be used; the text says the file and the reason."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Names a certificate is for, the kind of its key, and when it counts.

    Names are in lower case, and one may begin with `*.`. Kinds are object identifiers of algorithms
    of keys: a TLS context has room for one certificate of each kind.
    """

    certificate: Path
    key: Path
    names: tuple[str, ...]
    kind: str
    since: datetime
    until: datetime

    @classmethod
    def read(cls, entry: Certificate) -> Identity:
        """Return the identity in the files of an entry. Raises CertificateProblem."""
        # Not at the top, because it takes 5 MB of memory; `cryptography` would take 11.
        from asn1crypto import core, pem, x509

        try:
            text = entry.certificate.read_bytes().removeprefix(codecs.BOM_UTF8)
            blocks = pem.unarmor(text, multiple=True)
            first = next(
                x509.Certificate.load(der) for kind, _, der in blocks if kind in _PEM_LABELS
            )
        except OSError as error:
            raise CertificateProblem(f"{entry.certificate}: {error.strerror}") from None
        except (ValueError, StopIteration):
            raise CertificateProblem(f"{entry.certificate}: has no certificate in PEM") from None
        try:
            content = first["tbs_certificate"]
            key = core.Sequence.load(content["subject_public_key_info"].dump())
            identity = cls(
                entry.certificate,
                entry.key or entry.certificate,
                _names(content["extensions"]),
                key[0][0].dotted,
                first.not_valid_before,
                first.not_valid_after,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = str(error).partition("\n")[0]
            raise CertificateProblem(f"{entry.certificate}: can't be read: {reason}") from None
        identity.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        return identity

    def load_into(self, context: ssl.SSLContext) -> None:
        """Give certificate and key to a context. Raises CertificateProblem."""
        try:
            self.key.open("rb").close()  # OpenSSL does not say which of the files it can't read
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except ssl.SSLError as error:
            raise CertificateProblem(self._objection(error.reason)) from None
        except OSError as error:
            raise CertificateProblem(f"{self.key}: {error.strerror}") from None

    def _objection(self, reason: str | None) -> str:
        """Return the file and the reason of OpenSSL in other words; `reason` is its name there."""
        if reason == "KEY_VALUES_MISMATCH":
            return f"{self.key}: is not the key of {self.certificate}"
        if reason in ("EE_KEY_TOO_SMALL", "CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK"):
            return f"{self.key}: {self.certificate} is too weak: OpenSSL says {reason}"
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(self.certificate)
            if b"ENCRYPTED" in self.key.read_bytes():
                problem = "is encrypted, and smtpd has no password: store the key without one"
                return f"{self.key}: {problem}"
        except ssl.SSLError:
            return f"{self.certificate}: one of its certificates is broken"
        except OSError as error:
            return f"{self.key}: {error.strerror}"
        return f"{self.key}: has no private key in PEM"

    def serves(self, host: str) -> bool:
        """Return whether the certificate is for a host (RFC 6125, section 6.4.3)."""
        return not {host, f"*.{host.partition('.')[2]}"}.isdisjoint(self.names)

    def warning(self, now: datetime | None = None) -> str:
        """Return that the certificate has expired or soon does, or is too new; or nothing."""
        now = now or datetime.now(UTC)
        if self.until <= now:
            return f"{self.certificate}: expired on {self.until:%Y-%m-%d}"
        if self.since > now:
            return f"{self.certificate}: is not valid before {self.since:%Y-%m-%d %H:%M} UTC"
        soon = min(_EXPIRY_WARNING, (self.until - self.since) / _EXPIRY_WARNING_FRACTION)
        if self.until <= now + soon:
            return f"{self.certificate}: expires on {self.until:%Y-%m-%d}"
        return ""


def _no_password() -> str:
    """Return no password: OpenSSL would ask for it on the terminal."""
    return ""


def _names(extensions: Iterable[Any]) -> tuple[str, ...]:
    """Return the DNS names of subjectAltName (RFC 5280, section 4.2.1.6): none if it is broken."""
    with suppress(ValueError):
        for extension in extensions:
            if extension["extn_id"].native == "subject_alt_name":
                return tuple(
                    name.chosen.contents.decode().lower()
                    for name in extension["extn_value"].parsed
                    if name.name == "dns_name"
                )
    return ()
