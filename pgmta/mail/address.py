"""Parse mailboxes and normalise domains (RFC 5321, section 4.1.2; RFC 6531 for UTF-8)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from functools import lru_cache

import idna

from pgmta.errors import AddressError
from pgmta.mail.telephone import NUMBER_DOMAIN, is_number, number_of
from pgmta.mail.text import unsafe

MAX_ADDRESS_OCTETS = 254
"""Octets in a mailbox: a path of 256 less its angle brackets (RFC 5321, section 4.5.3.1.3)."""

# Names the characters that an atom can't have: to compile a range up to U+10FFFF takes a tenth of
# the start of a command.
ATOM = r'[^\x00-\x20"(),.:;<>@\[\\\]\x7f]+'
"""A pattern of the characters of an atom (RFC 5322, section 3.2.3; RFC 6532)."""
_DOTTED = rf"{ATOM}(?:\.{ATOM})*"
_LOCAL = re.compile(rf'(?:{_DOTTED}|"(?:[^\x00-\x1f"\\\x7f]|\\[\x20-\x7e])*")')
_NEEDS_NO_QUOTES = re.compile(_DOTTED)
_QUOTED_PAIR = re.compile(r"\\(.)", re.DOTALL)
_NEEDS_BACKSLASH = re.compile(r'(["\\])')
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_JOINERS = "\u200c\u200d"  # format characters that some scripts and emoji need
_BLANKS = " \t"  # str.strip() would remove other characters too, which SMTP takes for no space
_SOURCE_ROUTE = re.compile(r"@[^:<>\s]+:")


@lru_cache(maxsize=4096)
def normalise_domain(domain: str) -> str:
    """Return the domain as routes and queries compare it: lower case, A-labels, no final dot.

    Non-ASCII labels are mapped by UTS 46, non-transitional, and follow IDNA 2008 (RFC 5891).
    ASCII labels stay unchanged. Raises AddressError if the text is neither a host name nor an
    address literal.
    """
    if domain.startswith("["):
        return _literal(domain)
    ascii_domain = domain if domain.isascii() else _a_labels(domain)
    if len(ascii_domain) > 253 or not _DOMAIN.fullmatch(ascii_domain):
        raise AddressError(f"malformed domain {domain!r}")
    return ascii_domain.lower()


def _a_labels(domain: str) -> str:
    _check_characters(domain)
    try:
        labels = idna.uts46_remap(domain, std3_rules=False).split(".")
        return ".".join(
            label if label.isascii() else idna.alabel(label).decode("ascii") for label in labels
        )
    except (idna.IDNAError, UnicodeError) as error:
        raise AddressError(f"domain {domain!r} cannot be written in IDNA: {error}") from None


def _check_characters(text: str) -> None:
    """Raise AddressError for a character that no address needs and that a terminal may obey."""
    for char in text:
        if char not in _JOINERS and unsafe(char):
            raise AddressError(f"character U+{ord(char):04X} is not allowed in an address")


def _literal(domain: str) -> str:
    inner = domain[1:-1] if domain.endswith("]") else ""
    text = inner[5:] if inner[:5].lower() == "ipv6:" else inner
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise AddressError(f"malformed address literal {domain!r}") from None
    # a zone (fe80::1%eth0) has no meaning on other hosts, and could hold any character
    if (address.version == 6) != (text is not inner) or "%" in text:
        raise AddressError(f"malformed address literal {domain!r}")
    return f"[IPv6:{address}]" if address.version == 6 else f"[{address}]"


def parse_mailbox(text: str, *, utf8: bool = False) -> tuple[str, str]:
    """Return `text` (local-part@domain) and its normalised domain.

    `utf8` permits the characters of RFC 6531. Raises AddressError for any other text: control
    characters, missing parts and overlong mailboxes never get into the queue.
    """
    local, at, domain = text.rpartition("@")
    if not at:
        raise AddressError(f"no domain in {text!r}")
    if not text.isascii():
        if not utf8:
            raise AddressError(f"{text!r} needs SMTPUTF8")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise AddressError("address is not valid UTF-8") from None
        _check_characters(text)
    if len(text.encode()) > MAX_ADDRESS_OCTETS:
        raise AddressError(f"address is over {MAX_ADDRESS_OCTETS} octets")
    if not _LOCAL.fullmatch(local):
        raise AddressError(f"malformed local part in {text!r}")
    normal = normalise_domain(domain)
    if normal == NUMBER_DOMAIN:
        raise AddressError(f"{text!r}: sms is the domain of telephone numbers; write the number")
    return text, normal


def with_domain(address: str, domain: str) -> str:
    """Return a parsed recipient with its normalised domain, as suppressions have it."""
    local, at, _ = address.rpartition("@")
    return f"{local}@{domain}" if at else address


def parse_recipient(text: str) -> tuple[str, str]:
    """Return a mailbox or telephone number in its form for the queue, and its domain.

    A mailbox beyond ASCII has its domain in A-labels. Raises AddressError.
    """
    if is_number(text):
        return number_of(text), NUMBER_DOMAIN
    address, domain = parse_mailbox(text, utf8=True)
    return address if address.isascii() else with_domain(address, domain), domain


def unquoted(local: str) -> str:
    """Return a local part with as few quotes and backslashes as it needs.

    All quoted forms of a local part are one mailbox (RFC 5321, section 4.1.2).
    """
    if local[:1] != '"' or local[-1:] != '"' or len(local) == 1:
        return local
    text = _QUOTED_PAIR.sub(r"\1", local[1:-1])
    if _NEEDS_NO_QUOTES.fullmatch(text):
        return text
    return '"' + _NEEDS_BACKSLASH.sub(r"\\\1", text) + '"'


def lower_ascii(text: str) -> str:
    """Return text with its ASCII letters in lower case, as PostgreSQL's lower() in collation C."""
    return text.lower() if text.isascii() else text.encode().lower().decode()


