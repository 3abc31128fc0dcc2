"""`queuectl apikey`: keys of the HTTP API."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from pgmta.command import EXIT_FAILURE, instant, print_json, print_line
from pgmta.config.types import hint
from pgmta.errors import ConfigError, PgmtaError
from pgmta.model import ANY_SENDER
from pgmta.postgres.operator import connected
from pgmta_features.http_api.caller import ANY_CREDENTIAL, ANY_TENANT
from pgmta_features.http_api.commands.key_table import KeyRights, KeyTable
from pgmta_features.http_api.scopes import SCOPES
from pgmta_features.http_api.token import Token
from queued.cli.options.queue_command import (
    Column,
    Cut,
    Form,
    age_of,
    command,
    database_of,
    print_rows,
    read_duration,
    read_time,
    who,
)
from queued.cli.options.user_options import (
    read_network,
    read_priorities,
    read_sender,
    read_tenant,
)

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,58}")
_OPTIONS = (
    click.option("--scope", multiple=True, metavar="SCOPE",
                 help=f"May do this: {', '.join(SCOPES)}; all for each of them."),
    click.option("--sender", multiple=True, metavar="ADDRESS",
                 help="May send from this address, or this domain (@example.org)."),
    click.option("--any-sender", is_flag=True, help="May send from any address."),
    click.option("--credential", multiple=True, metavar="NAME",
                 help="May name this metadata.credential, also for campaigns; '' for none."),
    click.option("--any-credential", is_flag=True, help="May name any of them."),
    click.option("--priorities", metavar="N-M",
                 help="May ask for these priorities, 0 (first) to 9; a new key only for 5."),
    click.option("--network", multiple=True, metavar="CIDR", help="Is used from this network."),
    click.option("--tenant", help="Handles mail of this tenant; '' for mail without one."),
    click.option("--any-tenant", is_flag=True, help="Handles mail of any tenant."),
    click.option("--sees", type=click.Choice(["own", "tenant", "all"]),
                 help="Sees and changes what it submitted itself (own, the default), all mail of "
                 "its tenant, or all mail."),
    click.option("--expires", metavar="TIME", help="Ends then: 2027-06-30, or 'in 90d'."),
)  # fmt: skip


@click.group()
def apikey() -> None:
    """Make, list, change and revoke the keys of the HTTP API.

    A key has a name and a secret token. Changes count within a second in each process.
    """


def _rights_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@asynccontextmanager
async def _table(config: Path) -> AsyncIterator[KeyTable]:
    async with connected(database_of(config)) as db:
        yield KeyTable(db, who())


@command(apikey, json=True)
@click.argument("name")
@_rights_options
async def new(config: Path, name: str, as_json: bool, **options: Any) -> None:
    """Make a key, and print its token: it is shown this once.

    The token alone goes to standard output. Mail of the key has submitted_by key:NAME.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError([
            f"{name!r}: expected up to 59 letters of lower case, digits and . _ -, of which the "
            "first is a letter or a digit"
        ])  # fmt: skip
    rights = _changed(KeyRights([], "", [], None, "own", None, []), options)
    async with _table(config) as table:
        token = await table.new(name, rights)
        if not token:
            [known] = await table.keys(name)
            state = "was one, which is revoked" if known["revoked_at"] else "is one"
            raise PgmtaError(
                f"{name}: there {state}: choose another name, because the mail of that name is its"
            )
    _print_token(name, token, as_json)


@command(apikey, "set", json=True)
@click.argument("name")
@_rights_options
@click.option("--any-network", is_flag=True, help="Is used from any network.")
@click.option("--never-expires", is_flag=True, help="Has no end.")
async def set_rights(
    config: Path, name: str, any_network: bool, never_expires: bool, as_json: bool, **options: Any
) -> None:
    """Change what a key may; the rest stays as it is.

    --scope, --sender, --credential and --network replace all of their kind that the key had. Its
    webhooks stay as they are: the command names those that get events beyond the key's rights.
    """
    if not any(options.values()) and options["tenant"] is None and not any_network | never_expires:
        raise ConfigError(["nothing to change: give at least one option"])
    for given, flag, no in (
        (options["network"], any_network, "--network and --any-network"),
        (options["expires"], never_expires, "--expires and --never-expires"),
    ):
        if given and flag:
            raise ConfigError([f"{no} exclude each other"])

    def change(before: KeyRights) -> KeyRights:
        if any_network:
            before = replace(before, networks=None)
        if never_expires:
            before = replace(before, expires_at=None)
        return _changed(before, options)

    async with _table(config) as table:
        await _existing(table, name)
        _present(name, await table.set(name, change))
        key = await _existing(table, name)
        beyond = [each for each in await table.webhooks(name) if each["beyond"]]
    if as_json:
        print_json({**key, "webhooks": beyond})
        return
    print_line(f"key {name} changed")
    _print_webhooks(beyond, "events beyond its rights")


