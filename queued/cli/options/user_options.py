"""Options of `queuectl user` about passwords and rights."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import click

from pgmta.config.types import Network, parse_network
from pgmta.errors import AddressError, ConfigError
from pgmta.mail.address import normalise_domain, parse_mailbox
from pgmta.mail.metadata import OWN_KEYS
from pgmta.mail.names import check_tenant
from pgmta.password import MAX_PASSWORD_OCTETS
from pgmta.store.admin.user_accounts import Rights, Secret
from queued.cli.options.queue_command import parse_pairs

_MIN_PASSWORD_CHARACTERS = 8

_PASSWORD_OPTIONS = (
    click.option("--stdin", is_flag=True, help="Read the password from standard input."),
    click.option("--generate", is_flag=True, help="Make a password, and print it."),
    click.option("--no-scram", is_flag=True, help="Store no keys for SCRAM-SHA-256."),
)
_RIGHTS_OPTIONS = (
    click.option("--sender", multiple=True, metavar="ADDRESS",
                 help="May send from this address, or this domain (@example.org)."),
    click.option("--any-sender", is_flag=True, help="May send from any address."),
    click.option("--network", multiple=True, metavar="CIDR", help="May log in from this network."),
    click.option("--tenant", help="Tenant of the user's mail; '' for none."),
    click.option("--metadata", multiple=True, metavar="K=V", help="Metadata of the user's mail."),
    click.option("--priorities", metavar="N-M",
                 help="May ask for these priorities, 0 (first) to 9; a new user only for 5."),
)  # fmt: skip


def password_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where a password comes from."""
    for option in reversed(_PASSWORD_OPTIONS):
        command = option(command)
    return command


def rights_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options about what a user may."""
    for option in reversed(_RIGHTS_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Given:
    """A password: its hash, and itself if the command has made it."""

    secret: Secret
    generated: str = field(default="", repr=False)


def read_secret(options: dict[str, Any]) -> Given:
    """Get a password as the options about it say, and hash it. Raises ConfigError."""
    stdin, generate = options["stdin"], options["generate"]
    if stdin and generate:
        raise ConfigError(["--stdin and --generate exclude each other"])
    if generate:
        text = secrets.token_urlsafe(15)
    elif stdin:
        text = sys.stdin.readline().rstrip("\r\n")
    elif not _terminal():
        raise ConfigError(["no terminal to ask for the password: give --stdin or --generate"])
    else:
        text = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    if (
        len(text) < _MIN_PASSWORD_CHARACTERS
        or len(text.encode()) > MAX_PASSWORD_OCTETS
        or "\0" in text
    ):
        raise ConfigError(
            [
                f"a password needs {_MIN_PASSWORD_CHARACTERS} characters, "
                f"at most {MAX_PASSWORD_OCTETS} octets, and no NUL"
            ]
        )
    return Given(Secret.of_password(text, scram=not options["no_scram"]), text if generate else "")


def _terminal() -> bool:
    return sys.stdin.isatty()


def read_rights(
    options: dict[str, Any], *, any_network: bool = False, no_metadata: bool = False
) -> Rights:
    """Read the options about rights. Raises ConfigError that names the option."""
    if options["sender"] and options["any_sender"]:
        raise ConfigError(["--sender and --any-sender exclude each other"])
    if options["network"] and any_network:
        raise ConfigError(["--network and --any-network exclude each other"])
    if options["metadata"] and no_metadata:
        raise ConfigError(["--metadata and --no-metadata exclude each other"])
    metadata = parse_pairs(options["metadata"])
    if own := sorted(OWN_KEYS & metadata.keys()):
        raise ConfigError([f"--metadata {own[0]}: it is a key that pgmta alone gives"])
    return Rights(
        senders=[read_sender(text) for text in options["sender"]] or None,
        any_sender=options["any_sender"],
        networks=[read_network(text) for text in options["network"]] or None,
        any_network=any_network,
        tenant=read_tenant(options["tenant"]),
        metadata=metadata if metadata or no_metadata else None,
        priorities=read_priorities(options["priorities"]) if options["priorities"] else None,
    )


def read_tenant(text: str | None) -> str | None:
    """Return the tenant of --tenant. Raises ConfigError."""
    try:
        check_tenant(text or "")
    except ValueError:
        raise ConfigError([
            f"--tenant {text!r}: expected up to 64 letters, digits and . _ - @ +, of which the "
            "first is a letter or a digit"
        ]) from None  # fmt: skip
    return text


def read_sender(text: str) -> str:
    """Return the address of --sender, or @ and a domain, as smtpd compares them.

    Raises ConfigError.
    """
    try:
        if text.startswith("@"):
            return f"@{normalise_domain(text[1:])}"
        mailbox, domain = parse_mailbox(text, utf8=True)
        return f"{mailbox.rpartition('@')[0]}@{domain}"
    except AddressError as error:
        raise ConfigError([f"--sender {text!r}: expected an address or @domain: {error}"]) from None


def read_network(text: str) -> Network:
    """Return the network of --network. Raises ConfigError."""
    try:
        return parse_network(text)
    except ValueError as error:
        raise ConfigError([f"--network: {error}"]) from None


def read_priorities(text: str) -> tuple[int, int]:
    """Return the first and the last of --priorities. Raises ConfigError."""
    first, _, last = text.partition("-")
    if len(first) == 1 and len(last or first) == 1 and (first + last).isdigit():
        found = int(first), int(last or first)
        if found[0] <= found[1]:
            return found
    raise ConfigError([f"--priorities {text!r}: expected for example 3-7, with 0 as the first"])
