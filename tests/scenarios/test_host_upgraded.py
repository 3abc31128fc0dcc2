"""Two hosts on one database are upgraded one after the other, from before the last migration."""

from __future__ import annotations

import os
import smtplib
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.daemons import HOSTNAME, ROOT, Config, Daemon, Queued, Smtpd
from tests.support.database import fresh_database
from tests.support.far_host import FarHost, possible
from tests.support.system import System
from tests.support.trees import before_last_migration, environment_of, tree_of
from tests.support.waiting import PATIENCE, until

PORT = 2525
SENDERS = 3
AGAIN = 30.0
"""Seconds for which a client may find no host that takes its mail: it comes back after minutes."""

MISMATCH = "the schema is of another version, no mail is taken"
CONTENT = "Subject: x\r\n\r\nx\r\n"


class Sender(threading.Thread):
    """A client with two relays: it goes to the other one, and round again, until one takes it."""

    def __init__(self, name: str, hosts: list[FarHost]) -> None:
        super().__init__(name=name, daemon=True)
        self._hosts = hosts
        self._session: smtplib.SMTP | None = None
        self.accepted: list[str] = []
        self.unknown: list[str] = []
        """Mail with a lost reply to its content."""
        self.rounds: list[int] = []
        """How often each mail went round all hosts in vain."""
        self.longest = 0.0
        self.refused: Counter[str] = Counter()
        self.enough = threading.Event()
        self.start()

    def run(self) -> None:
        count = 0
        while not self.enough.is_set():
            count += 1
            began, tries = time.monotonic(), 0
            while not self._try(f"{self.name}n{count}@hop.example"):
                tries += 1
                self._hosts.append(self._hosts.pop(0))
                if tries % len(self._hosts) == 0:
                    self.enough.wait(0.05)
            self.rounds.append(tries // len(self._hosts))
            self.longest = max(self.longest, time.monotonic() - began)
            self.enough.wait(0.02)
        if self._session:
            self._session.close()

    def _try(self, recipient: str) -> bool:
        """Send a mail to the present host; return whether that has it."""
        try:
            if not self._session:
                host = self._hosts[0]
                self._session = smtplib.SMTP(host.address, PORT, "client.example", PATIENCE)
                self._session.ehlo()
            for code, said in (self._session.mail("a@b.example"), self._session.rcpt(recipient)):
                if code != 250:
                    return self._give_up(f"{code} {said.decode()}")
        except (OSError, smtplib.SMTPException) as error:
            return self._give_up(type(error).__name__)
        try:
            code, said = self._session.data(CONTENT)
        except smtplib.SMTPDataError as error:  # to DATA
            return self._give_up(f"{error.smtp_code}")
        except (OSError, smtplib.SMTPException):
            self.unknown.append(recipient)
            return self._give_up("unknown")
        if code != 250:
            return self._give_up(f"{code} {said.decode()}")
        self.accepted.append(recipient)
        return True

    def _give_up(self, reason: str) -> bool:
        self.refused[reason] += 1
        if self._session:
            self._session.close()
        self._session = None
        return False


class Host:
    """One host: its smtpd and queued, of a version."""

    def __init__(self, far: FarHost, name: str, system: System, hop: tuple[str, int]) -> None:
        self.far = far
        self.daemons: list[Daemon] = []
        self._system = system
        self._name = name
        self._hop = "{}:{}".format(*hop)

    def start(self, tree: Path) -> None:
        """Start both daemons of that tree, with the files of this host."""
        host: Config = {"hostname": f"{self._name}.{HOSTNAME}"}
        (folder := self._system.folder / self._name).mkdir(exist_ok=True)

        class FarSmtpd(Smtpd):
            before = self.far.before

        class FarQueued(Queued):
            before = self.far.before

        more = environment_of(tree)
        listen = [{"address": self.far.address, "port": PORT, "role": "internal"}]
        smtpd = FarSmtpd(
            folder, f"smtpd-{tree.name}", self.far.uri,
            {"environment": host, "listen": listen, "relay": {"networks": ["10.197.0.0/16"]}}, more,
        )  # fmt: skip
        queued = FarQueued(
            folder, f"queued-{tree.name}", self.far.uri,
            {"environment": host, "routes": {"*": self._hop}}, more,
        )  # fmt: skip
        self.daemons = [smtpd, queued]
        self._system.daemons += self.daemons

    def ready(self) -> None:
        """Wait until both have their schema."""
        smtpd, queued = self.daemons
        smtpd.wait_log("serving")
        queued.wait_log("ready")

    def stop(self) -> None:
        """Stop both, as an operator does before the upgrade."""
        for daemon in self.daemons:
            daemon.stop()


def queuectl(tree: Path, folder: Path, uri: str, *words: str) -> str:
    path = folder / "queuectl.yaml"
    path.write_text(f"environment: {{database: {{uri: '{uri}'}}}}\n")
    script = "from queued.cli.queuectl import main; main()"
    return subprocess.run(
        [sys.executable, "-c", script, *words, "-c", path], env=os.environ | environment_of(tree),
        cwd=folder, capture_output=True, text=True, check=True, timeout=PATIENCE,
    ).stdout  # fmt: skip


@pytest.fixture
def system(server: str, tmp_path: Path) -> Iterator[System]:
    """An installation on a database without any table."""
    with fresh_database(server) as uri:
        system = System(tmp_path, uri)
        yield system
        system.clean()


@pytest.mark.slow
@pytest.mark.skipif(not possible, reason="needs root, who may make a network namespace")
def test_clients_find_a_host_that_takes_their_mail(system: System, tmp_path: Path) -> None:
    commit = before_last_migration()
    if not commit:
        pytest.skip("this clone has no commit from before the last migration")
    tree_of(commit, old := tmp_path / "old", ["pgmta", "queued", "smtpd", "sql", "etc"])
    (new := tmp_path / "new").mkdir()
    for name in ("pgmta", "queued", "smtpd", "sql", "etc"):
        (new / name).symlink_to(ROOT / name)
    queuectl(old, tmp_path, system.uri, "migrate")
    system.expected.add(MISMATCH)
    hop = system.hop()
    with ExitStack() as stack:
        hosts = []
        for name in ("one", "two"):
            far = stack.enter_context(FarHost(system.uri))
            hosts.append(Host(far, name, system, far.pass_on("127.0.0.1", hop.port)))
        one, two = hosts
        for host in hosts:
            host.start(old)
        for host in hosts:
            host.ready()
        senders = [
            Sender(f"s{n}", [host.far for host in (hosts if n % 2 else hosts[::-1])])
            for n in range(SENDERS)
        ]

        def mail_flows() -> None:
            """Wait until each client has got rid of more mail, and some has arrived."""
            marks, kept = [len(each.accepted) for each in senders], len(hop.kept)
            until(
                lambda: all(len(s.accepted) > n + 20 for s, n in zip(senders, marks, strict=True))
            )
            hop.wait_kept(kept + 20)

        try:
            mail_flows()
            one.stop()
            mail_flows()
            assert sum(sum(each.rounds) for each in senders) == 0, "the other host takes the mail"
            one.start(new)
            one.daemons[1].wait_log("waiting for the database")
            applied = queuectl(new, tmp_path, system.uri, "migrate", "--while-daemons-run")
            assert "applied" in applied
            one.ready()
            mail_flows()
            two.daemons[0].wait_log(MISMATCH)
            marks = [len(each.rounds) for each in senders]
            two.stop()
            mail_flows()
            two.start(new)
            two.ready()
            mail_flows()
            later = [sum(s.rounds[n + 1 :]) for s, n in zip(senders, marks, strict=True)]
            assert later == [0] * SENDERS, "without a migration no client goes round in vain"
        finally:
            for each in senders:
                each.enough.set()
            for each in senders:
                each.join(PATIENCE)
        longest = max(each.longest for each in senders)
        refused = sum((each.refused for each in senders), Counter[str]())
        print(f"{applied.split()}; the longest wait of a mail: {longest:.1f} s; refused: {refused}")
        assert longest < AGAIN
        assert [each.unknown for each in senders] == [[]] * SENDERS, (
            "no session ends in its content"
        )
        system.wait_empty()
        assert hop.deliveries() == Counter(r for each in senders for r in each.accepted), (
            "each once"
        )
        system.stop()
    assert system.faults() == []
