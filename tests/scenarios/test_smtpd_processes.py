"""The processes of smtpd: one dies, or all have to stop, and no accepted message is lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from smtpd.process import supervisor as keeper_module
from smtpd.process.supervisor import Supervisor
from tests.smtpd.handlers import printing
from tests.support.daemons import Smtpd, lives
from tests.support.submit import Client
from tests.support.system import System
from tests.support.waiting import PATIENCE, free_port, take_time, until

MAIL = b"Subject: x\r\n\r\nx\r\n"


class Sender(threading.Thread):
    """Sends until `stop` is set, with a new session whenever one breaks."""

    def __init__(self, smtpd: Smtpd, name: str) -> None:
        super().__init__(name=name)
        self._port = smtpd.port
        self.accepted: list[str] = []
        self.broken = 0
        self.enough = threading.Event()
        self.start()

    def run(self) -> None:
        count = 0
        while not self.enough.is_set():
            try:
                with Client(self._port) as client:
                    while not self.enough.is_set():
                        count += 1
                        who = f"{self.name}.{count}@hop.example"
                        if client.send("a@example.org", [who], MAIL).code == 250:
                            self.accepted.append(who)
            except (OSError, AssertionError):  # AssertionError: 421 between two mails
                self.broken += 1


@pytest.mark.slow
def test_a_killed_child_is_replaced(system: System) -> None:
    system.expected = {"process died, restarting"}
    hop = system.hop()
    smtpd = system.smtpd(processes=2)
    system.queued(hop)
    senders = [Sender(smtpd, f"s{n}") for n in range(6)]
    try:
        until(lambda: all(len(s.accepted) > 5 for s in senders))
        # the kernel shares sessions out by hash: take a child that has some
        victim = max(smtpd.children(), key=lambda child: len(child.net_connections()))
        victim.kill()
        assert smtpd.wait_log("serving", 3)["pid"] != victim.pid
        until(lambda: any(s.broken for s in senders))
        marks = [len(s.accepted) for s in senders]
        until(lambda: all(len(s.accepted) > n + 5 for s, n in zip(senders, marks, strict=True)))
    finally:
        for sender in senders:
            sender.enough.set()
        for sender in senders:
            sender.join()
    assert len(smtpd.children()) == 2
    system.wait_empty()
    delivered = hop.deliveries()
    for sender in senders:
        assert set(sender.accepted) <= set(delivered)
    assert set(delivered.values()) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("lines", [10, 20_000], ids=["small", "large"])
def test_stop_lets_a_transaction_end(system: System, lines: int) -> None:
    hop = system.hop()
    smtpd = system.smtpd()
    half = b"." + b"x" * 97 + b"\r\n"
    with smtpd.connect() as idle, smtpd.connect() as client:
        client.begin("a@example.org", ["x@hop.example"])
        client.write((b"." + half) * lines)
        smtpd.signal(signal.SIGTERM)
        assert idle.reply().startswith("421 4.3.2 ")
        assert client.finish(half * lines).code == 250
        assert client.reply().startswith("421 4.3.2 ")
    smtpd.wait()
    system.queued(hop)
    (transaction,) = hop.wait_kept(1)
    assert (transaction.content or b"").endswith(half * lines * 2)
    system.wait_empty()


@pytest.mark.slow
def test_reload_keeps_transactions_and_takes_the_new_file(system: System) -> None:
    smtpd = system.smtpd(relay={"networks": [], "domains": ["old.example"]})
    with smtpd.connect().begin("a@example.org", ["x@old.example"]) as client:
        smtpd.write("relay: {domains: [[]]}")
        smtpd.signal(signal.SIGHUP)
        smtpd.wait_log("configuration kept as it was")
        smtpd.write({**smtpd.config, "processes": 3})
        smtpd.signal(signal.SIGHUP)
        kept = smtpd.wait_log("configuration kept as it was", 2)
        assert kept["problems"] == ["processes: needs a restart"]
        relay = {"networks": ["240.0.0.0/4"], "domains": ["new.example"]}
        smtpd.write({**smtpd.config, "relay": relay})
        smtpd.signal(signal.SIGHUP)
        smtpd.wait_log("configuration read again")
        assert "open relay" in smtpd.wait_log("configuration")["reason"]
        assert client.finish(MAIL).code == 250
    successor = smtpd.wait_log("serving", 2)["pid"]
    until(lambda: [child.pid for child in smtpd.children()] == [successor])
    with smtpd.connect().begin("a@example.org", ["x@new.example"]) as later:
        assert later.finish(MAIL).code == 250
    system.expected = {"configuration kept as it was", "configuration"}


@pytest.mark.slow
def test_hooks_that_print_disturb_no_process(system: System) -> None:
    """Their output goes to stderr; the pipe to the master is not theirs."""
    system.expected = {printing.AT_IMPORT, printing.LINE}
    smtpd = system.smtpd(hooks=["tests.smtpd.handlers.printing:Printer"], hook_limits={"time": 5})
    smtpd.signal(signal.SIGHUP)
    assert smtpd.wait_log("processes replaced")["number"] == 1
    successor = smtpd.wait_log("serving", 2)["pid"]
    until(lambda: [child.pid for child in smtpd.children()] == [successor])
    with smtpd.connect().begin("a@example.org", ["x@hop.example"]) as client:
        assert client.finish(MAIL).code == 250


def test_children_end_with_a_killed_master(system: System) -> None:
    smtpd = system.smtpd(processes=2)
    children = smtpd.children()
    smtpd.kill()
    until(lambda: not any(map(lives, children)))


@pytest.mark.slow
def test_reloads_leave_no_gap(system: System) -> None:
    """Old processes may take long to end; their successors serve meanwhile."""
    hop = system.hop()
    smtpd = system.smtpd(processes=2)
    system.queued(hop)
    busy = [smtpd.connect().begin("a@example.org", [f"b{n}@hop.example"]) for n in range(8)]
    senders = [Sender(smtpd, f"s{n}") for n in range(4)]
    try:
        for count in range(1, 5):
            smtpd.signal(signal.SIGHUP)
            smtpd.wait_log("processes replaced", count)
            marks = [len(s.accepted) for s in senders]
            until(lambda: all(len(s.accepted) > n + 3 for s, n in zip(senders, marks, strict=True)))  # noqa: B023
            if count == 1:  # a process that ends waits 30 seconds for them
                assert len(smtpd.children()) > 2
                assert all(client.finish(MAIL).code == 250 for client in busy)
    finally:
        for client in busy:
            client.close()
        for sender in senders:
            sender.enough.set()
        for sender in senders:
            sender.join()
    until(lambda: len(smtpd.children()) == 2)
    system.wait_empty()
    accepted = {who for s in senders for who in s.accepted} | {
        f"b{n}@hop.example" for n in range(8)
    }
    assert accepted <= set(hop.deliveries())
    assert set(hop.deliveries().values()) == {1}


@pytest.mark.slow
def test_reloads_pile_up_no_processes(system: System) -> None:
    """Not even where every process has a session that does not end, nor where children die."""
    smtpd = system.smtpd()
    system.expected = {
        "process died, restarting",
        "process kept as it was: its successor did not start",
    }
    busy = []
    most = 0
    for turn in range(12):
        busy.append(smtpd.connect().begin("a@example.org", ["x@hop.example"]))
        smtpd.signal(signal.SIGHUP)
        most = max(most, len(smtpd.children()))
        if turn == 6:
            (killed := smtpd.children()[0]).kill()
            killed.wait()  # it takes no further session
    until(lambda: len(smtpd.events("processes replaced")) >= 1)
    assert max(most, len(smtpd.children())) <= 4
    for client in busy:
        client.close()
    until(lambda: len(smtpd.children()) == 1)
    smtpd.connect().close()


def test_a_process_whose_master_has_died_ends_without_an_error(system: System) -> None:
    smtpd = system.smtpd()
    read, write = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.fileno()
        command = [sys.executable, "-m", "smtpd", "serve", "-c", str(smtpd.path)]
        child = subprocess.Popen(
            [*command, "--descriptors", str(number)],
            stdin=subprocess.PIPE,
            stdout=write,
            stderr=subprocess.PIPE,
            pass_fds=[number],
        )
        os.close(write)
        os.close(read)  # the master has gone before the process was ready
        _, said = child.communicate(timeout=PATIENCE)
    assert (child.returncode, b"error" in said) == (0, False), said


async def test_a_successor_that_does_not_start_replaces_nobody(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "missing.yaml", [])
    assert not await supervisor.replace()


async def test_a_process_that_does_not_stop_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids, python = tmp_path / "pids", tmp_path / "python"
    python.write_text(f"#!/bin/sh\ntrap '' TERM\necho $$ >> {pids}\necho ready\nexec sleep 600\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(keeper_module, "GRACE_S", 0.1)
    supervisor = Supervisor(tmp_path / "smtpd.yaml", [])
    running = asyncio.create_task(supervisor.run())
    for _ in range(4):  # the third would wait for ever
        async with asyncio.timeout(PATIENCE):
            assert await supervisor.replace()
    supervisor.stop()
    supervisor.signal(signal.SIGKILL)
    async with asyncio.timeout(PATIENCE):
        await running
    assert len(pids.read_text().split()) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("module", ["smtpd", "queued"])
def test_a_signal_at_the_start_ends_nothing_half_started(
    database: str, tmp_path: Path, module: str
) -> None:
    """From the first line of the program on, SIGTERM is a clean end and SIGHUP none at all."""
    config = tmp_path / "config.yaml"
    listen = {"listen": [{"port": free_port()}], "processes": 1} if module == "smtpd" else {}
    config.write_text(json.dumps({"environment": {"database": {"uri": database}}, **listen}))
    for step in range(5):
        process = subprocess.Popen(
            [sys.executable, "-m", module, "run", "-c", str(config)], stderr=subprocess.DEVNULL
        )
        caught = Path(f"/proc/{process.pid}/status")
        until(lambda: caught_mask(caught) & (1 << (signal.SIGHUP - 1)))  # noqa: B023
        take_time(step / 10)  # anywhere in the start
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def caught_mask(status: Path) -> int:
    """Signals that the process has handlers for (proc(5))."""
    (line,) = [line for line in status.read_text().splitlines() if line.startswith("SigCgt:")]
    return int(line.split()[1], 16)


@pytest.mark.parametrize("module", ["smtpd", "queued"])
def test_signals_are_caught_before_anything_slow_is_imported(module: str) -> None:
    slow = ("asyncio", "click", "psycopg", "pydantic", "uvloop")
    code = (
        f"import signal, sys; sys.argv = ['x', 'run']; import {module}.__main__\n"
        f"class Stop:\n"
        f"  def find_spec(self, name, *_):\n"
        f"    if name in {slow}: sys.exit(str(signal.getsignal(signal.SIGTERM)))\n"
        f"sys.meta_path.insert(0, Stop())\n"
        f"{module}.__main__.main()"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "_caught" in told.stderr
