"""queued posts mail as JSON by a transport that is registered: a route of shaping.yaml names it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import psycopg
import pytest
import yaml
from click.testing import CliRunner
from psycopg.rows import dict_row

from pgmta.errors import ConfigError
from pgmta.features import Feature, features
from pgmta.postgres.notify import NOTIFY
from pgmta.service import Signals
from queued.cli.queuectl import main
from queued.config import read_config
from queued.daemon.daemon import Daemon
from queued.delivery.transports import parsers
from tests.support.nexthop import NextHop
from tests.support.rows import row
from tests.support.waiting import until

BODY = b"Subject: x\r\n\r\n.\rHello\r\n"
NEVER = "5.1.1 HTTP 410 Gone"
LATER = "4.0.0 HTTP 503 Busy"
LOST = "no answer to the whole request"
TAKEN = "2.0.0 HTTP 202 Accepted"


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "tests.exercises.transport.json_transport:JSON"
    monkeypatch.setitem(features(), "push", Feature(transports={"json": place}))


class PushService:
    """Takes posts; the token of each says what it answers."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.asked: Counter[str] = Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:  # a connection that was not used
            writer.close()
            return
        length = next(
            int(line.split(b":")[1]) for line in head.split(b"\r\n") if b"Content-Length" in line
        )
        mail = json.loads(await reader.readexactly(length))
        assert base64.b64decode(mail["message"]) == BODY
        token = mail["to"]
        self.asked[token] += 1
        first = self.asked[token] == 1
        answer = b"202 Accepted"
        if token == "gone":
            answer = b"410 Gone"
        elif token == "busy" and first:
            answer = b"503 Busy"
        elif token in ("lost", "once") and first:
            answer = b""
        if answer.startswith(b"202"):
            self.taken.append(token)
        if answer:
            writer.write(b"HTTP/1.1 " + answer + b"\r\nContent-Length: 0\r\n\r\n")
        writer.close()


def configure(
    folder: Path, uri: str, url: str, smtp: str, keys: dict[str, object], inline: str = "1MB"
) -> Path:
    """Write the files of a queued whose mail for the domain `push` goes by JSON."""
    route = {"name": "push", "domain": "push", "transport": "json", "parameters": {"url": url}}
    routes = {"routes": [route | keys, {"to": smtp}]}
    config = {
        "environment": {"database": {"uri": uri}},
        "shaping": "shaping.yaml",
        "delivery": {"inline": inline},
        "retry": {"intervals": ["0.1s"]},
        "bounces": {"gather": "0s"},
    }
    for name, content in ("shaping.yaml", routes), ("queued.yaml", config):
        (folder / name).write_text(yaml.safe_dump(content))
    return folder / "queued.yaml"


def put(uri: str) -> None:
    """Put rows for six tokens and a text that is none."""
    with psycopg.connect(uri) as db:
        db.execute(
            "INSERT INTO messages (id, size, trace, body) VALUES (901, %s, 'T: t\r\n', %s)",
            (len(BODY), BODY),
        )
        for token in ("good", "gone", "busy", "lost", "once", "no token!"):
            row(db, 901, recipient=token, domain="push", once=token == "once",
                on_failed="bounce" if token == "gone" else "hold")  # fmt: skip
        db.execute(NOTIFY)


def follow(uri: str, hop: NextHop) -> dict[str, list[tuple[str, str]]]:
    """Wait until the queue has only rows on HOLD; return the log by recipients."""
    with psycopg.connect(uri, autocommit=True, row_factory=dict_row) as db:
        put(uri)
        until(lambda: not db.execute("SELECT FROM queue WHERE status <> 'HOLD'").fetchall())
        until(lambda: hop.transactions)
        log: dict[str, list[tuple[str, str]]] = {}
        for each in db.execute("SELECT * FROM attempts ORDER BY ended_at").fetchall():
            if "@" not in each["recipient"]:
                assert not each["code"], "HTTP has no codes of SMTP"
                log.setdefault(each["recipient"], []).append((each["event"], each["reply"]))
        held = db.execute("SELECT recipient FROM queue ORDER BY recipient").fetchall()
    assert [each["recipient"] for each in held] == ["no token!", "once"]
    return log


@pytest.mark.parametrize("inline", ["1MB", "1B"])
async def test_mail_goes_by_a_registered_transport(
    database: str, tmp_path: Path, inline: str
) -> None:
    service, signals = PushService(), Signals()
    async with AsyncExitStack() as stack:
        server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
        await stack.enter_async_context(server)
        hop = stack.enter_context(NextHop())
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/push"
        path = configure(tmp_path, database, url, hop.target, {}, inline)
        shown = CliRunner().invoke(main, ["route", "push", "-c", str(path)])
        words = f"route      push\nto         {url}\ntransport  json\nceiling    20 "
        assert shown.stdout.startswith(words)
        config = read_config(path, parsers())
        running = asyncio.create_task(Daemon(config, database, lambda: config, signals).run())
        log = await asyncio.to_thread(follow, database, hop)
        signals.stop.set()
        await running
    assert log == {
        "good": [("delivered", TAKEN)],
        "gone": [("failed", NEVER)],
        "busy": [("deferred", LATER), ("delivered", TAKEN)],
        "lost": [("unknown", LOST), ("delivered", TAKEN)],
        "once": [("unknown", LOST)],
        "no token!": [("failed", "5.1.3 the recipient is no token")],
    }
    assert sorted(service.taken) == ["busy", "good", "lost"]
    (dsn,) = hop.transactions
    assert dsn.recipients == ["s@a.example"]
    assert NEVER.encode() in (dsn.content or b"")


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"transport": "jsn"}, "transport: no transport 'jsn'; did you mean 'json'?"),
        ({"parameters": {"uri": "x"}}, "parameters: url: Field required; uri: Extra inputs"),
        ({"to": "mx"}, "to: is for smtp and lmtp; json has `parameters`"),
        ({"transport": "smtp"}, "to: is required"),
    ],
)
def test_a_route_that_its_transport_does_not_know(
    tmp_path: Path, keys: dict[str, object], problem: str
) -> None:
    path = configure(tmp_path, "postgresql:///x", "http://127.0.0.1:1/", "mx", keys)
    with pytest.raises(ConfigError) as caught:
        read_config(path, parsers())
    assert f"routes[0].{problem}" in str(caught.value)