@command(apikey, json=True)
@click.argument("name")
@click.option("--overlap", default="1d", show_default=True, metavar="DURATION",
              help="The token before works for so long; 0s ends it at once.")  # fmt: skip
@click.option("--force", is_flag=True, help="Also while two tokens work: the older one ends now.")
async def rotate(config: Path, name: str, overlap: str, force: bool, as_json: bool) -> None:
    """Give a key another token, and print it: it is shown this once."""
    seconds = read_duration(overlap, "--overlap")
    async with _table(config) as table:
        await _existing(table, name)
        found = await table.rotate(name, seconds, force=force)
    if not found:
        raise PgmtaError(f"the key {name} was revoked meanwhile")
    token, ends_at = found
    _print_token(name, token, as_json, former_ends_at=ends_at)
    if ends_at and not as_json:
        print_line(f"the token before works until {instant(ends_at)}", err=True)


@command(apikey, json=True)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
async def revoke(config: Path, names: tuple[str, ...], as_json: bool) -> None:
    """End keys for ever. Each process refuses them within a second.

    Mail that a key has submitted is sent on, and its webhooks get events: the command names them.
    """
    async with _table(config) as table:
        for name in names:
            await _existing(table, name)
        for name in names:
            _present(name, await table.revoke(name))
        found = [
            {"name": name, **_use((await table.keys(name))[0]), **await table.left_by(name)}
            for name in names
        ]
    if as_json:
        print_json(found)
        return
    for each in found:
        print_line(f"key {each['name']} revoked, {_last_use(each)}")
        _print_left(each)


def _print_left(key: dict[str, Any]) -> None:
    """Print what a revoked key leaves, with the commands about it."""
    _print_webhooks(key["webhooks"], "events")
    chosen = f"--submitted-by key:{key['name']}"
    if number := key["waiting"]:
        print_line(f"  {number} of its mails wait: see `queuectl list {chosen}`; "
                   f"`queuectl hold {chosen} --reason TEXT` stops them")  # fmt: skip
    if key["subscribed"]:
        print_line("  its subscription to events is still there, because open transactions have "
                   f"changed mail: `queuectl events unsubscribe key:{key['name']}`")  # fmt: skip


def _print_webhooks(webhooks: list[dict[str, Any]], what: str) -> None:
    for each in webhooks:
        print_line(f"  webhook {each['name']} still gets {what} at {each['url']}: "
                   f"`queuectl webhook disable {each['id']}`")  # fmt: skip


def _use(each: dict[str, Any]) -> dict[str, Any]:
    return {name: each[name] for name in ("used_at", "used_from")}


def _last_use(each: dict[str, Any]) -> str:
    """Return when and whence a key or token was used; a refused request is no use of it."""
    if not each["used_at"]:
        return "never used with success"
    return f"last used {instant(each['used_at'])} from {each['used_from'] or 'here'}"


@command(apikey, "list", rows=True)
async def list_keys(config: Path, form: Form) -> None:
    """List all keys, revoked ones last; exit 1 if there are none."""
    async with _table(config) as table:
        keys = await table.keys()
    columns: dict[str, Column] = {
        "KEY": "name",
        "STATE": _state,
        "SCOPES": Cut(lambda each: " ".join(each["scopes"])),
        "SENDERS": Cut(lambda each: " ".join(each["senders"]) or "-"),
        "TENANT": lambda each: each["tenant"] or "-",
        "SEES": "sees",
        "LAST USED": lambda each: age_of(each["used_at"]) if each["used_at"] else "-",
        "EXPIRES": lambda each: instant(each["expires_at"]) if each["expires_at"] else "-",
    }
    print_rows(keys, columns, form)
    if not keys:
        sys.exit(EXIT_FAILURE)


@command(apikey, json=True)
@click.argument("name")
async def show(config: Path, name: str, as_json: bool) -> None:
    """Show a key: what it may, its webhooks, and its tokens by their public part and last use."""
    async with _table(config) as table:
        key = await _existing(table, name, revoked=True)
        secrets = await table.secrets(name)
        webhooks = await table.webhooks(name)
    if as_json:
        print_json({**key, "secrets": secrets, "webhooks": webhooks})
        return
    print_line(f"key          {key['name']} ({_state(key)})")
    print_line(f"scopes       {' '.join(key['scopes'])}")
    print_line(f"senders      {' '.join(key['senders']) or 'none: it sends nothing'}")
    print_line(f"credentials  {_credentials(key['credentials'])}")
    print_line(f"priorities   {key['priority_first']}-{key['priority_last']}")
    print_line(f"tenant       {'any' if key['tenant'] == ANY_TENANT else key['tenant'] or '-'}")
    print_line(f"sees         {key['sees']}")
    print_line(f"networks     {'any' if key['networks'] is None else ' '.join(key['networks'])}")
    print_line(f"made         {instant(key['created_at'])} by {key['created_by']}")
    print_line(f"expires      {instant(key['expires_at']) if key['expires_at'] else 'never'}")
    for each in webhooks:
        beyond = ", also events beyond its rights" if each["beyond"] else ""
        print_line(f"webhook      {each['id']} {each['name']} at {each['url']}{beyond}")
    for each in secrets:
        word = "works until" if each["holds"] else "ended"
        end = f", {word} {instant(each['ends_at'])}" if each["ends_at"] else ""
        print_line(f"token        pgmta_{each['id']}_…, {_last_use(each)}{end}")


