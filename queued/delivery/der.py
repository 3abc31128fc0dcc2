"""Reads the key of a certificate that TLSA records name, octet for octet (X.690, RFC 5280).

A library that parses a key and writes it again may write other octets, whose digest differs.
"""

from __future__ import annotations

_SEQUENCE = 0x30
_VERSION = 0xA0  # [0] EXPLICIT, absent in certificates of version 1
_BEFORE_KEY = 5  # serialNumber, signature, issuer, validity, subject


def subject_public_key_info(certificate: bytes) -> bytes:
    """Return the SubjectPublicKeyInfo of a DER certificate (RFC 5280, section 4.1).

    Raises ValueError if the octets are no certificate.
    """
    _, start, _ = _element(certificate, 0, _SEQUENCE)  # Certificate
    _, at, end = _element(certificate, start, _SEQUENCE)  # TBSCertificate
    if certificate[at : at + 1] == bytes([_VERSION]):
        at = _element(certificate, at)[2]
    for _ in range(_BEFORE_KEY):
        at = _element(certificate, at)[2]
    first, _, after = _element(certificate, at, _SEQUENCE)
    if after > end:
        raise ValueError("key is longer than its certificate")
    return certificate[first:after]


def _element(data: bytes, at: int, tag: int | None = None) -> tuple[int, int, int]:
    """Return where the element at `at` begins, where its content begins, and where it ends."""
    if at + 2 > len(data) or (tag is not None and data[at] != tag):
        raise ValueError(f"not the DER that was expected at octet {at}")
    length, content = data[at + 1], at + 2
    if length >= 0x80:  # the long form: the length has several octets
        octets = length & 0x7F
        if not 0 < octets <= 4 or content + octets > len(data):
            raise ValueError(f"not a DER length at octet {at + 1}")
        length = int.from_bytes(data[content : content + octets])
        content += octets
    if content + length > len(data):
        raise ValueError(f"DER element at octet {at} is cut off")
    return at, content, content + length
