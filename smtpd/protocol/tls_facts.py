"""The TLS of one connection, as its session knows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TlsFacts:
    """Version and cipher, such as `TLSv1.3` and `TLS_AES_256_GCM_SHA384`; who the client is.

    `client` is the name in the client's certificate. It is empty if the listener does not trust
    that certificate, or if there is none.
    """

    version: str
    cipher: str
    client: str = ""
