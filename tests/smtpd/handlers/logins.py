"""Handlers that log users in, in every form that aiosmtpd's documentation describes."""

from __future__ import annotations

import hashlib
import hmac
import sqlite3
from contextlib import closing
from typing import Any

from aiosmtpd.smtp import MISSING, AuthResult, LoginPassword, auth_mechanism

from pgmta.accounts.login import Login
from tests.support.waiting import let_others_run, take_time


class Users:
    """An authenticator as in "examples/authenticated_relayer": callable, with a database."""

    def __init__(self, path: str) -> None:
        self.auth_db = path
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE IF NOT EXISTS users (name TEXT PRIMARY KEY, key BLOB)")
            for name, password in (("good", b"secret"), ("ü", b"g\xfcnter")):
                row = (name, _key(password))
                connection.execute("INSERT OR REPLACE INTO users VALUES (?, ?)", row)

    def __call__(
        self, server: Any, session: Any, envelope: Any, mechanism: str, auth_data: Any
    ) -> AuthResult:
        failed = AuthResult(success=False, handled=False)
        if mechanism not in ("LOGIN", "PLAIN") or not isinstance(auth_data, LoginPassword):
            return failed
        try:
            name = auth_data.login.decode("utf-8")
        except UnicodeDecodeError:
            return failed
        with closing(sqlite3.connect(self.auth_db)) as connection:
            query = "SELECT key FROM users WHERE name = ?"
            row = connection.execute(query, (name,)).fetchone()
        if not row or not hmac.compare_digest(row[0], _key(auth_data.password)):
            return failed
        return AuthResult(success=True)


def _key(password: bytes) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", password, b"salt", 1000)


class RightOne:
    """An authenticator: each user has the same password, and `nobody` is no user."""

    def __call__(
        self, server: Any, session: Any, envelope: Any, mechanism: str, auth_data: Any
    ) -> AuthResult:
        right = auth_data.password == b"right one" and auth_data.login != b"nobody"
        return AuthResult(success=right, handled=False)


class Peeker:
    """Has an authenticator with messages, and mechanisms that answer in each form."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def authenticator(
        self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any
    ) -> Any:
        self.seen.append((mechanism, tuple(data), envelope.mail_from, session.host_name))
        if data.login == b"later":
            message = "454 4.7.0 Ask again later"
            return AuthResult(success=False, handled=False, message=message)
        if data.login == b"welcome":
            return AuthResult(success=True, message="235 2.7.0 Welcome", auth_data=data)
        if data.login == b"missing":
            return MISSING
        if data.login == b"raise":
            raise RuntimeError("on purpose")
        return AuthResult(success=data == (b"good", b"secret"), handled=False, auth_data=data)

    async def handle_MAIL(
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> str:
        data = session.auth_data
        self.seen.append((session.authenticated is True, getattr(data, "login", data)))
        envelope.mail_from = address
        return "250 2.1.0 Ok"

    async def auth_FALSE(self, server: Any, args: list[str]) -> Any:
        return False

    async def auth_DENYMISSING(self, server: Any, args: list[str]) -> Any:
        return MISSING

    async def auth_PUSH(self, server: Any, args: list[str]) -> Any:
        await server.push("535 5.7.8 Pushed")

    async def auth_HANDLED(self, server: Any, args: list[str]) -> Any:
        await server.push("535 5.7.8 Handled")
        return AuthResult(success=False)

    async def auth_IDENTITY(self, server: Any, args: list[str]) -> Any:
        return "somebody"

    async def auth_RAISE(self, server: Any, args: list[str]) -> Any:
        raise RuntimeError("on purpose")

    async def auth_CRAM__MD5(self, server: Any, args: list[str]) -> Any:
        """RFC 2195, with a fixed challenge."""
        answer = await server.challenge_auth("<1896.697170952@mx.example>")
        if answer is MISSING:
            return AuthResult(success=False)
        name, _, digest = answer.decode().partition(" ")
        right = hmac.new(b"secret", b"<1896.697170952@mx.example>", "md5").hexdigest()
        return AuthResult(success=digest == right, handled=False, auth_data=name)

    async def auth_TWICE(self, server: Any, args: list[str]) -> Any:
        answers = [await server.challenge_auth(word) for word in (b"one", "two")]
        self.seen.append((args, answers))
        return AuthResult(success=MISSING not in answers, auth_data="twice")

    async def auth_RAW(self, server: Any, args: list[str]) -> Any:
        answer = await server.challenge_auth("raw challenge", encode_to_b64=False)
        return AuthResult(success=answer == b"answer", handled=False)

    @auth_mechanism("other-name")
    async def auth_OTHER(self, server: Any, args: list[str]) -> Any:
        await let_others_run()
        return AuthResult(success=True, auth_data=LoginPassword(b"other", b""))


class Coroutine:
    """An authenticator that is a coroutine, and mechanisms that are plain functions."""

    async def authenticator(
        self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any
    ) -> Any:
        await let_others_run()
        return AuthResult(success=data.password == b"secret", handled=False)

    def auth_SYNC(self, server: Any, args: list[str]) -> Any:
        return AuthResult(success=True, auth_data="sync")

    def auth_LOGIN(self, server: Any, args: list[str]) -> Any:
        return AuthResult(success=False, handled=False, message="535 5.7.8 No LOGIN here")


class Whole:
    """Answers AUTH as a whole."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def handle_AUTH(self, server: Any, session: Any, envelope: Any, args: list[str]) -> Any:
        self.seen.append(args)
        if args[1:] == ["bWU="]:
            session.authenticated = True
            session.auth_data = "me"
            return "235 2.7.0 It is you"
        if args[1:] == ["YXNr"]:
            answer = await server.challenge_auth("who?")
            return "535 5.7.8 Not you" if answer is not MISSING else None
        if args[1:] == ["bm8="]:
            return "535 5.7.8 Not you"
        return MISSING

    def authenticator(
        self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any
    ) -> Any:
        return AuthResult(success=data.password == b"secret", handled=False)


