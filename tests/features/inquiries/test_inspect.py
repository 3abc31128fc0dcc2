"""An operator sees the connections to a destination over two processes, and ends them."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner, Result
from psycopg.conninfo import make_conninfo

from queued.cli.queuectl import main as queuectl
from tests.features.providers.scripted_server import HANG as NO_ANSWER
from tests.features.providers.scripted_server import ScriptedServer
from tests.features.providers.scripted_server import serving as serving_http
from tests.support.daemons import Queued
from tests.support.loop_thread import LoopThread
from tests.support.name_server import NameServer, Zone, serving_names
from tests.support.rawhop import HANG, PIPED, RawHop, serving
from tests.support.system import System
from tests.support.waiting import until

pytestmark = pytest.mark.slow

TENANTS = ("a", "b")  # the mail of each process
_STARTTLS = b"250-hop.example\r\n250 STARTTLS\r\n"
_AUTH = b"250-hop.example\r\n250 AUTH PLAIN\r\n"

type Run = Callable[..., Result]


class Hops:
    """Next hops that hang, each at another step, in a thread."""

    def __init__(self) -> None:
        self._thread = LoopThread()
        self._stack = AsyncExitStack()
        self._plain = ExitStack()

    def raw(self, **says: bytes) -> RawHop:
        """Start a hop that says this; `ehlo` is its reply to EHLO."""
        hop = RawHop(ehlo=says.pop("ehlo", PIPED), says=dict(says))
        return self._thread.do(self._stack.enter_async_context(serving(hop)))

    def http(self, server: ScriptedServer) -> ScriptedServer:
        return self._thread.do(self._stack.enter_async_context(serving_http(server)))

    def silent(self) -> int:
        """Return a port that takes connections and says nothing."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        async def start() -> int:
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            self._stack.callback(server.close)
            return int(server.sockets[0].getsockname()[1])

        return self._thread.do(start())

    def black_hole(self) -> int:
        """Return a port at which the connect hangs: the queue of the listener is full."""
        listener = self._plain.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(2):
            client = self._plain.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        return int(listener.getsockname()[1])

    def end(self) -> None:
        self._plain.close()
        self._thread.do(self._stack.aclose())
        self._thread.end()


@pytest.fixture
def hops() -> Iterator[Hops]:
    made = Hops()
    yield made
    made.end()


def as_role(system: System, role: str) -> dict[str, Any]:
    """Return the section `environment` for sessions with the rights of a role alone."""
    return {"database": {"uri": make_conninfo(system.uri, options=f"-c role=pgmta_{role}")}}


@pytest.fixture
def command(system: System) -> Run:
    """Run queuectl on the system's database."""
    path = system.folder / "queuectl.yaml"
    path.write_text(yaml.safe_dump({"environment": as_role(system, "operator")}))

    def run(*words: str, code: int = 0, config: Path = path) -> Result:
        result = CliRunner().invoke(queuectl, [*words, "-c", str(config)])
        assert result.exit_code == code, result.output
        return result

    return run


def processes(system: System, **changes: Any) -> list[Queued]:
    """Start a process for the mail of each tenant."""
    made = [
        system.queued(
            ready=False,
            environment=as_role(system, "queued"),
            retry={"intervals": ["1h"]},
            workers=[{"name": tenant, "where": f"tenant = '{tenant}'"}],
            **changes,
        )
        for tenant in TENANTS
    ]
    return [each.ready() for each in made]


def connections(command: Run, name: str) -> list[dict[str, Any]]:
    """Return the connections of a destination, each with its worker."""
    found = json.loads(command("inspect", name, "--json").stdout)
    assert (found["silent"], found["left_out"]) == ([], 0)
    rows: list[dict[str, Any]] = found["connections"]
    return rows


def seen(command: Run, name: str, phase: str, number: int = 2) -> list[dict[str, Any]]:
    """Wait until `number` connections of a destination wait in a phase, and return them."""

    def look() -> list[dict[str, Any]]:
        found = connections(command, name)
        return found if [each["phase"] for each in found] == [phase] * number else []

    return sorted(until(look), key=lambda each: each["worker"])


