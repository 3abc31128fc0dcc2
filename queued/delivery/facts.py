"""The facts of a connection to a next hop, for the log of attempts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ConnectionFacts:
    """The host of a session, its address, its TLS, and how long each step took, in seconds.

    `tls_verified` says by what the host was authenticated: 'dane' (RFC 7672), 'sts' (RFC 8461),
    'pkix', or 'no'. The TLS fields are empty without TLS.
    """

    host: str = ""
    address: str = ""
    tls_version: str = ""
    tls_cipher: str = ""
    tls_verified: str = ""
    dns_seconds: float = 0.0
    connect_seconds: float = 0.0
    greeting_seconds: float = 0.0
    tls_seconds: float = 0.0
