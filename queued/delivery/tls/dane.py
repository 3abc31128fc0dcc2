"""DANE for SMTP: which TLSA records count, and whether a host's certificates match (pure).

RFC 6698, RFC 7671, RFC 7672. Time and certificates are arguments; the network is asked elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from hashlib import sha256, sha512
from itertools import islice

from queued.delivery.tls.tls_policy import Tlsa

TRUST_ANCHOR, END_ENTITY = 2, 3
"""The certificate usages DANE-TA and DANE-EE. PKIX-TA and PKIX-EE are unusable in SMTP."""

_CERTIFICATE_SELECTOR, _KEY_SELECTOR = 0, 1  # RFC 6698, section 2.1.2
# by matching type (RFC 6698, section 2.1.3); 0 is the data itself
_DIGESTS = {1: sha256, 2: sha512}
_MAX_ANCHORS = 4  # that are tried for one host: each may take a tenth of a second
_MAX_CERTIFICATES = 16  # of a handshake that may be an anchor


class DaneError(Exception):
    """No usable TLSA record matches; the text says why, and `result` is for TLSRPT."""

    def __init__(self, text: str, result: str = "validation-failure") -> None:
        super().__init__(text)
        self.result = result


def usable(records: Iterable[Tlsa]) -> tuple[Tlsa, ...]:
    """Return the records that can authenticate a host (RFC 7672, section 3.1).

    Of the digests for the same usage and selector only the strongest count (RFC 7671, section 9).
    """
    known = [record for record in records if _well_formed(record)]
    strongest: dict[tuple[int, int], int] = {}
    for usage, selector, matching, _ in known:
        strongest[usage, selector] = max(matching, strongest.get((usage, selector), 0))
    return tuple(
        dict.fromkeys(
            record for record in known if record[2] in (0, strongest[record[0], record[1]])
        )
    )


def _well_formed(record: Tlsa) -> bool:
    usage, selector, matching, data = record
    if usage not in (TRUST_ANCHOR, END_ENTITY) or selector not in (
        _CERTIFICATE_SELECTOR,
        _KEY_SELECTOR,
    ):
        return False
    if matching == 0:
        return bool(data)
    return matching in _DIGESTS and len(data) == _DIGESTS[matching]().digest_size


def matches(record: Tlsa, certificate: bytes) -> bool:
    """Return whether the record names this DER certificate or its key (RFC 6698, section 2.1)."""
    # here, because cryptography takes 4 MB, which a queued without DANE saves
    from queued.delivery.tls.certificate_chain import subject_public_key_info

    _, selector, matching, data = record
    try:
        part = (
            certificate
            if selector == _CERTIFICATE_SELECTOR
            else subject_public_key_info(certificate)
        )
    except ValueError:
        return False
    return data == (_DIGESTS[matching](part).digest() if matching else part)


def authenticate(
    records: Sequence[Tlsa], chain: Sequence[bytes], names: Sequence[str], now: datetime
) -> str:
    """Return the record that authenticates the host, for operators. Raises DaneError.

    `chain` has the DER certificates of the handshake, the host's own first. `names` are those of
    which it needs one, for usage 2 only (RFC 7672, section 3.2.3). Usage 3 asks for neither names
    nor dates (section 3.1.1).
    """
    if not chain:
        raise DaneError("host sent no certificate")
    for record in records:
        if record[0] == END_ENTITY and matches(record, chain[0]):
            return shown(record)
    problem = DaneError("no TLSA record matches the certificate")
    from queued.delivery.tls.certificate_chain import problem_of_chain

    for anchor, record in _anchors(records, chain).items():
        result, why = problem_of_chain(chain, anchor, names, now)
        if not why:
            return shown(record)
        problem = DaneError(f"certificate chain to {shown(record)}: {why}", result)
    raise problem


def _anchors(records: Sequence[Tlsa], chain: Sequence[bytes]) -> dict[bytes, Tlsa]:
    """Return trust anchors, in DER, and the record that names each.

    At most four count, those of the handshake first: who publishes hundreds could stop all mail.
    """
    wanted = [record for record in records if record[0] == TRUST_ANCHOR]
    found: dict[bytes, Tlsa] = {}
    for certificate in dict.fromkeys(chain[1:_MAX_CERTIFICATES]):
        for record in wanted:
            if matches(record, certificate):
                found.setdefault(certificate, record)
    for record in wanted:  # such a record has the certificate itself
        if record[1:3] == (_CERTIFICATE_SELECTOR, 0):
            found.setdefault(record[3], record)
    return dict(islice(found.items(), _MAX_ANCHORS))


def shown(record: Tlsa) -> str:
    """Return a record as the DNS shows it, with the first digits of its data."""
    usage, selector, matching, data = record
    return f"TLSA {usage} {selector} {matching} {data[:8].hex()}…"
