"""Reads the key of a certificate that TLSA records name, octet for octet (X.690, RFC 5280).

A library that parses a key and writes it again may write other octets, whose digest differs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID

_SEQUENCE_TAG = 0x30  # of DER
_VERSION_TAG = 0xA0  # [0] EXPLICIT, absent in certificates of version 1
_ELEMENTS_BEFORE_KEY = 5  # serialNumber, signature, issuer, validity, subject


def subject_public_key_info(certificate: bytes) -> bytes:
    """Return the SubjectPublicKeyInfo of a DER certificate (RFC 5280, section 4.1).

    Raises ValueError if the octets are no certificate.
    """
    _, start, _ = _element(certificate, 0, _SEQUENCE_TAG)  # Certificate
    _, at, end = _element(certificate, start, _SEQUENCE_TAG)  # TBSCertificate
    if certificate[at : at + 1] == bytes([_VERSION_TAG]):
        at = _element(certificate, at)[2]
    for _ in range(_ELEMENTS_BEFORE_KEY):
        at = _element(certificate, at)[2]
    first, _, after = _element(certificate, at, _SEQUENCE_TAG)
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


_MAX_CERTIFICATES = 10  # from host to anchor
_CRYPTOGRAPHY_ERRORS = (
    ValueError,
    TypeError,
    InvalidSignature,
    UnsupportedAlgorithm,
    CryptographyDeprecationWarning,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
_UNDERSTOOD = {
    ExtensionOID.BASIC_CONSTRAINTS,
    ExtensionOID.KEY_USAGE,
    ExtensionOID.EXTENDED_KEY_USAGE,
    ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
}
"""Critical extensions that are obeyed; a certificate with another one counts for nothing."""

_UNTRUSTED = "certificate-not-trusted"

Problem = tuple[str, str]
"""The result type of RFC 8460, section 4.3, and the reason; both empty if there is none."""

_NO_PROBLEM: Problem = ("", "")


def problem_of_chain(
    chain: Sequence[bytes], anchor: bytes, names: Sequence[str], now: datetime
) -> Problem:
    """Return why the host's certificate, the first of `chain`, does not lead to `anchor`.

    The host's certificate needs one of `names`. Every certificate up to the anchor needs its dates,
    and every issuer the right to issue (RFC 5280, section 6.1).
    """
    try:
        host, last, *others = map(_load, (chain[0], anchor, *chain[1:_MAX_CERTIFICATES]))
    except _CRYPTOGRAPHY_ERRORS as error:
        return _UNTRUSTED, f"malformed: {error}"
    try:
        return (
            _problem_of_host(host, names, now)
            or _problem_of_path(host, last, others, now)
            or _NO_PROBLEM
        )
    except _CRYPTOGRAPHY_ERRORS as error:
        return _UNTRUSTED, f"{type(error).__name__}: {error}"


def _load(certificate: bytes) -> x509.Certificate:
    with warnings.catch_warnings():
        # refused today, as later versions of the library will, and not with a warning only
        warnings.simplefilter("error", CryptographyDeprecationWarning)
        return x509.load_der_x509_certificate(certificate)


def _problem_of_host(host: x509.Certificate, names: Sequence[str], now: datetime) -> Problem | None:
    usage = _extension(host, x509.ExtendedKeyUsage)
    allowed = {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE}
    if usage and not allowed.intersection(usage):
        return _UNTRUSTED, "the certificate is not for servers"
    has = certificate_names(host)
    if not any(name_matches(pattern, name) for pattern in has for name in names):
        return (
            "certificate-host-mismatch",
            f"the certificate is for {', '.join(has[:5]) or 'no name'}, not for {names[0]}",
        )
    return _problem_of_one(host, now)


def _problem_of_path(
    host: x509.Certificate,
    anchor: x509.Certificate,
    others: Sequence[x509.Certificate],
    now: datetime,
) -> Problem | None:
    """Return why no path leads from the host's certificate to the anchor.

    The shortest paths are looked at first, and each certificate once: a chain of CAs that have all
    issued each other has 9! paths, and would stop all mail for minutes.
    """
    why: Problem | None = None
    seen, reached = [host, anchor], [host]
    for depth in range(_MAX_CERTIFICATES):
        further: list[x509.Certificate] = []
        for below in reached:
            if (why := _problem_of_issue(below, anchor, now, depth)) is None:
                return None
        for below in reached:
            for issuer in others:
                if issuer in seen or issuer.subject != below.issuer:
                    continue
                if found := _problem_of_issue(below, issuer, now, depth):
                    why = found
                else:
                    seen.append(issuer)
                    further.append(issuer)
        if not further:
            break
        reached = further
    return why


def _problem_of_issue(
    below: x509.Certificate, issuer: x509.Certificate, now: datetime, depth: int
) -> Problem | None:
    """Return why `issuer` did not issue `below`, or may not."""
    try:
        below.verify_directly_issued_by(issuer)
    except _CRYPTOGRAPHY_ERRORS:
        return _UNTRUSTED, f"not issued by {issuer.subject.rfc4514_string()}"
    basic = _extension(issuer, x509.BasicConstraints)
    if basic is None or not basic.ca:
        return _UNTRUSTED, "an issuer is no CA"
    if basic.path_length is not None and depth > basic.path_length:
        return _UNTRUSTED, "the chain is longer than an issuer allows"
    usage = _extension(issuer, x509.KeyUsage)
    if usage and not usage.key_cert_sign:
        return _UNTRUSTED, "an issuer may not sign certificates"
    if _extension(issuer, x509.NameConstraints):
        return _UNTRUSTED, "an issuer has name constraints, which are not supported"
    return _problem_of_one(issuer, now)


def _problem_of_one(certificate: x509.Certificate, now: datetime) -> Problem | None:
    if now > certificate.not_valid_after_utc:
        return "certificate-expired", "a certificate has expired"
    if now < certificate.not_valid_before_utc:
        return _UNTRUSTED, "a certificate is not valid yet"
    if any(each.critical and each.oid not in _UNDERSTOOD for each in certificate.extensions):
        return _UNTRUSTED, "a certificate has an unknown critical extension"
    return None


def _extension[T: x509.ExtensionType](certificate: x509.Certificate, kind: type[T]) -> T | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def certificate_names(certificate: x509.Certificate) -> list[str]:
    """Return the DNS names of a certificate: those of subjectAltName, else the common name."""
    alternative = _extension(certificate, x509.SubjectAlternativeName)
    names = alternative.get_values_for_type(x509.DNSName) if alternative else []
    if names:
        return list(names)
    common: Iterable[x509.NameAttribute[str | bytes]] = certificate.subject.get_attributes_for_oid(
        NameOID.COMMON_NAME
    )
    return [str(each.value) for each in common]


def name_matches(pattern: str, name: str) -> bool:
    """Return whether a name of a certificate is `name`; `*` stands for one whole first label."""
    pattern, name = pattern.lower().rstrip("."), name.lower().rstrip(".")
    if pattern.startswith("*."):
        return "." in pattern[2:] and name.partition(".")[2] == pattern[2:]
    return pattern == name
