"""Users who may log in, and what they send for it."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from contextlib import AbstractContextManager
from typing import Any

from scramp import ScramClient

from pgmta.store.admin.user_accounts import Rights, Secret, UserAccounts
from tests.support.operating import operating
from tests.support.serving import Client


def accounts(uri: str) -> AbstractContextManager[Any]:
    """The users of a database, as an operator has them."""
    return operating(uri, lambda db: UserAccounts(db, "test"))


def secret(password: str) -> Secret:
    return Secret.of_password(password)


def add_user(uri: str, name: str, password: str, **rights: Any) -> None:
    with accounts(uri) as users:
        assert users.add_user(name, secret(password), Rights(**rights))


def encoded(text: str | bytes) -> str:
    return b64encode(text.encode() if isinstance(text, str) else text).decode()


def plain(name: str, password: str, identity: str = "") -> str:
    return encoded(f"{identity}\0{name}\0{password}")


def log_in(client: Client, name: str, password: str) -> str:
    return client.say(f"AUTH PLAIN {plain(name, password)}")


def scram(client: Client, name: str, password: str) -> str:
    """The reply to a SCRAM exchange; its last message is checked."""
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


def scram_by_hand(
    client: Client, first: str, password: str, final: str = "c={binding},r={nonce},p={proof}"
) -> str:
    """The reply to an exchange with these messages, the proof of which is right."""
    digest = hashlib.sha256
    flag, identity, bare = first.split(",", 2)
    reply = client.say(f"AUTH SCRAM-SHA-256 {encoded(first)}")
    if not reply.startswith("334 "):
        return reply
    challenge = b64decode(reply[4:]).decode()
    said = dict(part.split("=", 1) for part in challenge.split(","))
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), b64decode(said["s"]), int(said["i"]))
    key = hmac.digest(salted, b"Client Key", digest)
    text = final.replace("{binding}", encoded(f"{flag},{identity},")).replace("{nonce}", said["r"])
    signed = ",".join((bare, challenge, text.partition(",p=")[0])).encode()
    signature = hmac.digest(digest(key).digest(), signed, digest)
    proof = encoded(bytes(a ^ b for a, b in zip(key, signature, strict=True)))
    reply = client.say(encoded(text.replace("{proof}", proof)))
    if not reply.startswith("334 "):
        return reply
    server = hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
    assert b64decode(reply[4:]).decode() == f"v={encoded(server)}"
    return client.say("")