def test_connections_by_smtp_are_seen_in_each_phase_and_ended(
    system: System, command: Run, hops: Hops, tmp_path: Path, db: psycopg.Connection
) -> None:
    ports = {
        "connect": hops.black_hole(),
        "greeting": hops.raw(greeting=HANG).port,
        "EHLO": hops.raw(EHLO=HANG).port,
        "STARTTLS": hops.raw(ehlo=_STARTTLS, STAR=HANG).port,
        "AUTH": hops.raw(ehlo=_AUTH, AUTH=HANG).port,
        "MAIL": hops.raw(MAIL=HANG).port,
        "RCPT": hops.raw(RCPT=HANG).port,
        "DATA": hops.raw(DATA=HANG).port,
        "end of data": hops.raw(dot=HANG).port,
    }
    handshake = hops.raw(ehlo=_STARTTLS, STAR=b"220 Go on\r\n" + HANG)
    ports["handshake"] = handshake.port
    password = tmp_path / "password"
    password.write_text("secret\n")
    password.chmod(0o600)
    routes: list[dict[str, Any]] = [
        {"name": f"to-{phase.replace(' ', '-')}", "domain": f"{phase.replace(' ', '-')}.example",
         "to": f"127.0.0.1:{port}"}
        for phase, port in ports.items()
    ]  # fmt: skip
    for route in routes:
        if route["name"] == "to-AUTH":
            route |= {"login": "us", "tls": "none"}
    refusing = hops.raw(RCPT=b"450 4.2.1 Later\r\n")
    two = [{"host": "127.0.0.1", "port": refusing.port},
           {"host": "127.0.0.1", "port": ports["RCPT"], "fallback": True}]  # fmt: skip
    routes.append({"name": "two", "domain": "two.example", "to": two})
    file = tmp_path / "shaping.yaml"
    file.write_text(yaml.safe_dump({
        "routes": routes, "logins": {"us": {"user": "us", "password_file": "password"}},
    }))  # fmt: skip
    processes(system, shaping=str(file), delivery={"start": 1, "connections": 1})
    names = {phase: phase.replace(" ", "-").lower() for phase in ports}
    for name in names.values():
        for tenant in TENANTS:
            system.enqueue(f"{tenant}@{name}.example", tenant=tenant)
    for phase, name in names.items():
        shown = "STARTTLS" if phase == "handshake" else phase
        first, second = seen(command, f"{name}.example", shown)
        assert [first["worker"], second["worker"]] == ["a", "b"]
        assert first["id"].partition("/")[0] != second["id"].partition("/")[0]
        assert first["host"] == f"127.0.0.1:{ports[phase]}"
        assert (first["address"], first["sent"], first["tls"]) == ("127.0.0.1", 0, None)
        assert 0 <= first["seconds"] <= first["age"]
        begun = phase in ("MAIL", "RCPT", "DATA", "end of data")
        (row,) = (each for each in system.queue() if each["recipient"] == f"a@{name}.example")
        assert first["row_ids"] == ([row["id"]] if begun else [])
        assert first["message_id"] == (row["message_id"] if begun else None)
        explained = command("explain", str(row["message_id"])).stdout
        assert f": {shown} of 127.0.0.1:{ports[phase]} for " in explained
        assert f"`queuectl inspect --disconnect {first['id']}` ends it" in explained or not begun
        told = command("inspect", "--disconnect", first["id"], second["id"]).stdout
        assert f"{first['id']} is ended: 127.0.0.1:{ports[phase]}, {shown} for" in told
        mail = f", message {row['message_id']}, rows 1" if begun else ", no mail, waiting rows 1"
        assert told.splitlines()[0].endswith(mail)
        for tenant in TENANTS:
            until(lambda to=f"{tenant}@{name}.example": system.events(to))  # type: ignore[misc]
            (attempt,) = system.attempts(f"{tenant}@{name}.example")
            assert attempt["event"] == ("unknown" if phase == "end of data" else "deferred"), phase
            assert "ended by operator" in attempt["reply"], phase
            assert (attempt["command"], attempt["code"]) == (shown, 0)
    system.enqueue("a@two.example", tenant="a")
    found = until(lambda: [each for each in connections(command, "two") if each["rows"]])
    assert [each["phase"] for each in found] == ["RCPT"]
    command("inspect", "--disconnect", found[0]["id"])
    until(lambda: system.events("a@two.example"))
    (attempt,) = system.attempts("a@two.example")
    assert attempt["event"] == "deferred"
    assert attempt["reply"].startswith("ended by operator (other hosts: ")
    assert "450 4.2.1 Later" in attempt["reply"]
    assert handshake.connections == 2  # in plain text no one has tried
    assert "STARTTLS" not in str(system.ask("SELECT * FROM broken_tls"))
    audit = system.ask("SELECT * FROM audit WHERE finished_at IS NOT NULL ORDER BY id")
    assert len(audit) == 2 * len(ports) + 1
    assert {entry["action"] for entry in audit} == {"disconnect"}
    assert audit[0]["who"].count("@") == 1
    assert audit[0]["condition"].startswith("connection ")
    assert [(entry["details"]["phase"], entry["rows"]) for entry in audit[-3:]] == [
        ("STARTTLS", 0), ("STARTTLS", 0), ("RCPT", 1)
    ]  # fmt: skip
    assert system.ask("SELECT FROM inquiries") == []


