"""A next hop of other mail servers that keeps everything."""

from __future__ import annotations

from typing import Self

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import Envelope

from tests.support.waiting import free_port


class Collector:
    """Keeps what it gets, also from clients that send QUIT with the final dot."""

    def __init__(self) -> None:
        self.arrived: dict[str, list[bytes]] = {}
        self.port = free_port()
        self._controller = Controller(self, hostname="127.0.0.1", port=self.port)

    async def handle_DATA(self, server: object, session: object, envelope: Envelope) -> str:
        """Keep a message."""
        content = envelope.original_content
        assert content is not None
        for recipient in envelope.rcpt_tos:
            self.arrived.setdefault(recipient, []).append(content)
        return "250 2.0.0 Ok"

    def __enter__(self) -> Self:
        self._controller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._controller.stop()
