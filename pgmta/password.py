"""Passwords of users: how they are prepared, hashed and compared (RFC 4013, RFC 9106)."""

from __future__ import annotations

import base64
import unicodedata

# argon2 and scramp take 14 MB of memory, so a process without logins never imports them.

# A hash takes about 25 ms of one core. OWASP recommends these parameters for login servers.
_PASSES, _MEMORY_KIB, _THREADS = 2, 19 * 1024, 1
_SALT_OCTETS, _HASH_OCTETS = 16, 32
_MAX_COST = (10, 64 * 1024, 8)  # passes, KiB and threads of a hash that is checked
ITERATIONS = 65_536  # clients with Cyrus SASL, such as Postfix, refuse more
"""For SCRAM keys (RFC 7677, section 4). Clients spend the time for them, and smtpd does not."""

MAX_PASSWORD_OCTETS = 1024

KEY_PREFIX = "key:"
"""Of the identity of a key of the API, as acting() returns it. No login name begins with it."""

_MAX_PREPARED_CHARACTERS = 1024  # SASLprep takes microseconds for each


def login_name(text: str) -> str:
    """Return a login name as table `users` has it: prepared (RFC 4013), in lower case.

    Raises ValueError for an empty or overlong name, and for characters that no name may have.
    """
    name = prepared_name(text).lower()
    if not 0 < len(name) <= 255:
        raise ValueError("a login name has 1 to 255 characters")
    if not name.isprintable():
        raise ValueError("a login name has no control characters")
    if name.startswith(KEY_PREFIX):
        raise ValueError(f"a login name does not begin with {KEY_PREFIX}, as keys of the API do")
    return name


def prepared(password: bytes) -> bytes:
    """Return the octets that are hashed: prepared (RFC 4013), or as they came if that is refused.

    So a password matches in whatever form a client sends its characters.
    """
    try:
        return prepared_name(password.decode()).encode()
    except ValueError:
        return password


def prepared_name(text: str) -> str:
    """Return the text prepared (RFC 4013). Raises ValueError."""
    if text.isascii() and text.isprintable():
        return text
    if not preparable(text):
        raise ValueError("the text is too long to be prepared")
    from scramp import ScramException
    from scramp.utils import saslprep

    try:
        return str(saslprep(text))
    except ScramException as error:
        raise ValueError(error.args[0]) from None


def preparable(text: str) -> bool:
    """Return whether a text is short enough to be prepared, which happens beside the sessions.

    One character may become 18 of them (Unicode, form NFKC).
    """
    if len(text) > _MAX_PREPARED_CHARACTERS:
        return False
    return text.isascii() or len(unicodedata.normalize("NFKC", text)) <= _MAX_PREPARED_CHARACTERS


def hashed(password: bytes, salt: bytes) -> str:
    """Return the hash of a prepared password by argon2id, in the PHC string format."""
    from argon2.low_level import Type, hash_secret

    return hash_secret(
        password, salt, _PASSES, _MEMORY_KIB, _THREADS, _HASH_OCTETS, Type.ID
    ).decode()


def matches(known: str, password: bytes) -> bool:
    """Return whether a prepared password has a hash. It takes time and memory: use a thread.

    Raises ValueError for a hash that is malformed, or that takes more than 64 MiB.
    """
    from argon2 import Type, extract_parameters
    from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError
    from argon2.low_level import verify_secret

    try:
        cost = extract_parameters(known)
    except InvalidHashError:
        raise ValueError("the hash of the password is malformed") from None
    if any(
        had > most
        for had, most in zip((cost.time_cost, cost.memory_cost, cost.parallelism), _MAX_COST,
                             strict=True)
    ):  # fmt: skip
        raise ValueError("the hash of the password takes too much memory or time")
    try:
        return verify_secret(known.encode(), password, Type.ID)
    except VerifyMismatchError:
        return False
    except (VerificationError, InvalidHashError) as error:
        raise ValueError(f"the hash of the password can't be checked: {error}") from None


def scram_keys(password: str, salt: bytes) -> str | None:
    """Return the keys for SCRAM-SHA-256 in the form of `users.scram`.

    None if the password can't be prepared (RFC 4013): a client could not use it for SCRAM.
    """
    from scramp import ScramException, ScramMechanism

    try:
        mechanism = ScramMechanism("SCRAM-SHA-256")
        _, stored, server, _ = mechanism.make_auth_info(password, ITERATIONS, salt)
    except ScramException:
        return None
    return f"SCRAM-SHA-256${ITERATIONS}:{_text(salt)}${_text(stored)}:{_text(server)}"


def parse_scram_keys(text: str) -> tuple[bytes, bytes, bytes, int]:
    """Return salt, stored key, server key and iterations. Raises ValueError."""
    try:
        _, cost, keys = text.split("$")
        iterations, salt = cost.split(":")
        stored, server = keys.split(":")
        parts = [base64.b64decode(part, validate=True) for part in (salt, stored, server)]
        return parts[0], parts[1], parts[2], int(iterations)
    except ValueError:
        raise ValueError("the keys for SCRAM are malformed") from None


def _text(octets: bytes) -> str:
    return base64.b64encode(octets).decode()