def _print_token(name: str, token: Token, as_json: bool, **more: Any) -> None:
    if as_json:
        print_json({"name": name, "token": str(token), **more})
        return
    print_line(str(token))
    print_line(f"that is the token of key {name}, and it is shown this once", err=True)


def _changed(before: KeyRights, options: dict[str, Any]) -> KeyRights:
    """Return the rights with what the options say. Raises ConfigError."""
    for one, other in (
        ("sender", "any_sender"), ("credential", "any_credential"), ("tenant", "any_tenant"),
    ):  # fmt: skip
        if options[one] not in (None, ()) and options[other]:
            raise ConfigError([f"--{one} and --{other.replace('_', '-')} exclude each other"])
    found = before
    if options["scope"]:
        found = replace(found, scopes=_scopes(options["scope"]))
    if options["sender"] or options["any_sender"]:
        senders = [ANY_SENDER] if options["any_sender"] else map(read_sender, options["sender"])
        found = replace(found, senders=list(senders))
    if options["credential"] or options["any_credential"]:
        named = [*filter(None, map(_credential, options["credential"]))]
        found = replace(found, credentials=[ANY_CREDENTIAL] if options["any_credential"] else named)
    if options["priorities"]:
        first, last = read_priorities(options["priorities"])
        found = replace(found, priority_first=first, priority_last=last)
    if options["network"]:
        found = replace(found, networks=[str(read_network(text)) for text in options["network"]])
    if options["any_tenant"] or options["tenant"] is not None:
        tenant = ANY_TENANT if options["any_tenant"] else read_tenant(options["tenant"]) or ""
        found = replace(found, tenant=tenant)
    if options["sees"]:
        found = replace(found, sees=options["sees"])
    if options["expires"]:
        end = read_time(options["expires"], "--expires", whole_days=True)
        if end and end <= datetime.now(UTC):
            raise ConfigError([f"--expires {options['expires']!r}: that is in the past"])
        found = replace(found, expires_at=end)
    if not found.scopes:
        raise ConfigError([f"--scope is missing: give some of {', '.join(SCOPES)}, or all"])
    if "send" in found.scopes and not found.senders:
        raise ConfigError(["a key with the scope send needs --sender or --any-sender"])
    touched = options["scope"] or options["credential"]  # other keys may stay as they are
    if touched and "campaigns" in found.scopes and not (found.senders and found.credentials):
        raise ConfigError([
            "a key with the scope campaigns needs --sender or --any-sender, and --credential or "
            "--any-credential: each campaign names a credential"
        ])  # fmt: skip
    if found.sees == "tenant" and found.tenant == ANY_TENANT:
        raise ConfigError(["--sees tenant with any tenant: that is --sees all"])
    return found


def _credential(text: str) -> str:
    if text == ANY_CREDENTIAL or (text and not text.isprintable()):
        raise ConfigError([f"--credential {text!r}: expected a name; or give --any-credential"])
    return text


def _credentials(named: list[str]) -> str:
    return "any" if ANY_CREDENTIAL in named else " ".join(named) or "none"


def _scopes(given: tuple[str, ...]) -> list[str]:
    words = [word for text in given for word in text.replace(",", " ").split()]
    for word in words:
        if word not in SCOPES and word != "all":
            raise ConfigError([f"--scope {word!r}: unknown; {hint(word, [*SCOPES, 'all'])}"])
    return [scope for scope in SCOPES if scope in words or "all" in words]


def _state(key: dict[str, Any]) -> str:
    return "revoked" if key["revoked_at"] else "active" if key["holds"] else "expired"


async def _existing(table: KeyTable, name: str, *, revoked: bool = False) -> dict[str, Any]:
    """Return a key. Raises PgmtaError with the nearest name if there is none."""
    if not (found := await table.keys(name)):
        names = [key["name"] for key in await table.keys() if not key["revoked_at"]]
        near = get_close_matches(name, names, 1)
        advice = f"did you mean {near[0]}?" if near else "`queuectl apikey list` lists them"
        raise PgmtaError(f"there is no key {name}; {advice}")
    if found[0]["revoked_at"] and not revoked:
        raise PgmtaError(f"the key {name} is revoked, for ever: make another one")
    return found[0]


def _present(name: str, there: bool) -> None:
    if not there:
        raise PgmtaError(f"the key {name} was revoked meanwhile")
