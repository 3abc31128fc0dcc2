"""Hosts as network namespaces, joined by bridges: each can be cut off or lost."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Self

from bench.helper import ROOT
from bench.namespaces import ip

INNER = {"db1": 11, "db2": 12, "db3": 13, "mx1": 21, "mx2": 22, "client": 31}
"""The hosts of the inner network, and the last octets of their addresses."""
OUTER = ("mx1", "mx2", "client")
"""The hosts of the outer network, where mail comes from and goes to; no fault is there."""
_INNER_NETWORK, _OUTER_NETWORK = "192.0.2", "198.51.100"  # of packaging/cluster; TEST-NET-2
_SWITCH = "switch"
_BRIDGES = ("near", "far", "outer")
_END_TIMEOUT_S = 10.0


def inner(host: str) -> str:
    """Return the address of a host in the inner network."""
    return f"{_INNER_NETWORK}.{INNER[host]}"


def outer(host: str) -> str:
    """Return the address of a host in the outer network."""
    return f"{_OUTER_NETWORK}.{INNER[host]}"


def kill_all(namespace: str) -> None:
    """Kill every process in a namespace, and wait until none is left. Raises OSError."""
    end = time.monotonic() + _END_TIMEOUT_S
    while pids := ip("netns", "pids", namespace).split():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if time.monotonic() > end:
            raise OSError(f"processes {', '.join(pids)} in {namespace} do not end")
        time.sleep(0.02)


class Hosts:
    """Makes the hosts in `folder`. A guard process removes all of them, also if this one is killed.

    Raises OSError if they can't be made.
    """

    def __init__(self, folder: Path) -> None:
        run = secrets.token_hex(3)
        self.folder = folder
        self._spaces = {name: f"pgmta-{run}-{name}" for name in (*INNER, _SWITCH)}
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Make them."""
        what = json.dumps({"namespaces": list(self._spaces.values()), "folder": str(self.folder)})
        self._guard = subprocess.Popen(
            [sys.executable, "-m", "bench.loss.guard", what],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Have the guard remove them, and wait until they are gone."""
        assert self._guard
        assert self._guard.stdin
        self._guard.stdin.close()
        self._guard.wait(60)

    def _make(self) -> None:
        for space in self._spaces.values():
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
        switch = self._spaces[_SWITCH]
        for bridge in _BRIDGES:
            ip("-n", switch, "link", "add", bridge, "type", "bridge")
            ip("-n", switch, "link", "set", bridge, "up")
        for host in INNER:
            self._join(host, "inner", inner(host), "near")
        for host in OUTER:
            self._join(host, "outer", outer(host), "outer")

    def _join(self, host: str, link: str, address: str, bridge: str) -> None:
        space, switch, port = self._spaces[host], self._spaces[_SWITCH], f"{host}.{link[0]}"
        ip("-n", space, "link", "add", link, "type", "veth", "peer", "name", port, "netns", switch)
        ip("-n", space, "address", "add", f"{address}/24", "dev", link)
        ip("-n", space, "link", "set", link, "up")
        ip("-n", switch, "link", "set", port, "master", bridge, "up")

    def words(self, host: str) -> list[str]:
        """Return the words before a command that run it on a host."""
        return ["ip", "netns", "exec", self._spaces[host]]

    def get(self, host: str, port: int, path: str) -> int:
        """Return the status of an answer by HTTP on a host's own loopback address; 0: none."""
        found = [0]

        def ask() -> None:
            with open(f"/run/netns/{self._spaces[host]}") as space:
                os.setns(space.fileno(), os.CLONE_NEWNET)  # of this thread alone
            connection = HTTPConnection("127.0.0.1", port, timeout=3)
            with contextlib.closing(connection), contextlib.suppress(OSError, HTTPException):
                connection.request("GET", path)
                found[0] = connection.getresponse().status

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(5)
        return found[0]

    def lose(self, host: str) -> None:
        """Cut a host off, and kill all that it runs. Raises OSError."""
        ip("-n", self._spaces[_SWITCH], "link", "set", f"{host}.i", "down")
        kill_all(self._spaces[host])

    def part(self, hosts: Iterable[str]) -> None:
        """Let these hosts reach each other alone in the inner network."""
        for host in hosts:
            ip("-n", self._spaces[_SWITCH], "link", "set", f"{host}.i", "master", "far")

    def heal(self) -> None:
        """Let all hosts reach each other."""
        for host in INNER:
            ip("-n", self._spaces[_SWITCH], "link", "set", f"{host}.i", "master", "near", "up")
