"""A server to which hostile mail reaches out, and the mail."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

REACHES = ("script", "picture", "style", "form", "refresh", "frame", "import", "preconnect")
"""Paths that the HTML of `hostile` asks for, by the thing that asks."""

_PAGE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)


def hostile(trap: Trap) -> str:
    """Return HTML that reaches out in many ways, at once and without a click."""
    at, bare = trap.url, f"http://127.0.0.1:{trap.bare}/"
    return f"""<!doctype html>
<link rel="preconnect" href="{bare}"><link rel="dns-prefetch" href="{bare}">
<link rel="prefetch" href="{at}style"><link rel="stylesheet" href="{at}style">
<meta http-equiv="refresh" content="1;url={at}refresh">
<base href="{at}" target="_top">
<style>@import "{at}import"; body {{ background: url({at}picture) }}</style>
<p id="words">Hello</p>
<img src="{at}picture"><img src="picture"><picture><source srcset="{at}picture"></picture>
<video autoplay src="{at}picture"></video><object data="{at}frame"></object>
<iframe src="{at}frame"></iframe><iframe srcdoc="<img src={at}picture>"></iframe>
<iframe srcdoc="&lt;link rel=preconnect href={bare}&gt;"></iframe>
<form id="form" action="{at}form" target="reply"><input autofocus name="q" value="1">
<button>Send</button></form><iframe name="reply"></iframe>
<a href="{at}link">link</a> <a target="_top" href="{at}top">top</a>
<svg><image href="{at}picture"/></svg>
<script src="{at}script"></script>
<script>document.getElementById('form').submit();
document.getElementById('words').textContent = 'x';
if (top !== self) {{ top.document.title = 'x'; top.location = '{at}script' }}</script>
<img src="x:" onerror="fetch('{at}script')">
"""


class Trap:
    """Counts connections to its two ports; `paths` are those that were asked for."""

    def __init__(self, page: str = "") -> None:
        self._servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self.port, self.bare = (server.getsockname()[1] for server in self._servers)
        self.url = f"http://127.0.0.1:{self.port}/"
        self.page = page
        self.paths: list[str] = []
        self.referrers: list[bytes] = []
        self.touched = False
        """Whether a connection came to the port `bare`."""

    def forget(self) -> None:
        self.paths.clear()
        self.referrers.clear()
        self.touched = False

    def reached(self) -> set[str]:
        """Return which of REACHES got here."""
        found = {path.strip("/").partition("?")[0] for path in self.paths}
        return found & set(REACHES) | ({"preconnect"} if self.touched else set())

    def _serve(self, server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = server.accept()
                threading.Thread(target=self._answer, args=(server, client), daemon=True).start()

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with client, suppress(OSError):
            if server is self._servers[1]:
                self.touched = True
            client.settimeout(20)
            said = client.recv(65536)
            if not said:
                return
            path = said.split(b" ")[1].decode()
            self.paths.append(path)
            self.referrers += [line for line in said.split(b"\r\n") if line[:8] == b"Referer:"]
            body = self.page.encode() if path == "/page" else b""
            length = f"Content-Length: {len(body)}".encode()
            client.sendall(_PAGE.replace(b"Content-Length: 0", length) + body)

    @contextmanager
    def running(self) -> Iterator[Trap]:
        threads = [
            threading.Thread(target=self._serve, args=(each,), daemon=True)
            for each in self._servers
        ]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            for server in self._servers:
                server.shutdown(socket.SHUT_RDWR)
                server.close()
            for thread in threads:
                thread.join()
