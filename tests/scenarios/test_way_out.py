"""The functions on the way of a message out, and to its DSN: docs/develop/flow.md has them."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import psycopg
import pytest

from pgmta.postgres.notify import NOTIFY
from pgmta.service import Signals
from queued.config import QueuedConfig
from queued.daemon.daemon import Daemon
from queued.process import suspension_watch
from queued.worker import left_out
from tests.support.authority import Authority
from tests.support.name_server import Says, Zone, serving_names
from tests.support.nexthop import Do, NextHop, Transaction
from tests.support.tracer import traced, usual
from tests.support.waiting import eventually, let_others_run

FLOW = Path(__file__).parents[2] / "docs" / "develop" / "flow.md"
HEADING = "## From NOTIFY to settled: the functions"
SECURED = "## From a destination to the first MAIL under DANE: the functions"
BOUNCED = "## From a 5xx to the row of its DSN: the functions"
FIRST = "queued/delivery/smtp/protocol.py: ClientProtocol.data_received"
LAST = "pgmta/postgres/link.py: Link.run_together"
OPENED = "queued/delivery/destination_queue.py: DestinationQueue.put_envelope"
MAIL = "queued/delivery/smtp/mail_commands.py: mail_command"
LEFT_OUT = (
    "pgmta/compose/",
    "pgmta/mail/",
    "pgmta/report_row.py",
    "queued/config/",
    "queued/delivery/transport/transcript.py",
    "queued/reports/text/",
)
"""Files of texts, settings and values. The way of a DSN names none of their functions."""
ASIDE = (
    "pgmta/config/",
    "queued/delivery/dns/forbidden.py",
    "queued/delivery/dns/hosts.py: OwnHost",
    "queued/delivery/dns/hosts.py: _binds",
    "queued/delivery/dns/hosts.py: _socket",
    "queued/delivery/dns/unresponsive.py",
    "queued/delivery/smtp/smtp_parameters.py",
    "queued/delivery/tls/certificate_chain.py",
)
"""Files of values, own and forbidden addresses, and certificates: DANE's way leaves them out."""
MOST_FUNCTIONS, MOST_FILES = 64, 35
MOST_BOUNCED, MOST_FILES_BOUNCED = 77, 32
MOST_SECURED, MOST_FILES_SECURED = 89, 25
BODY = (b"Subject: x\r\n\r\n" + b"4 KB of text, line by line\r\n" * 150)[:4096]
# No periodic work falls into a trace. The loop of urgent rows is no part of the message's way.
CONFIG = {
    "process": {"lease": "1h", "poll": "1h", "watch": None},
    "delivery": {"idle": "1h"},
    "urgent": {"priority": None},
}


