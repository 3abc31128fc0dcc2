"""The DNS of the fake Internet: nsd serves zones that ldns-signzone signed, unbound validates."""

from __future__ import annotations

import os
import random
import re
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import dns.exception
import dns.flags
import dns.message
import dns.query

from tests.support.packages import program
from tests.support.waiting import until

_SOA = "@ SOA ns.fake. hostmaster.fake. 1 3600 600 86400 5\n"


@dataclass
class Zone:
    """A zone: `sign` is 'secure', 'none', 'expired' or 'bogus TYPE'.

    'bogus TYPE' signs the zone and then changes the records of that type.
    """

    name: str
    records: str
    sign: str = "secure"
    broken: Mapping[str, str] = field(default_factory=dict)  # names below, 'silent' or 'servfail'


def _run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [program(command[0]) or command[0], *command[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout.strip()


def _altered(line: str, kind: str) -> str:
    """Change a record so that its signature is wrong."""
    if kind == "MX":
        return re.sub(r"\tMX\t(\d+)", lambda found: f"\tMX\t{int(found[1]) + 1}", line)
    if kind == "A":
        return re.sub(r"\tA\t127\.(\d+)", lambda found: f"\tA\t127.{int(found[1]) ^ 64}", line)
    digit = "0" if line.rstrip()[-1] != "0" else "1"
    return re.sub(r"[0-9a-fA-F](\s*)$", rf"{digit}\1", line)


class NameServers:
    """nsd with signed zones, and unbound before it. `resolver` is the validating one's port."""

    def __init__(self, folder: Path, zones: Sequence[Zone]) -> None:
        self._folder = folder
        folder.mkdir()
        self._stack = ExitStack()
        self.port = _dns_port()
        self.resolver = _dns_port()
        self.plain_resolver = _dns_port()
        """The port of a resolver that does not validate."""
        self.address = f"127.53.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
        """Where the validating one also has port 53, for programs with a resolv.conf (as root)."""
        self._servers = self._stack.enter_context(BrokenServers())
        self._zones: dict[str, Path] = {}
        delegations = [_SOA, "@ NS ns.fake.\nns.fake. A 127.0.0.1\n"]
        for zone in zones:
            delegations.append(f"{zone.name} NS ns.fake.\n")
            delegations.append(self._make(zone))
        anchor = self._make(Zone(".", "".join(delegations)), root=True)
        (folder / "anchor").write_text(anchor)
        self._broken = {name: how for zone in zones for name, how in zone.broken.items()}
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _make(self, zone: Zone, *, root: bool = False) -> str:
        """Write a zone; return its DS record, empty for an unsigned one."""
        bare = zone.name.rstrip(".") or "root"
        path = self._folder / bare
        head = "" if root else f"{_SOA}@ NS ns.fake.\n"
        path.write_text(f"$ORIGIN {zone.name}\n$TTL 300\n{head}{zone.records}\n")
        if zone.sign == "none":
            self._zones[zone.name] = path
            return ""
        key = _run(self._folder, "ldns-keygen", "-a", "ECDSAP256SHA256", "-k", zone.name)
        dates = ["-i", "20200101", "-e", "20200201"] if zone.sign == "expired" else []
        signed = path.with_name(f"{bare}.signed")
        _run(self._folder, "ldns-signzone", *dates, "-f", str(signed), str(path), key)
        if zone.sign.startswith("bogus"):
            kind = zone.sign.split()[1]
            lines = signed.read_text().splitlines(keepends=True)
            lines = [_altered(x, kind) if f"\tIN\t{kind}\t" in x else x for x in lines]
            signed.write_text("".join(lines))
        self._zones[zone.name] = signed
        return (self._folder / f"{key}.ds").read_text()

    def _start(self) -> None:
        zones = "".join(
            f'zone:\n  name: "{name}"\n  zonefile: "{path}"\n' for name, path in self._zones.items()
        )
        self._daemon(
            "nsd",
            f"""server:
  ip-address: 127.0.0.1@{self.port}
  server-count: 1
  username: ""
  chroot: ""
  database: ""
  zonesdir: "{self._folder}"
  pidfile: "{self._folder}/nsd.pid"
  xfrdfile: "{self._folder}/xfrd.state"
  zonelistfile: "{self._folder}/zone.list"
  rrl-ratelimit: 0
remote-control:
  control-enable: no
{zones}""",
            "-d",
            "-c",
        )
        stubs = "".join(
            f'stub-zone:\n  name: "{name}"\n  stub-addr: 127.0.0.1@{self._servers.ports[how]}\n'
            for name, how in self._broken.items()
        )
        both = f"interface: {self.address}@53" if os.geteuid() == 0 else ""
        for port, modules, more in (
            (self.resolver, "validator iterator", both),
            (self.plain_resolver, "iterator", ""),
        ):
            self._daemon(
                "unbound",
                f"""server:
  interface: 127.0.0.1@{port}
  {more}
  do-ip6: no
  num-threads: 1
  username: ""
  chroot: ""
  directory: "{self._folder}"
  pidfile: ""
  use-syslog: no
  do-daemonize: no
  module-config: "{modules}"
  trust-anchor-file: "{self._folder}/anchor"
  do-not-query-localhost: no
  qname-minimisation: no
  local-zone: "test." nodefault
  access-control: 127.0.0.0/8 allow
  val-log-level: 1
remote-control:
  control-enable: no
stub-zone:
  name: "."
  stub-addr: 127.0.0.1@{self.port}
{stubs}""",
                "-d",
                "-c",
                label=f"unbound-{port}",
            )
        until(lambda: self._answers(self.resolver, secure=True), 20, "answers of unbound")
        until(lambda: self._answers(self.plain_resolver, secure=False), 20, "answers of unbound")

    def _daemon(self, name: str, config: str, *words: str, label: str = "") -> None:
        label = label or name
        path = self._folder / f"{label}.conf"
        path.write_text(config)
        with (self._folder / f"{label}.log").open("wb") as log:
            process = subprocess.Popen(
                [program(name) or name, *words, str(path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

        def end() -> None:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

        self._stack.callback(end)

    def _answers(self, port: int, *, secure: bool) -> bool:
        query = dns.message.make_query(".", "SOA", want_dnssec=True)
        query.flags |= dns.flags.AD
        try:
            answer = dns.query.udp(query, "127.0.0.1", port=port, timeout=0.3)
        except (dns.exception.Timeout, OSError):
            return False
        return bool(answer.answer) and bool(answer.flags & dns.flags.AD) is secure

    def log(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("*.log")))

    def stop(self) -> None:
        self._stack.close()


class BrokenServers:
    """Name servers of broken zones: one never answers, the other always says SERVFAIL."""

    def __init__(self) -> None:
        self._sockets = {how: _bound() for how in ("silent", "servfail")}
        self.ports = {how: sock.getsockname()[1] for how, sock in self._sockets.items()}
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with _bound() as sock:
            sock.sendto(b"", ("127.0.0.1", self.ports["servfail"]))
        self._thread.join(5)
        for sock in self._sockets.values():
            sock.close()

    def _serve(self) -> None:
        sock = self._sockets["servfail"]
        while True:
            data, peer = sock.recvfrom(4096)
            if not data:
                return
            reply = bytearray(data)
            reply[2] |= 0x80  # QR
            reply[3] = (reply[3] & 0xF0) | 2  # SERVFAIL
            sock.sendto(bytes(reply), peer)


def _bound() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    return sock


def _dns_port() -> int:
    """Return a port that is free for both TCP and UDP (free_port() itself holds the UDP one)."""
    for port in random.sample(range(10_000, 20_000), 1000):
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            try:
                tcp.bind(("127.0.0.1", port))
                udp.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")
