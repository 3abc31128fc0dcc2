"""The login of a client: SASL PLAIN, LOGIN and SCRAM-SHA-256 (RFC 4954, 4616, 5802, 7677).

No secret is in an error or a log: the reasons name the mechanism only, and what the server says.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import stringprep
import unicodedata
from base64 import b64decode, b64encode

from pgmta.errors import DeliveryError, Stage
from queued.delivery.smtp.client_session import ClientSession
from queued.delivery.smtp.smtp_parameters import SmtpLogin
from queued.delivery.transport.secret_parts import SecretParts

_MIN_ITERATIONS = 4096  # of SCRAM (RFC 7677, section 4)
_MAX_ITERATIONS = 1_000_000  # a server that asks for more would keep this process busy
_MAX_ITERATIONS_DIGITS = 7  # of a number of iterations
_DONE_CODE, _CHALLENGE_CODE = 235, 334  # replies to AUTH (RFC 4954, section 4)


async def authenticate(session: ClientSession, login: SmtpLogin, *, clear: bool = False) -> None:
    """Log in by the first mechanism of `login` that the server announces.

    It needs TLS, unless `clear` permits a password without. Raises DeliveryError, which concerns
    the host and never the mail; the connection is closed then.
    """
    connection = session.connection
    offered = session.extensions.get("AUTH", "").upper().split()
    usable = [name for name in login.mechanisms if name in offered and name in _MECHANISMS]
    reason = ""
    if not (clear or connection.tls):
        reason = "4.7.0 AUTH needs TLS"
    elif not usable:
        wanted = " or ".join(login.mechanisms)
        reason = f"4.7.0 the next hop does not offer AUTH {wanted}"
    if reason:
        connection.quit()
        raise DeliveryError(reason, Stage.AUTH)
    dialogue = _Dialogue(session, usable[0], login)
    try:
        await _MECHANISMS[usable[0]](dialogue, login)
        if not dialogue.done:
            raise ValueError("the server asks for more")
    except ValueError as error:
        connection.abort()
        # without the cause, whose text may have a secret
        raise DeliveryError(f"4.7.0 AUTH {usable[0]}: {error}", Stage.AUTH) from None


class _Dialogue:
    """The challenges of the server and the responses to them, in base64 (RFC 4954, section 4)."""

    def __init__(self, session: ClientSession, mechanism: str, login: SmtpLogin) -> None:
        self.done = False
        self._connection = session.connection
        self._mechanism = mechanism
        self._secrets = [login.password]

    async def begin(self, response: bytes | None = None) -> bytes:
        """Say AUTH, with an initial response if there is one; return the first challenge.

        Raises DeliveryError if the server refuses, ValueError for a challenge that is none.
        """
        line = f"AUTH {self._mechanism}"
        if response is not None:
            self._secrets.append(_base64(response))
            line += f" {_base64(response)}"
        return await self._say(line)

    async def respond(self, response: bytes) -> bytes:
        """Return the challenge after this response. Raises errors as `begin`."""
        if self.done:
            raise ValueError("the server ended it too early")
        self._secrets.append(_base64(response))
        return await self._say(_base64(response))

    async def _say(self, line: str) -> bytes:
        connection = self._connection
        connection.write(f"{line}\r\n".encode(), 1)
        reply = await connection.reply(Stage.AUTH, connection.timeouts.command)
        if reply.code == _CHALLENGE_CODE:
            try:
                return b64decode(connection.lines[-1], validate=True)
            except ValueError:
                raise ValueError("a challenge is not in base64") from None
        if reply.code != _DONE_CODE:
            connection.quit()
            said = reply.text.removeprefix(reply.enhanced)
            text = f"{reply.enhanced} {SecretParts(self._secrets).hide(said.strip())}".strip()
            raise DeliveryError(text, Stage.AUTH, code=reply.code)
        self.done = True
        return b""


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


async def _plain(dialogue: _Dialogue, login: SmtpLogin) -> None:
    """PLAIN (RFC 4616)."""
    await dialogue.begin(f"\0{login.user}\0{login.password}".encode())


async def _login(dialogue: _Dialogue, login: SmtpLogin) -> None:
    """LOGIN: the server asks for the name, and then for the password, in any words."""
    await dialogue.begin()
    await dialogue.respond(login.user.encode())
    await dialogue.respond(login.password.encode())


async def _scram(dialogue: _Dialogue, login: SmtpLogin) -> None:
    """SCRAM-SHA-256 without channel binding (RFC 5802, section 3; RFC 7677).

    Raises ValueError if the server does not know the password itself.
    """
    user = prepared(login.user).replace("=", "=3D").replace(",", "=2C")
    password = prepared(login.password).encode()
    nonce = _nonce()
    first = f"n={user},r={nonce}"
    challenge = (await dialogue.begin(f"n,,{first}".encode())).decode()
    fields = _fields(challenge)
    whole, salt, count = fields.get("r", ""), fields.get("s", ""), fields.get("i", "")
    if not (whole.startswith(nonce) and len(whole) > len(nonce) and salt and count.isdecimal()):
        raise ValueError("a challenge is malformed")
    if (
        not _MIN_ITERATIONS <= int(count[:_MAX_ITERATIONS_DIGITS]) <= _MAX_ITERATIONS
        or len(count) > _MAX_ITERATIONS_DIGITS
    ):
        raise ValueError(f"{count[:_MAX_ITERATIONS_DIGITS]} iterations are too few or too many")
    salted = await asyncio.to_thread(
        hashlib.pbkdf2_hmac, "sha256", password, b64decode(salt, validate=True), int(count)
    )
    end = f"c=biws,r={whole}"
    signed = f"{first},{challenge},{end}".encode()
    key = _hmac(salted, b"Client Key")
    signature = _hmac(hashlib.sha256(key).digest(), signed)
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    answer = _fields((await dialogue.respond(f"{end},p={_base64(proof)}".encode())).decode())
    expected = _hmac(_hmac(salted, b"Server Key"), signed)
    if not hmac.compare_digest(b64decode(answer.get("v", ""), validate=True), expected):
        raise ValueError("the server did not prove that it knows the password")
    await dialogue.respond(b"")


def _fields(text: str) -> dict[str, str]:
    return {word[0]: word[2:] for word in text.split(",") if word[1:2] == "="}


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def _nonce() -> str:
    return secrets.token_urlsafe(24)


def prepared(text: str) -> str:
    """Return the text by SASLprep (RFC 4013). Raises ValueError for characters it forbids."""
    if text.isascii() and text.isprintable():
        return text
    mapped = "".join(
        " " if stringprep.in_table_c12(c) else c for c in text if not stringprep.in_table_b1(c)
    )
    mapped = unicodedata.normalize("NFKC", mapped)
    if any(table(c) for c in mapped for table in _FORBIDDEN_TABLES):
        raise ValueError("user name or password has a forbidden character")
    return mapped


_FORBIDDEN_TABLES = (
    stringprep.in_table_c12, stringprep.in_table_c21_c22, stringprep.in_table_c3,
    stringprep.in_table_c4, stringprep.in_table_c5, stringprep.in_table_c6,
    stringprep.in_table_c7, stringprep.in_table_c8, stringprep.in_table_c9,
)  # fmt: skip
_MECHANISMS = {"SCRAM-SHA-256": _scram, "PLAIN": _plain, "LOGIN": _login}