def mailbox_key(address: str) -> str:
    """Return the text by which addresses are compared: other addresses have other ones.

    Case and needless quotes make no difference, and domains are in A-labels.
    """
    local, at, _ = address.rpartition("@")
    return f"{unquoted(local).lower()}@{domain_of(address)}" if at else address.lower()


@lru_cache(maxsize=1024)
def domain_of(address: str) -> str:
    """Return the normalised domain of an address; empty for the null reverse-path.

    Text that is no domain comes back in lower case.
    """
    domain = address.rpartition("@")[2] if "@" in address else ""
    if domain.isascii():
        return domain.lower()
    try:
        return normalise_domain(domain)
    except AddressError:
        return domain.lower()


def in_a_labels(address: str) -> str:
    """Return an address with its domain in A-labels, if its local part is ASCII.

    It is the same mailbox (RFC 5890, section 2.3.2.1), and a host needs no SMTPUTF8 for it. So an
    address that is not ASCII afterwards needs it (RFC 6531, section 3.3). A malformed domain stays.
    """
    if address.isascii():
        return address
    local, at, _ = address.rpartition("@")
    return f"{local}@{domain_of(address)}" if at and local.isascii() else address


def needs_utf8(*addresses: str) -> bool:
    """Return whether a host has to know SMTPUTF8 for these addresses."""
    return not all(address.isascii() or in_a_labels(address).isascii() for address in addresses)


def domains_above(domain: str) -> Iterator[str]:
    """Yield the domains above a domain, the nearest one first."""
    while "." in domain:
        domain = domain.partition(".")[2]
        yield domain


def split_path(argument: str) -> tuple[str, str]:
    """Return the bare path and the parameters of `<path> params` after MAIL FROM: or RCPT TO:.

    The obsolete source route is cut off (RFC 5321, appendix C). Raises AddressError.
    """
    argument = argument.strip(_BLANKS)
    if not argument.startswith("<"):
        path, _, rest = argument.partition(" ")
        if not path or "<" in path or ">" in path:
            raise AddressError("path is not in angle brackets")
        return path, rest.strip(_BLANKS)
    end = _closing(argument)
    route = _SOURCE_ROUTE.match(argument, 1, end)
    start = route.end() if route and route.end() < end else 1
    rest = argument[end + 1 :]
    if rest:
        if rest[0] not in _BLANKS:
            raise AddressError("there is no space behind the path")
        rest = rest.strip(_BLANKS)
    return argument[start:end], rest


def _closing(argument: str) -> int:
    """Return the index of the `>` that ends the path; quoted local parts may have others."""
    end = argument.find(">")
    if '"' not in argument[:end]:
        if end < 0:
            raise AddressError("path is not in angle brackets")
        return end
    quoted = escaped = False
    for index, char in enumerate(argument):
        if escaped:
            escaped = False
        elif char == "\\" and quoted:
            escaped = True
        elif char == '"':
            quoted = not quoted
        elif char == ">" and not quoted:
            return index
    raise AddressError("path is not in angle brackets")
