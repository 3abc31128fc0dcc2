"""Users who may log in, and what they send for it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from scramp import ScramClient

from pgmta.store.user_accounts import Rights, Secret, UserAccounts
from tests.smtpd.server import Client


@contextmanager
def accounts(uri: str) -> Iterator[UserAccounts]:
    """The users of a database, as an operator has them."""
    found = UserAccounts(uri, "test")
    try:
        yield found
    finally:
        found.close()


def secret(password: str) -> Secret:
    return Secret.of(password)


def add_user(uri: str, name: str, password: str, **rights: Any) -> None:
    with accounts(uri) as users:
        assert users.add(name, secret(password), Rights(**rights))


def encoded(text: str | bytes) -> str:
    return b64encode(text.encode() if isinstance(text, str) else text).decode()


def plain(name: str, password: str, identity: str = "") -> str:
    return encoded(f"{identity}\0{name}\0{password}")


def log_in(client: Client, name: str, password: str) -> str:
    return client.say(f"AUTH PLAIN {plain(name, password)}")


def scram(client: Client, name: str, password: str) -> str:
    """The reply to a SCRAM exchange; its last message is checked."""
    from base64 import b64decode

    peer = ScramClient(["SCRAM-SHA-256"], name, password)
    reply = client.say(f"AUTH SCRAM-SHA-256 {encoded(peer.get_client_first())}")
    if not reply.startswith("334 "):
        return reply
    peer.set_server_first(b64decode(reply[4:]).decode())
    reply = client.say(encoded(peer.get_client_final()))
    if not reply.startswith("334 "):
        return reply
    peer.set_server_final(b64decode(reply[4:]).decode())
    return client.say("")