@pytest.fixture
def names() -> Iterator[NameServer]:
    """A name server with a domain and its MX host."""
    zone: Zone = {
        "shop.example": {"MX": ["10 mx.provider.example."]},
        "mx.provider.example": {"A": ["127.0.0.1"], "AAAA": []},
    }
    with serving_names(zone) as server:
        yield server


def test_an_idle_connection_and_one_that_was_kept(
    system: System, command: Run, hops: Hops, names: NameServer
) -> None:
    """The host of a kept connection may have had something of the mail: that is an attempt."""
    hang: list[int] = []
    hop = hops.raw()
    hop.says["RCPT"] = lambda _: HANG if hang else None
    processes(system, delivery={
        "idle": "60s", "start": 1, "port": hop.port, "forbidden": [], "tls": {"mode": "none"},
        "dns": {"servers": [names.where]},
    })  # fmt: skip
    for tenant in TENANTS:
        system.enqueue(f"{tenant}@shop.example", tenant=tenant)
    system.wait_empty()
    first, second = seen(command, "MX.provider.example", "idle")
    assert first["host"] == f"mx.provider.example:{hop.port}"
    assert (first["sent"], first["message_id"], first["rows"]) == (1, None, 0)
    shown = command("inspect", "routes.*").stdout
    assert "route      routes.*\nceiling    20 connections, no rate\n" in shown
    assert shown.count("\nshop.example ") == 2
    assert command("inspect", "--disconnect", first["id"]).stdout.endswith(", no mail\n")
    until(lambda: hop.open == 1)
    assert len(system.attempts()) == 2
    hang.append(1)
    system.enqueue("b@shop.example", tenant="b")
    (kept,) = seen(command, "shop.example", "RCPT", 1)
    assert (kept["id"], kept["sent"], kept["rows"]) == (second["id"], 1, 1)
    command("inspect", "--disconnect", kept["id"])
    until(lambda: len(system.events("b@shop.example")) == 2)
    attempt = system.attempts("b@shop.example")[1]
    assert (attempt["event"], attempt["command"]) == ("deferred", "RCPT")
    assert attempt["reply"] == "ended by operator"
    assert hop.connections == 2  # at once no other one carried it
    assert (
        f"{kept['id']}: no such connection"
        in command("inspect", "--disconnect", kept["id"], code=1).output
    )


