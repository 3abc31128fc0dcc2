"""The application to which a recovery returns: a server of one page."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class Application(HTTPServer):
    """Answers each path with a page, and remembers the paths."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Page)
        self.asked: list[str] = []
        self.referrers: list[str | None] = []

    @property
    def url(self) -> str:
        """The page that takes a new password."""
        return f"http://localhost:{self.server_port}/password?shop=1"


class _Page(BaseHTTPRequestHandler):
    server: Application

    def do_GET(self) -> None:
        """Show the page."""
        self.server.asked.append(self.path)
        self.server.referrers.append(self.headers["Referer"])
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>New password</title>")

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def application() -> Iterator[Application]:
    with Application() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
