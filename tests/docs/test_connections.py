"""docs/operate/database.md has the number of connections that the daemons really open."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import psycopg

from pgmta.postgres.resources import Resources
from pgmta.service import Signals
from pgmta_features.http_api.routes import ApiRoutes
from queued.config import whole_model
from queued.daemon.daemon import Daemon
from queued.web.web_config import whole_web_config
from queued.web.web_daemon import WebDaemon
from smtpd.config import SmtpdConfig
from smtpd.server.server import Server
from tests.support.daemons import ROOT
from tests.support.waiting import PATIENCE, eventually, free_port

PAGE = (ROOT / "docs" / "operate" / "database.md").read_text(encoding="utf-8")
ENVIRONMENT = {"environment": {"hostname": "mx.example"}}
TABLE = {"domains": ["example.org"], "recipients": [{"table": True}]}
USERS = [{"name": "here", "xclient": ["127.0.0.1"]}]


def documented(what: str) -> int:
    """The number in the line about `what`."""
    (number,) = re.findall(rf"^\| {what} \| (\d+)", PAGE, re.MULTILINE)
    return int(number)


async def opened(resources: Resources, db: psycopg.Connection) -> int:
    """Let every link connect; return the number of backends, each of which has its own name."""
    for link in resources._links.values():
        await link.run("SELECT 1")
    names = {f"pgmta {resources._daemon} {name}" for name in resources.names}
    query = "SELECT application_name FROM pg_stat_activity WHERE datname = current_database()"

    def found() -> list[str]:
        return sorted(name for (name,) in db.execute(query) if name.startswith("pgmta "))

    await eventually(lambda: found() == sorted(names))  # a backend goes a moment after its client
    return len(names)


async def smtpd(uri: str, db: psycopg.Connection, **config: Any) -> int:
    settings = SmtpdConfig.model_validate(ENVIRONMENT | {"ingest": {"connections": 3}} | config)
    server = Server(settings, uri)
    server.start()
    try:
        return await opened(server.resources, db)
    finally:
        await server.stop(PATIENCE)


async def queued(uri: str, db: psycopg.Connection, *workers: dict[str, str]) -> int:
    config = whole_model().model_validate(ENVIRONMENT | {"workers": workers})
    signals = Signals()
    daemon = Daemon(config, uri, lambda: config, signals)
    running = asyncio.create_task(daemon.run())
    try:
        await eventually(lambda: {"listen", "watch"} <= set(daemon.process.resources.names))
        return await opened(daemon.process.resources, db)
    finally:
        signals.stop.set()
        await running


async def web(uri: str, db: psycopg.Connection, *serves: str) -> int:
    listen = {"listen": [{"port": free_port(), "serves": serves}]}
    config = whole_web_config().model_validate(ENVIRONMENT | listen)
    signals = Signals()
    daemon = WebDaemon(config, uri, lambda: config, signals)
    running = asyncio.create_task(daemon.run())
    served = [each._api for _, _, each in daemon._site._parts if isinstance(each, ApiRoutes)]
    for operation in served[0].operations if served else ():
        resource: Any = getattr(operation.handler, "__self__", None)
        if (operation.method, operation.path) == ("POST", "/v1/messages"):
            for large in (False, True):
                resource._intake._gatherer(large=large)
        if operation.path == "/v1/events":
            resource._news.mark()
    try:
        await eventually(lambda: "heartbeat" in daemon._site.resources.names)
        await eventually(lambda: not served or "event news" in daemon._site.resources.names)
        return await opened(daemon._site.resources, db)
    finally:
        signals.stop.set()
        await running


async def test_the_page_has_the_connections_of_web(database: str, db: psycopg.Connection) -> None:
    db.autocommit = True
    plain = documented("each `queued web`")
    assert await web(database, db, "pages") == plain
    assert await web(database, db, "pages", "callbacks") == plain + documented(
        "the same, with callbacks"
    )
    assert await web(database, db, "api") == plain + documented("the same, with the API")


async def test_the_page_has_the_connections_of_smtpd(database: str, db: psycopg.Connection) -> None:
    db.autocommit = True
    plain = documented("each process of smtpd") + 3
    assert await smtpd(database, db) == plain
    users = documented("the same, with users")
    assert await smtpd(database, db, listen=USERS) == plain + users
    table = documented("the same, with the table of recipients")
    assert await smtpd(database, db, listen=USERS, relay=TABLE) == plain + users + table


async def test_the_page_has_the_connections_of_queued(
    database: str, db: psycopg.Connection
) -> None:
    db.autocommit = True
    process = documented("each queued")
    worker = documented("each worker with the action deliver")
    one, two = {"name": "one"}, {"name": "two"}
    release = {"name": "free", "action": "release", "where": "false"}
    assert await queued(database, db, one) == process + worker
    assert await queued(database, db, one, two, release) == process + 2 * worker