@pytest.fixture(autouse=True)
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no look at suspensions fall into a trace either."""
    monkeypatch.setattr(suspension_watch, "_EVERY", 3600.0)


BUSY = (
    "SELECT 1 FROM queue UNION ALL SELECT 1 FROM pg_stat_activity"
    " WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()"
)


def documented(heading: str = HEADING) -> list[str]:
    """A list in docs/develop/flow.md, `file.py: function` each."""
    section = FLOW.read_text(encoding="utf-8").partition(heading)[2].partition("\n## ")[0]
    return re.findall(r"`(\w+(?:/\w+)+\.py: [\w.]+)`", section)


async def deliver(
    db: psycopg.AsyncConnection, number: int, recipient: str = "r@b.example"
) -> list[str]:
    """Notify the daemon of a message; return the functions that it calls until it is idle again."""
    async with db.transaction():
        await db.execute(
            "INSERT INTO messages (id, size, trace, body) VALUES (%s, %s, 'T: t\r\n', %s)",
            (number, len(BODY), BODY),
        )
        await db.execute(
            "INSERT INTO queue (message_id, sender, recipient, domain, on_failed)"
            " VALUES (%s, 's@a.example', %s, %s, 'bounce')",
            (number, recipient, recipient.partition("@")[2]),
        )
    with traced() as calls:
        await db.execute(NOTIFY)

        async def idle() -> bool:
            return not await (await db.execute(BUSY)).fetchone()

        await eventually(idle)
        for _ in range(3):  # the daemon reads the answer to its commit
            await let_others_run(5)
            await db.execute("SELECT")
    return calls


async def test_a_message_passes_the_functions_of_the_documentation(database: str) -> None:
    """In a daemon that has delivered to this next hop a moment ago."""
    with NextHop() as hop:
        routes = {"*": f"127.0.0.1:{hop.port}"}
        config = QueuedConfig.model_validate({**CONFIG, "routes": routes})
        signals = Signals()
        daemon = asyncio.create_task(Daemon(config, database, lambda: config, signals).run())
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as db:
            await deliver(db, 1)
            traces = [await deliver(db, number) for number in range(2, 6)]
        signals.stop.set()
        await daemon
    way = usual(traces)
    files = {name.partition(":")[0] for name in way}
    found = "\n".join(f"{place}. `{name}`" for place, name in enumerate(way, 1))
    assert way == documented(), found
    assert len(way) <= MOST_FUNCTIONS
    assert len(files) <= MOST_FILES


def refusing(point: str, line: str, transaction: Transaction | None) -> Do | None:
    """The script of a next hop that does not know one recipient."""
    unknown = point == "RCPT" and "unknown@" in line
    return Do(line="550 5.1.1 No such user") if unknown else None


async def test_a_dsn_passes_the_functions_of_the_documentation(database: str) -> None:
    """From the 550 of a next hop to the row of the DSN."""
    with NextHop(refusing) as hop:
        routes = {"*": f"127.0.0.1:{hop.port}"}
        bounces = {"gather": "0s"}
        config = QueuedConfig.model_validate({**CONFIG, "routes": routes, "bounces": bounces})
        signals = Signals()
        daemon = asyncio.create_task(Daemon(config, database, lambda: config, signals).run())
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as db:
            # DSNs take the first message ids
            traces = [await deliver(db, 9000 + n, "unknown@b.example") for n in range(8)]
        signals.stop.set()
        await daemon
    whole = usual(traces[1:])
    way = [
        name
        for name in whole[whole.index(FIRST) : whole.index(LAST) + 1]
        if not name.startswith(LEFT_OUT)
    ]
    files = {name.partition(":")[0] for name in way}
    found = "\n".join(f"{place}. `{name}`" for place, name in enumerate(way, 1))
    assert way == documented(BOUNCED), found
    assert len(way) <= MOST_BOUNCED
    assert len(files) <= MOST_FILES_BOUNCED


def signed(port: int, tlsa: str, names: list[str]) -> Zone:
    """A zone of domains, each with a host that has TLSA records; DNSSEC secures all answers."""
    zone: dict[str, dict[str, Says]] = {".": {"NS": Says(["a.example."], ad=True)}}
    for name in names:
        host = f"mx.{name}"
        zone[name] = {"MX": Says([f"10 {host}."], ad=True)}
        zone[host] = {"A": Says(["127.0.0.1"], ad=True), "AAAA": Says(ad=True)}
        zone[f"_{port}._tcp.{host}"] = {"TLSA": Says([f"3 1 1 {tlsa}"], ad=True)}
    return zone


async def test_a_session_under_dane_passes_the_functions_of_the_documentation(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time with a domain that is new to the daemon."""
    # under load a connection takes longer than a periodic look for one
    monkeypatch.setattr(left_out, "_LOOK", 3600.0)
    certificate = Authority(tmp_path).issue(["mx.example"])
    names = [f"d{number}.example" for number in range(8)]
    with NextHop(tls=certificate.context()) as hop, serving_names({}) as server:
        server.zone.update(
            {n: dict(k) for n, k in signed(hop.port, certificate.tlsa(), names).items()}
        )
        delivery = {"port": hop.port, "forbidden": [], "dns": {"servers": [server.where]}}
        config = QueuedConfig.model_validate({**CONFIG, "delivery": delivery})
        signals = Signals()
        daemon = asyncio.create_task(Daemon(config, database, lambda: config, signals).run())
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as db:
            traces = [await deliver(db, n, f"r@{name}") for n, name in enumerate(names, 1)]
            verified = await (await db.execute("SELECT tls_verified FROM attempts")).fetchall()
        signals.stop.set()
        await daemon
    assert verified == [("dane",)] * len(names)
    whole = usual(traces[1:])
    way = [
        name
        for name in whole[whole.index(OPENED) : whole.index(MAIL) + 1]
        if not name.startswith(ASIDE) and not name.endswith("__")
    ]
    files = {name.partition(":")[0] for name in way}
    found = "\n".join(f"{place}. `{name}`" for place, name in enumerate(way, 1))
    assert way == documented(SECURED), found
    assert len(way) <= MOST_SECURED
    assert len(files) <= MOST_FILES_SECURED
