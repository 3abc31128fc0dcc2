"""The keys of DKIM: read from PEM, and published in DNS (RFC 6376, section 3.6; RFC 8463)."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import (
    RSAPrivateKey,
    RSAPublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from nacl.signing import SigningKey as Ed25519

from queued.signing.key_problem import KeyProblem

MIN_BITS, MAX_BITS = 1024, 4096
"""Sizes of RSA keys: RFC 8301 refuses smaller ones, and verifiers need not take larger ones."""

_PADDING, _SHA256 = PKCS1v15(), SHA256()
_MAX_STRING_OCTETS = 255  # in a TXT record (RFC 1035, section 3.3)
_TAG = re.compile(r"\s*([A-Za-z][A-Za-z0-9_]*)\s*=(.*)", re.DOTALL)

type Private = RSAPrivateKey | Ed25519PrivateKey


@dataclass(slots=True, eq=False)
class SigningKey:
    """A key of a domain by its DKIM selector; a key that can't be used has the reason as `problem`.

    `type` is rsa or ed25519, or '' if the key can't be read. `active_from` are seconds since 1970.
    `source` says where the key is. The private part is read from `pem` when it is first used,
    because that takes longer than a signature.
    """

    domain: str
    selector: str
    type: str
    active_from: float
    source: str
    pem: bytes = field(default=b"", repr=False)
    problem: str = ""
    private: Private | None = field(default=None, repr=False)
    quick: Ed25519 | None = field(default=None, repr=False)
    """A private part of Ed25519 for libsodium, which takes half the time of OpenSSL."""

    @property
    def name(self) -> str:
        """The name in logs and replies: domain and DKIM selector."""
        return f"{self.domain}/{self.selector}"

    @property
    def owner(self) -> str:
        """The domain name of the record."""
        return f"{self.selector}._domainkey.{self.domain}"

    def load(self) -> Private:
        """Return the private part. Raises KeyProblem, and notes its reason."""
        if self.private is None:
            try:
                if self.problem:
                    raise KeyProblem(self.problem)
                private = read_private(self.pem)
                if self.type not in ("", type_of(private)):
                    raise KeyProblem(f"it is of type {type_of(private)}, not {self.type}")
            except KeyProblem as error:
                self.problem = str(error)
                raise
            self.type = type_of(private)
            self.private = private
        return self.private

    def sign(self, data: bytes) -> bytes:
        """Return the signature of canonical data. Other threads run meanwhile.

        Raises KeyProblem for a key that can't be used.
        """
        private = self.private or self.load()
        if isinstance(private, RSAPrivateKey):
            return private.sign(data, _PADDING, _SHA256)
        if self.quick is None:
            self.quick = Ed25519(private.private_bytes_raw())
        return self.quick.sign(hashlib.sha256(data).digest()).signature  # RFC 8463, section 3


def read_private(pem: bytes) -> Private:
    """Return the key of a PEM text without password. Raises KeyProblem."""
    try:
        # OpenSSL's search for mistakes in RSA keys takes 0.1 s; a signature shows them too
        key = serialization.load_pem_private_key(pem, None, unsafe_skip_rsa_key_validation=True)
    except TypeError:
        raise KeyProblem("it has a password") from None
    except (ValueError, UnsupportedAlgorithm):  # whose texts may show parts of the key
        raise KeyProblem("it is no private key in PEM") from None
    if isinstance(key, RSAPrivateKey):
        if not MIN_BITS <= key.key_size <= MAX_BITS:
            raise KeyProblem(f"RSA with {key.key_size} bits: expected {MIN_BITS} to {MAX_BITS}")
        if not _signs(key):
            raise KeyProblem("its signatures do not verify")
        return key
    if isinstance(key, Ed25519PrivateKey):
        return key
    raise KeyProblem("it is neither RSA nor Ed25519")


def _signs(key: RSAPrivateKey) -> bool:
    try:
        key.public_key().verify(key.sign(b"", _PADDING, _SHA256), b"", _PADDING, _SHA256)
    except (InvalidSignature, ValueError):
        return False
    return True


def new_private(kind: str, bits: int) -> Private:
    """Return a new key of type rsa or ed25519."""
    if kind == "ed25519":
        return Ed25519PrivateKey.generate()
    return generate_private_key(65537, bits)


def pem_of(key: Private) -> str:
    """Return the PEM text (PKCS #8, without password)."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def type_of(key: Private) -> str:
    """Return rsa or ed25519."""
    return "rsa" if isinstance(key, RSAPrivateKey) else "ed25519"


def public_of(key: Private) -> str:
    """Return the public part as the tag `p=` has it."""
    public = key.public_key()
    if isinstance(public, RSAPublicKey):
        octets = public.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    else:
        octets = public.public_bytes_raw()
    return base64.b64encode(octets).decode()


def record_of(kind: str, public: str) -> str:
    """Return the text of the TXT record for a public part."""
    return f"v=DKIM1; k={kind}; p={public}"


def zone_line(owner: str, record: str) -> str:
    """Return the record as a zone file has it, in strings of at most 255 octets."""
    strings = [
        record[at : at + _MAX_STRING_OCTETS] for at in range(0, len(record), _MAX_STRING_OCTETS)
    ]
    return f"{owner}. IN TXT ( " + " ".join(f'"{each}"' for each in strings) + " )"


def check_record(text: str, kind: str, public: str) -> list[str]:
    """Return remarks on a record that fits the key. Raises KeyProblem if it does not fit.

    Names of tags and the sense of their values are those of RFC 6376, section 3.6.1.
    """
    tags: dict[str, str] = {}
    for part in text.split(";"):
        if not part.strip():
            continue
        match = _TAG.fullmatch(part)
        if not match:
            raise KeyProblem(f"malformed tag {part.strip()[:40]!r}")
        if match[1] in tags:
            raise KeyProblem(f"the tag {match[1]} is there twice")
        tags[match[1]] = "".join(match[2].split())
    if tags.get("v", "DKIM1") != "DKIM1" or ("v" in tags and next(iter(tags)) != "v"):
        raise KeyProblem("v=DKIM1 is not its first tag")
    if "p" not in tags:
        raise KeyProblem("it has no tag p")
    if not tags["p"]:
        raise KeyProblem("the key is revoked: p= is empty")
    if (there := tags.get("k", "rsa")) != kind:
        raise KeyProblem(f"k={there}, and the key is {kind}")
    if "sha256" not in tags.get("h", "sha256").split(":"):
        raise KeyProblem(f"h={tags['h']} does not permit sha256")
    if not {"*", "email"} & set(tags.get("s", "*").split(":")):
        raise KeyProblem(f"s={tags['s']} does not permit mail")
    if tags["p"] != public:
        raise KeyProblem("p= is another key")
    flags = tags.get("t", "").split(":")
    remarks = ["t=y: verifiers treat the mail as unsigned"] if "y" in flags else []
    return remarks + (["t=s: no mail of subdomains with i="] if "s" in flags else [])


def verified(kind: str, public: str, data: bytes, signature: bytes) -> bool:
    """Return whether the signature of canonical data fits a public part, a value of `p=`."""
    octets = base64.b64decode(public)
    try:
        if kind == "ed25519":
            key = Ed25519PublicKey.from_public_bytes(octets)
            key.verify(signature, hashlib.sha256(data).digest())
        else:
            found = serialization.load_der_public_key(octets)
            if not isinstance(found, RSAPublicKey):
                return False
            found.verify(signature, data, _PADDING, _SHA256)
    except (InvalidSignature, ValueError, UnsupportedAlgorithm):
        return False
    return True
