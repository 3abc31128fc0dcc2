"""The TLS of one connection, as its session knows it."""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass
from typing import Any

from smtpd.config import ClientCertificates

_NAME_KINDS = ("DNS", "email")


@dataclass(frozen=True, slots=True)
class TlsFacts:
    """Version and cipher, such as `TLSv1.3` and `TLS_AES_256_GCM_SHA384`; who the client is.

    `client` is the name in the client's certificate. It is empty if the listener does not trust
    that certificate, or if there is none.
    """

    version: str
    cipher: str
    client: str = ""

    @classmethod
    def read(cls, session: ssl.SSLObject, clients: ClientCertificates | None) -> TlsFacts:
        """Return the facts of a session; without `clients` no certificate is trusted."""
        cipher = session.cipher()
        name = _trusted_name(clients, session) if clients else ""
        return cls(session.version() or "", cipher[0] if cipher else "", name)


def _trusted_name(clients: ClientCertificates, session: ssl.SSLObject) -> str:
    """Return the name of a client whose certificate is trusted, or nothing.

    OpenSSL has verified the certificate. A certificate without names has its fingerprint as name.
    """
    der = session.getpeercert(binary_form=True) if clients.authorities else None
    if not der:
        return ""
    found: Any = session.getpeercert() or {}
    names = [
        value.lower() for kind, value in found.get("subjectAltName", ()) if kind in _NAME_KINDS
    ]
    for name in names:
        if name in clients.names:
            return str(name)
    fingerprint = hashlib.sha256(der).hexdigest()
    if fingerprint in clients.fingerprints:
        return str(names[0]) if names else fingerprint
    return ""