class Odd:
    """Fails in every way."""

    def authenticator(
        self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any
    ) -> Any:
        answers: dict[bytes, Any] = {
            b"true": True,
            b"text": "235 2.7.0 ok",
            b"failure with 2xx": AuthResult(success=False, handled=False, message="235 2.7.0 ok"),
            b"success with 5xx": AuthResult(success=True, message="535 5.7.8 no"),
            b"injection": AuthResult(success=True, message="235 ok\r\n250 ok"),
            b"name": AuthResult(success=True, auth_data="x\r\ny"),
            b"name of a key": AuthResult(success=True, auth_data=Login("key:shop", "PLAIN")),
            b"truthy": AuthResult(success="no"),  # type: ignore[arg-type]
        }
        if data.login == b"slow":
            take_time(5)
        if data.login == b"secret in error":
            raise KeyError(data.password)
        if data.login == b"secret in message":
            return AuthResult(success=True, message=data.password)
        return answers.get(data.login)

    async def auth_ASK(self, server: Any, args: list[str]) -> Any:
        await server.challenge_auth("x\r\n250 ok", encode_to_b64=False)
        return AuthResult(success=True)

    async def auth_SECRET(self, server: Any, args: list[str]) -> Any:
        raise KeyError(await server.challenge_auth("x"))

    async def auth_ANYWAY(self, server: Any, args: list[str]) -> Any:
        await server.challenge_auth("x")
        return AuthResult(success=True, auth_data="anyway")

    async def handle_NOOP(self, server: Any, session: Any, envelope: Any, word: Any) -> Any:
        session.authenticated = True
        await server.challenge_auth("x")
        return "250 Ok"


class Handshake:
    """Judges TLS handshakes, and notes what it saw of the session."""

    def __init__(self, *, secure: bool = True) -> None:
        self.secure = secure
        self.seen: list[Any] = []

    def handle_STARTTLS(self, server: Any, session: Any, envelope: Any) -> bool:
        self.seen.append((session.host_name, session.authenticated, session.ssl is not None))
        return self.secure

    async def handle_NOOP(self, server: Any, session: Any, envelope: Any, word: Any) -> str:
        tls = session.ssl
        self.seen.append(tls and (tls["cipher"][1][:5], tls["peercert"], "compression" in tls))
        return "250 2.0.0 Ok"


class Named:
    """Says all about its users, and notes what the other methods see."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def auth_TOKEN(self, server: Any, args: list[str]) -> Any:
        user = Login(
            "service", "TOKEN", tenant="t1", senders=("@a.example",), metadata={"from": "hook"}
        )
        return AuthResult(success=args[1:] == ["dG9rZW4="], handled=False, auth_data=user)

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> Any:
        self.seen.append((session.authenticated, session.auth_data))
        return MISSING
