"""`queuectl user`: users who may log in to smtpd."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click

from pgmta.command import EXIT_FAILURE, instant, print_json, print_line
from pgmta.errors import ConfigError, PgmtaError
from pgmta.password import login_name
from pgmta.postgres.operator import connected
from pgmta.store.admin.user_accounts import Rights, UserAccounts
from queued.cli.options.queue_command import (
    Column,
    Cut,
    Form,
    age_of,
    command,
    database_of,
    print_rows,
    who,
)
from queued.cli.options.user_options import (
    Given,
    password_options,
    read_rights,
    read_secret,
    rights_options,
)


@click.group()
def user() -> None:
    """Add, change and list the users who may log in to smtpd.

    Changes count within a second. smtpd ends a session of a changed user at its next MAIL.
    """


@asynccontextmanager
async def _accounts(config: Path) -> AsyncIterator[UserAccounts]:
    async with connected(database_of(config)) as db:
        yield UserAccounts(db, who())


@command(user)
@click.argument("name")
@password_options
@rights_options
async def add(config: Path, name: str, **options: Any) -> None:
    """Add a user, and ask for the password.

    Without --sender and --any-sender the user may send from NAME alone, which is an address then.
    """
    name = _name(name)
    rights = read_rights(options)
    if rights.senders is None and not rights.any_sender:
        if "@" not in name:
            raise ConfigError([f"{name} is no address: give --sender or --any-sender"])
        rights = read_rights({**options, "sender": (name,)})
    async with _accounts(config) as accounts:
        given = None if await accounts.users(name) else read_secret(options)
        if not given or not await accounts.add_user(name, given.secret, rights):
            raise PgmtaError(f"there is a user {name} already")
    print_line(f"user {name} added")
    _print_password(given)


@command(user)
@click.argument("name")
@password_options
async def passwd(config: Path, name: str, **options: Any) -> None:
    """Change the password of a user."""
    name = _name(name)
    async with _accounts(config) as accounts:
        _exists(name, bool(await accounts.users(name)))
        given = read_secret(options)
        _exists(name, await accounts.passwd(name, given.secret))
    print_line(f"user {name} has another password")
    _print_password(given)


@command(user, "set")
@click.argument("name")
@rights_options
@click.option("--any-network", is_flag=True, help="May log in from any network.")
@click.option("--no-metadata", is_flag=True, help="The user's mail gets no metadata of the user.")
async def set_rights(
    config: Path, name: str, any_network: bool, no_metadata: bool, **options: Any
) -> None:
    """Change what a user may; the rest stays as it is.

    --sender, --network and --metadata replace all of their kind that the user had, and
    --no-metadata removes them.
    """
    name = _name(name)
    rights = read_rights(options, any_network=any_network, no_metadata=no_metadata)
    if rights == Rights():
        raise ConfigError(["nothing to change: give at least one option"])
    async with _accounts(config) as accounts:
        _exists(name, await accounts.set(name, rights))
    print_line(f"user {name} changed")


@command(user)
@click.argument("name")
async def disable(config: Path, name: str) -> None:
    """Let a user log in no more, until `queuectl user enable`."""
    await _disable(config, name, disabled=True)


@command(user)
@click.argument("name")
async def enable(config: Path, name: str) -> None:
    """Let a disabled user log in again."""
    await _disable(config, name, disabled=False)


async def _disable(config: Path, name: str, *, disabled: bool) -> None:
    name = _name(name)
    async with _accounts(config) as accounts:
        _exists(name, await accounts.disable(name, disabled=disabled))
    print_line(f"user {name} {'disabled' if disabled else 'enabled'}")


@command(user)
@click.argument("name")
async def delete(config: Path, name: str) -> None:
    """Remove a user."""
    name = _name(name)
    async with _accounts(config) as accounts:
        _exists(name, await accounts.delete(name))
    print_line(f"user {name} deleted")


@command(user)
@click.argument("name")
async def unlock(config: Path, name: str) -> None:
    """Forget the failed logins of a user; smtpd sees it within seconds."""
    name = _name(name)
    async with _accounts(config) as accounts:
        count = await accounts.unlock(name)
        _exists(name, bool(count or await accounts.users(name)))
    print_line(f"failed logins of {name} forgotten" if count else f"{name} has no failed logins")


@command(user, "list", rows=True)
async def list_users(config: Path, form: Form) -> None:
    """List all users; exit 1 if there are none."""
    async with _accounts(config) as accounts:
        users = await accounts.users()
    columns: dict[str, Column] = {
        "USER": "name",
        "STATE": lambda each: "disabled" if each["disabled"] else "active",
        "SENDERS": Cut(lambda each: _words(each["senders"] or [each["name"]])),
        "NETWORKS": Cut(lambda each: _words(each["networks"])),
        "TENANT": lambda each: each["tenant"] or "-",
        "PRIORITIES": lambda each: f"{each['priority_first']}-{each['priority_last']}",
        "LAST LOGIN": lambda each: age_of(each["last_login"]) if each["last_login"] else "-",
    }
    print_rows(users, columns, form)
    if not users:
        sys.exit(EXIT_FAILURE)


@command(user, json=True)
@click.argument("name")
async def show(config: Path, name: str, as_json: bool) -> None:
    """Show a user: rights, networks of earlier logins, failed logins, and whether they lock it.

    From a network of an earlier login only the failures from there count. No password is shown.
    """
    name = _name(name)
    async with _accounts(config) as accounts:
        found = await accounts.users(name)
        _exists(name, bool(found))
        networks, failures = await accounts.networks(name), await accounts.failures(name)
    if as_json:
        print_json({**found[0], "own_networks": networks, "failures": failures})
        return
    each = found[0]
    print_line(f"user        {each['name']}{' (disabled)' if each['disabled'] else ''}")
    print_line(f"senders     {_words(each['senders'] or [each['name']])}")
    print_line(f"networks    {_words(each['networks'])}")
    print_line(f"tenant      {each['tenant'] or '-'}")
    print_line(f"metadata    {json.dumps(each['metadata'], ensure_ascii=False)}")
    print_line(f"priorities  {each['priority_first']}-{each['priority_last']}")
    print_line(f"added       {each['created_at']}, changed {each['changed_at']}")
    for login in networks:
        print_line(f"logged in from {login['network']}, last on {login['last_login']:%Y-%m-%d}")
    for failure in failures:
        until = failure["locked_until"]
        print_line(
            f"failed logins {_place(failure['unit'])}: {failure['failures']}, "
            f"forgotten at {instant(failure['forgotten_at'])}"
            + (f"; locked until {instant(until)}" if until else "")
        )
    if any(failure["locked_until"] for failure in failures):
        print_line(f"`queuectl user unlock {name}` ends the lock")


@command(user, rows=True)
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="Lines at most."
)
async def failures(config: Path, limit: int, form: Form) -> None:
    """List failed logins by address, network and user, the most first, and who is locked."""
    async with _accounts(config) as accounts:
        found = await accounts.all_failures(limit)
    columns: dict[str, Column] = {
        "OF": lambda each: (
            "user" if each["unit"].startswith("own ") else each["unit"].partition(" ")[0]
        ),
        "NAME": lambda each: each["name"] or "(no user)",
        "FROM": lambda each: each["unit"].split(" ")[2] if each["unit"].startswith("own ") else "-",
        "FAILURES": "failures",
        "LAST": lambda each: instant(each["last_failure"]),
        "LOCKED UNTIL": lambda each: instant(each["locked_until"]) if each["locked_until"] else "-",
    }
    print_rows(found, columns, form)


def _print_password(given: Given) -> None:
    """Print a password that the command has made; the user is stored before."""
    if given.generated:
        print_line(f"password: {given.generated}")


def _place(unit: str) -> str:
    kind, *rest = unit.split(" ")
    return f"from {rest[1]}" if kind == "own" else "from elsewhere"


def _words(values: list[str] | None) -> str:
    return "any" if values is None else " ".join(values) or "none"


def _name(text: str) -> str:
    try:
        return login_name(text)
    except ValueError as error:
        raise ConfigError([f"{text!r}: {error}"]) from None


def _exists(name: str, there: bool) -> None:
    if not there:
        raise PgmtaError(f"there is no user {name}; `queuectl user list` lists them")