def test_limits_and_ceilings_are_shown_and_a_dead_process_is_named(
    system: System, command: Run, hops: Hops, tmp_path: Path
) -> None:
    hop = hops.raw(RCPT=HANG)
    file = tmp_path / "shaping.yaml"
    file.write_text(yaml.safe_dump({"routes": [
        {"name": "careful", "domain": "*.careful.example", "to": f"127.0.0.1:{hop.port}",
         "rate": "3/s", "per": "tenant"}
    ]}))  # fmt: skip
    settings = {"shaping": str(file), "delivery": {"connections": 20, "start": 1}}
    _, other = processes(system, **settings)
    assert "no connection" in command("inspect", "careful").stdout
    for tenant in TENANTS:
        system.enqueue(f"{tenant}@x.careful.example", tenant=tenant)
    seen(command, "careful", "RCPT")
    for name in ("x.careful.example", "127.0.0.1", f"127.0.0.1:{hop.port}", "Careful"):
        shown = command("inspect", name).stdout
        assert "ceiling    20 × 3/s for each tenant\n" in shown, name  # noqa: RUF001
        assert ("each worker: 20 connections, by delivery.connections of queued.yaml; 40 over 2 "
                "workers in 2 processes\n") in shown  # fmt: skip
        assert "by routes[0].rate of shaping.yaml, over all workers and processes" in shown
        assert shown.count("1 of 20") == 2
        assert shown.count("  RCPT  ") == 2
    lines = command("inspect", "careful", "--csv").stdout.splitlines()
    assert lines[0].startswith("process,worker,destination,id,host,address,phase,")
    assert len(lines) == 3
    path = system.folder / "route.yaml"
    path.write_text(yaml.safe_dump({"environment": as_role(system, "reader"), **settings}))
    shown = command("route", "x.careful.example", config=path).stdout
    assert "ceiling    20 × 3/s for each tenant\n" in shown  # noqa: RUF001
    assert "40 over 2 workers in 2 processes" in shown
    system.daemons.remove(other)
    other.kill()
    told = command("inspect", "careful")
    assert "has not answered within 6 s" in told.stderr
    assert told.stdout.count("1 of 20") == 1


def test_without_processes_and_without_the_right(
    system: System, command: Run, db: psycopg.Connection
) -> None:
    assert "no process that delivers mail answers" in command("inspect", "a.example", code=1).stderr
    assert (
        "no process 3f9a01 delivers"
        in command("inspect", "--disconnect", "3f9a01/7", code=1).stderr
    )
    assert "no id of a connection" in command("inspect", "--disconnect", "7", code=2).stderr
    assert system.ask("SELECT FROM audit") == []
    for role in ("pgmta_reader", "pgmta_queued", "pgmta_smtpd"):
        db.execute(f"SET ROLE {role}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            db.execute("SELECT pgmta.inquiry_begin('disconnect', '7', 'p', 'me')")
        db.execute("RESET ROLE")


def test_connections_by_http(system: System, command: Run, hops: Hops, tmp_path: Path) -> None:
    request = hops.http(ScriptedServer(lambda _: [NO_ANSWER], early=True))
    answer = hops.http(ScriptedServer(lambda _: [NO_ANSWER]))
    urls = {
        "connect": f"http://127.0.0.1:{hops.black_hole()}/",
        "TLS": f"https://127.0.0.1:{hops.silent()}/",
        "request": f"http://127.0.0.1:{request.port}/",
        "answer": f"http://127.0.0.1:{answer.port}/",
    }
    words = {"to": "{{recipient}}", "text": "{{text}}"}
    file = tmp_path / "shaping.yaml"
    file.write_text(yaml.safe_dump({"routes": [
        {"name": phase.lower(), "domain": f"{phase.lower()}.example", "transport": "http",
         "parameters": {"url": url, "json": words}}
        for phase, url in urls.items()
    ]}))  # fmt: skip
    processes(system, shaping=str(file), delivery={"start": 1, "connections": 1})
    content = b"Subject: x\r\n\r\n" + (b"x" * 70 + b"\r\n") * 100
    large = b"Subject: x\r\n\r\n" + (b"x" * 70 + b"\r\n") * 100_000
    for phase in urls:
        for tenant in TENANTS:
            system.enqueue(f"{tenant}@{phase.lower()}.example", tenant=tenant,
                           content=large if phase == "request" else content)  # fmt: skip
    for phase in urls:
        name = f"{phase.lower()}.example"
        first, second = seen(command, name, phase)
        assert (first["rows"], first["sent"]) == (int(phase in ("request", "answer")), 0)
        command("inspect", "--disconnect", first["id"], second["id"])
        for tenant in TENANTS:
            until(lambda to=f"{tenant}@{name}": system.events(to))  # type: ignore[misc]
            (attempt,) = system.attempts(f"{tenant}@{name}")
            assert attempt["event"] == ("unknown" if phase == "answer" else "deferred"), phase
            assert "ended by operator" in attempt["reply"], phase
