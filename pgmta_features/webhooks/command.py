"""`queuectl webhook`: endpoints to which events are posted."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
import psycopg
from psycopg import errors

from pgmta.command import instant, print_json, print_line
from pgmta.config.types import hint
from pgmta.errors import ConfigError, PgmtaError
from pgmta.postgres.operator import connected
from pgmta_features.events.kinds import check_kinds
from pgmta_features.events.subscribing import repeat_subscribing
from pgmta_features.webhooks.config import WebhookSettings
from pgmta_features.webhooks.endpoint import (
    NAME,
    EndpointUrl,
    is_foreign,
    read_condition,
)
from pgmta_features.webhooks.reach import check_public, refusal_of
from pgmta_features.webhooks.signing import Secrets
from pgmta_features.webhooks.webhook_table import DEFAULT_BATCH, MAX_BATCH, NO_EVENT, WebhookTable
from queued.cli.options.queue_command import (
    Column,
    Cut,
    Form,
    ago_of,
    command,
    database_of,
    print_rows,
    read_address,
    read_since,
    who,
    whole_config,
)

_SHOWN_FAILURES = 20
_CONDITION_OPTIONS = ("sender", "recipient", "domain", "metadata")


@click.group()
def webhook() -> None:
    """Add and list endpoints to which events are posted, and post events again.

    queued posts them: by HTTP, signed as Standard Webhooks has it.
    """


@asynccontextmanager
async def _webhooks(config: Path) -> AsyncIterator[WebhookTable]:
    async with connected(database_of(config)) as db:
        yield WebhookTable(db, who())


async def _find(webhooks: WebhookTable, name: str) -> dict[str, Any]:
    """Return the endpoint of a name or id. Raises PgmtaError."""
    ids = await webhooks.ids(name)
    if len(ids) > 1:
        raise PgmtaError(
            f"there are several webhooks {name}: give one of the ids {', '.join(map(str, ids))}"
        )
    if not ids or not (found := await webhooks.endpoints(number=ids[0])):
        known = await webhooks.names()
        near = f": {hint(name, known)}" if known else ""
        raise PgmtaError(f"there is no webhook {name}{near}")
    return found[0]


def _settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that `add` and `set` have, each absent if it is not given."""
    options = [
        click.option("--kind", multiple=True, metavar="KIND",
                     help="Kind of events, such as bounced; may be repeated.  [default: all]"),
        click.option("--sender", multiple=True, metavar="ADDRESS",
                     help="Mail of this sender; * stands for any text."),
        click.option("--recipient", multiple=True, metavar="ADDRESS", help="Mail to this address."),
        click.option("--domain", multiple=True, metavar="DOMAIN", help="Mail to this domain."),
        click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Mail with it."),
        click.option("--owner", metavar="ADDRESS", help="Gets a mail if it is suspended."),
        click.option("--batch", type=click.IntRange(1, MAX_BATCH),
                     help=f"Events of a request, at most.  [default: {DEFAULT_BATCH}]"),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    """Return what such options say. Raises ConfigError."""
    found: dict[str, Any] = {}
    condition = {name: list(options[name]) for name in _CONDITION_OPTIONS if options[name]}
    try:
        if options["kind"]:
            check_kinds(options["kind"])
            found["kinds"] = list(options["kind"])
    except ValueError as error:
        raise ConfigError([f"--kind {error}"]) from None
    try:
        if condition:
            read_condition(condition)
            found["condition"] = condition
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    if options["owner"]:
        found["owner"] = read_address(options["owner"])
    if options["batch"]:
        found["batch"] = options["batch"]
    return found


def _url(text: str, *, foreign: bool) -> str:
    """Return the URL of an endpoint, also a foreign one. Raises ConfigError."""
    try:
        url = EndpointUrl.parse(text)
        if foreign:
            check_public(url)
    except ValueError as error:
        raise ConfigError([f"URL: {error}"]) from None
    return text


def _secrets(config: Path) -> tuple[WebhookSettings, Secrets]:
    settings = whole_config(config).section(WebhookSettings)
    return settings, settings.known_secrets()


def _reference(settings: WebhookSettings, secrets: Secrets, name: str | None) -> str:
    """Return the reference of a new secret, of a file by its name or a derived one."""
    if name is not None:
        if name not in settings.secrets:
            known = f"; {hint(name, settings.secrets)}" if settings.secrets else ""
            raise ConfigError([f"--secret {name!r}: webhooks.secrets has no such name{known}"])
        return f"file:{name}"
    if reference := secrets.new_reference():
        return reference
    raise ConfigError([
        "webhooks.keys is empty, so no secret can be derived: `queuectl token key --out "
        "webhook.key` makes a key; or give --secret NAME of webhooks.secrets"
    ])  # fmt: skip


def _print_secret(secrets: Secrets, reference: str) -> None:
    if reference.startswith("key:"):
        print_line(f"secret  {secrets.find(reference)}")
        print_line("It is shown once: the receiver verifies signatures with it.")


@command(webhook, json=True)
@click.argument("name")
@click.argument("url")
@_settings_options
@click.option("--tenant", help="Events of mail of this tenant alone.")
@click.option("--secret", metavar="NAME", help="Of webhooks.secrets.  [default: a derived one]")
async def add(
    config: Path, name: str, url: str, tenant: str | None, secret: str | None, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Add the endpoint NAME at URL, which gets all events from now on."""
    if not NAME.fullmatch(name):
        raise ConfigError([f"{name!r} is no name: expected up to 63 letters, digits and . _ -"])
    given: dict[str, Any] = {"kinds": None, "condition": {}, "owner": None, "tenant": tenant}
    given |= {"batch": DEFAULT_BATCH} | _settings(options)
    settings, secrets = _secrets(config)
    reference = _reference(settings, secrets, secret)
    place = _url(url, foreign=bool(tenant))
    async with connected(database_of(config)) as db:
        make = partial(WebhookTable(db, who()).add, name, place, reference, **given)
        try:
            number = await repeat_subscribing(db, make)
        except errors.UniqueViolation:
            raise PgmtaError(f"there is a webhook {name} already") from None
    refusal = "" if tenant else refusal_of(EndpointUrl.parse(place), settings.networks)
    if refusal:
        print_line(f"warning: nothing can be posted to it: {refusal}", err=True)
    if as_json:
        shown = secrets.find(reference) if reference.startswith("key:") else None
        print_json({"id": str(number), "name": name, "secret": shown})
        return
    print_line(f"webhook {number}: {name}")
    _print_secret(secrets, reference)


@command(webhook, "set", json=True)
@click.argument("name")
@click.option("--url", metavar="URL", help="Another place.")
@_settings_options
@click.option("--all-kinds", is_flag=True, help="All kinds of events.")
@click.option("--all-mail", is_flag=True, help="Events of all mail, without a condition.")
async def set_webhook(
    config: Path, name: str, url: str | None, all_kinds: bool, all_mail: bool, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Change an endpoint; the rest stays as it is."""
    changes = _settings(options)
    if url:
        changes["url"] = url
    if all_kinds:
        changes["kinds"] = None
    if all_mail:
        changes["condition"] = {}
    if not changes:
        raise ConfigError(["nothing to change: give at least one option"])
    async with _webhooks(config) as webhooks:
        found = await _find(webhooks, name)
        if url:
            _url(url, foreign=is_foreign(found["tenant"], found["viewer"], found["created_by"]))
        await webhooks.change(found["id"], changes)
        await _print_changed(webhooks, found, "changed", as_json)


async def _print_changed(
    webhooks: WebhookTable, row: dict[str, Any], what: str, as_json: bool
) -> None:
    """Say what was done with an endpoint, or print how it is now."""
    if as_json:
        [row] = await webhooks.endpoints(number=row["id"])
        print_json(_for_machines(row))
    else:
        print_line(f"webhook {row['name']} {what}")


@command(webhook, "list", rows=True)
async def list_webhooks(config: Path, form: Form) -> None:
    """List the endpoints. LAG is the age of the oldest event that is not posted."""
    async with _webhooks(config) as webhooks:
        rows = await webhooks.endpoints(most=100_000)
    columns: dict[str, Column] = {
        "ID": "id",
        "NAME": "name",
        "STATE": "state",
        "LAG": lambda row: "-" if row["lag"] is None else f"{row['lag']:.0f}s",
        "POSTED": lambda row: ago_of(row["posted_at"]) if row["posted_at"] else "-",
        "ASIDE": "set_aside",
        "TENANT": lambda row: row["tenant"] or "-",
        "URL": Cut("url", 60),
        "REASON": Cut("reason", 60),
    }
    print_rows(rows, columns, form, values=[_for_machines(row) for row in rows])


def _for_machines(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without the reference of its secret; ids are texts, as in events."""
    found = {key: value for key, value in row.items() if key != "secret"}
    return found | {key: str(row[key]) for key in ("id", "message_id") if row.get(key) is not None}


@command(webhook, json=True)
@click.argument("name")
async def show(config: Path, name: str, as_json: bool) -> None:
    """Show an endpoint, and the events that were set aside."""
    async with _webhooks(config) as webhooks:
        row = await _find(webhooks, name)
        aside = await webhooks.failures(row["id"], most=_SHOWN_FAILURES)
    if as_json:
        events = [_for_machines(each) for each in aside]
        print_json({**_for_machines(row), "set_aside_events": events})
        return
    kind, _, named = row["secret"].partition(":")
    secret = named if kind == "file" else f"derived from key {named.partition(':')[0]}"
    lines = {
        "webhook": f"{row['id']} {row['name']}",
        "url": row["url"],
        "state": f"{row['state']} since {instant(row['state_at'])}",
        "reason": row["reason"],
        "failures": row["failures"] and f"{row['failures']} in a row",
        "next": row["next_at"] and instant(row["next_at"]),
        "kinds": " ".join(row["kinds"] or ["all"]),
        "condition": row["condition"] and json.dumps(row["condition"], ensure_ascii=False),
        "tenant": row["tenant"],
        "viewer": row["viewer"],
        "secret": secret,
        "earlier": row["earlier_until"] and f"signs until {instant(row['earlier_until'])}",
        "owner": row["owner"],
        "batch": str(row["batch"]),
        "lag": "" if row["lag"] is None else f"{row['lag']:.0f} s",
        "posted": row["posted_at"] and instant(row["posted_at"]),
        "added": f"{instant(row['created_at'])} by {row['created_by']}",
    }
    for key, value in lines.items():
        if value:
            print_line(f"{key:<10} {value}")
    _print_set_aside(row, aside)


def _print_set_aside(row: dict[str, Any], aside: list[dict[str, Any]]) -> None:
    """Print the events that an endpoint has refused, and what to do about them."""
    if not aside:
        return
    for each in aside:
        what = f"{each['kind']} of message {each['message_id']}"
        asked = "; its replay was asked for" if each["asked_at"] else ""
        print_line(f"set aside  {each['event_id']} {what}, {instant(each['failed_at'])}: "
                   f"{each['reason']}{asked}")  # fmt: skip
    if row["set_aside"] > len(aside):
        print_line(f"set aside  {row['set_aside'] - len(aside)} others")
    print_line(f"`queuectl webhook replay {row['name']} --set-aside` posts them again, once the "
               "endpoint takes them.")  # fmt: skip


@command(webhook, json=True)
@click.argument("name")
async def test(config: Path, name: str, as_json: bool) -> None:
    """Post a test event from this host, and print the answer; exit 1 if it is not accepted."""
    from pgmta_features.webhooks.trial import try_endpoint

    _, secrets = _secrets(config)
    async with _webhooks(config) as webhooks:
        row = await _find(webhooks, name)
    began = time.monotonic()
    posted = await try_endpoint(whole_config(config), secrets, row)
    seconds = time.monotonic() - began
    if as_json:
        print_json({"status": posted.status, "reason": posted.reason,
                    "accepted": posted.accepted, "seconds": round(seconds, 3)})  # fmt: skip
    if not posted.accepted:
        raise PgmtaError(f"{row['url']}: {posted.reason}")
    if not as_json:
        print_line(f"{row['url']}: {posted.reason}, after {seconds:.2f} s")


@command(webhook, json=True)
@click.argument("name")
@click.option("--secret", metavar="NAME", help="Of webhooks.secrets.  [default: a derived one]")
@click.option("--force", is_flag=True, help="Also while two secrets sign: the older one ends now.")
async def rotate(config: Path, name: str, secret: str | None, force: bool, as_json: bool) -> None:
    """Give an endpoint another secret. The earlier one signs, too, for a day."""
    settings, secrets = _secrets(config)
    reference = _reference(settings, secrets, secret)
    async with _webhooks(config) as webhooks:
        row = await _find(webhooks, name)
        try:
            until = await webhooks.rotate(row["id"], reference, force=force)
        except errors.ObjectNotInPrerequisiteState as error:
            raise PgmtaError(f"{error.diag.message_primary}; --force ends it now") from None
    if as_json:
        shown = secrets.find(reference) if reference.startswith("key:") else None
        print_json({"id": str(row["id"]), "secret": shown, "earlier_until": until})
        return
    print_line(f"webhook {row['name']} has another secret; the earlier one signs until "
               f"{instant(until)}")  # fmt: skip
    _print_secret(secrets, reference)


@command(webhook, json=True)
@click.argument("name")
async def enable(config: Path, name: str, as_json: bool) -> None:
    """Post to an endpoint at once, from where it stopped: a suspended, disabled or failing one."""
    async with _webhooks(config) as webhooks:
        row = await _find(webhooks, name)
        await webhooks.enable(row["id"], enabled=True)
        await _print_changed(webhooks, row, "enabled", as_json)


@command(webhook, json=True)
@click.argument("name")
@click.option("--reason", default="", help="Why, for other operators.")
async def disable(config: Path, name: str, reason: str, as_json: bool) -> None:
    """Post nothing to an endpoint until `queuectl webhook enable`."""
    async with _webhooks(config) as webhooks:
        row = await _find(webhooks, name)
        await webhooks.enable(row["id"], enabled=False, reason=reason)
        await _print_changed(webhooks, row, "disabled", as_json)


@command(webhook, json=True)
@click.argument("name")
@click.option("--since", metavar="TIME",
              help="All events since then: '2026-12-24 18:00', or 3h ago.")  # fmt: skip
@click.option("--event", "events", multiple=True, metavar="ID", help="The event of this id.")
@click.option("--set-aside", is_flag=True, help="Those that the endpoint has refused.")
async def replay(
    config: Path, name: str, since: str | None, events: Sequence[str], set_aside: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Post events again. With --since the endpoint gets them in their order, before new ones."""
    if bool(since) + bool(events) + set_aside != 1:
        raise ConfigError(["give one of --since, --event and --set-aside"])
    begin = read_since(since)
    async with _webhooks(config) as webhooks:
        row = await _find(webhooks, name)
        try:
            asked = await webhooks.replay(row["id"], since=begin, events=events if events else None)
        except psycopg.Error as error:
            if error.sqlstate != NO_EVENT:
                raise
            raise PgmtaError(str(error.diag.message_primary)) from None
    if as_json:
        print_json({"id": str(row["id"]), "since": begin} if begin
                   else {"id": str(row["id"]), "events": asked})  # fmt: skip
        return
    what = f"events since {instant(begin)}" if begin else f"{asked:,} events"
    again = "1 event is" if asked == 1 and not begin else f"{what} are"
    print_line(f"webhook {row['name']}: {again} posted again")


@command(webhook, json=True)
@click.argument("name")
async def remove(config: Path, name: str, as_json: bool) -> None:
    """Remove an endpoint. Without any, and without other readers, no event is written any more."""
    async with connected(database_of(config)) as db:
        webhooks = WebhookTable(db, who())
        row = await _find(webhooks, name)
        await repeat_subscribing(db, partial(webhooks.remove, row["id"]))
    if as_json:
        print_json({"id": str(row["id"]), "removed": True})
    else:
        print_line(f"webhook {row['name']} removed")
