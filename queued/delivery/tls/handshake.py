"""The TLS handshake with a host, and the check of its certificate."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from pgmta.errors import DeliveryError, Stage
from pgmta.mail.text import printable
from queued.delivery.tls import dane
from queued.delivery.tls.tls_contexts import TlsContexts
from queued.delivery.tls.tls_policy import HostPolicy, TlsMode

_SHOWN_CHARACTERS = 200  # of a reason
# Codes of X509_STORE_CTX_get_error(3) in OpenSSL:
_EXPIRED, _OTHER_HOST, _OTHER_ADDRESS = 10, 62, 64
_CERTIFICATE_CODES = range(2, 80)  # the others that are about certificates


class BrokenTls(DeliveryError):
    """TLS with the host failed, so the connection is of no use.

    A policy that does not ask for TLS allows another connection in plain text. `result` is the
    result type for TLSRPT (RFC 8460, section 4.3).
    """

    def __init__(self, line: str, result: str = "validation-failure") -> None:
        super().__init__(line, Stage.TLS)
        self.result = result


type StartTls = Callable[[ssl.SSLContext, str], Awaitable[ssl.SSLObject]]
"""Does a handshake for a host name. Raises OSError, of which SSLError is one, and ValueError."""


async def shake_hands(
    start: StartTls, contexts: TlsContexts, policy: HostPolicy, host: str
) -> tuple[str, str]:
    """Do the handshake that the policy asks for; return the version of TLS and the cipher.

    Raises BrokenTls, and the errors of `start` of other kinds. The connection is of no use then.
    """
    context, name = contexts.find_context(policy.mode), server_name(policy, host)
    try:
        session = await start(context, name)
    except (OSError, ValueError) as error:
        context.forget(name)
        result, why = _failure(error)
        raise BrokenTls(f"4.7.5 TLS with {name}: {why}", result) from None
    if policy.mode is TlsMode.DANE:
        try:
            dane.authenticate(policy.tlsa, presented(session), policy.names, datetime.now(UTC))
        except dane.DaneError as error:
            context.forget(name)
            raise BrokenTls(
                f"4.7.5 DANE of {name}: {printable(str(error))}", error.result
            ) from None
    cipher = session.cipher()
    return session.version() or "", cipher[0] if cipher else ""


def server_name(policy: HostPolicy, host: str) -> str:
    """Return the name for SNI: of a host with TLSA records their domain (RFC 7672, section 8.1)."""
    return policy.names[0] if policy.names else host


def presented(session: Any) -> Sequence[bytes]:
    """Return the certificates that the host sent, its own first, in DER."""
    # the method is public since Python 3.13; before, the object of _ssl has it
    public = hasattr(session, "get_unverified_chain")
    holder = session if public else getattr(session, "_sslobj", session)
    chain = holder.get_unverified_chain() or ()
    return [
        each if isinstance(each, bytes) else ssl.PEM_cert_to_DER_cert(each.public_bytes())
        for each in chain
    ]


def _failure(error: OSError | ValueError) -> tuple[str, str]:
    """Return the result type for TLSRPT and the reason, as one line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = printable(error.verify_message)[:_SHOWN_CHARACTERS]
        if error.verify_code == _EXPIRED:
            return "certificate-expired", why
        if error.verify_code in (_OTHER_HOST, _OTHER_ADDRESS):
            return "certificate-host-mismatch", why
        known = error.verify_code in _CERTIFICATE_CODES
        return "certificate-not-trusted" if known else "validation-failure", why
    if isinstance(error, ssl.SSLError):
        why = (error.reason or str(error)).lower().replace("_", " ")
    elif isinstance(error, OSError):
        why = error.strerror or str(error)
    else:
        why = str(error)
    return "validation-failure", printable(why or "connection closed by peer")[:_SHOWN_CHARACTERS]
