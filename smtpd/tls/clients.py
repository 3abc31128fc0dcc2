"""Clients that are known by their certificate."""

from __future__ import annotations

import hashlib
import ssl
from typing import Any

from smtpd.config import ClientCertificates

_KINDS = ("DNS", "email")


def trusted_name(clients: ClientCertificates, session: ssl.SSLObject) -> str:
    """Return the name of a client whose certificate is trusted, or nothing.

    OpenSSL has verified the certificate. A certificate without names has its fingerprint as name.
    """
    der = session.getpeercert(binary_form=True) if clients.authorities else None
    if not der:
        return ""
    found: Any = session.getpeercert() or {}
    names = [value.lower() for kind, value in found.get("subjectAltName", ()) if kind in _KINDS]
    for name in names:
        if name in clients.names:
            return str(name)
    fingerprint = hashlib.sha256(der).hexdigest()
    if fingerprint in clients.fingerprints:
        return str(names[0]) if names else fingerprint
    return ""
