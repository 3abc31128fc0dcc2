"""Composition root of the sink: SMTP for mail, HTTP for its reader, in one process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from aiosmtpd.smtp import SMTP

from pgmta.errors import PgmtaError
from pgmta.http.page_server import PageServer
from pgmta.port_user import bind_problem
from pgmta.service import Signals
from smtpd.sink.dissector import Dissector
from smtpd.sink.keep_handler import LIMIT, KeepHandler, SinkServer
from smtpd.sink.kept_mails import KeptMails
from smtpd.sink.mail_site import MailSite

_LOOPBACK = "127.0.0.1"
_END = 1.0  # seconds for answers that are due when the process ends
_PAGE_S = 60.0  # for a request and its answer, which may be a large attachment


async def serve(
    address: str, port: int, folder: Path, page: int | None = None, *, attached: bool = False
) -> None:
    """Catch mail until SIGTERM or SIGINT, or until the parent of an `attached` process ends.

    `page` is the port of the page, which listens on the loopback only. Raises PgmtaError if the
    sink can't listen.
    """
    signals = Signals()
    if attached:
        signals.attach()
    os.umask(0o077)  # of the files that mailbox.Maildir makes
    loop = asyncio.get_running_loop()
    handler = KeepHandler(folder)

    def connection() -> SMTP:
        return SinkServer(
            handler, hostname="sink.localhost", ident="ESMTP pgmta development sink",
            data_size_limit=LIMIT, enable_SMTPUTF8=True, loop=loop,
        )  # fmt: skip

    servers = [await _listen(connection, address, port)]
    pages = None
    if page:
        site = MailSite(KeptMails(folder), Dissector(), page)
        pages = PageServer(site.handle, "sink", _PAGE_S)
        servers.append(await _listen(pages, _LOOPBACK, page))
    await signals.stop.wait()
    for server in servers:
        server.close()
    if pages:
        await pages.shutdown(_END)


async def _listen(
    protocol: Callable[[], asyncio.BaseProtocol], address: str, port: int
) -> asyncio.Server:
    try:
        return await asyncio.get_running_loop().create_server(protocol, address, port)
    except OSError as error:
        reason = bind_problem(error, port)
        raise PgmtaError(f"can't listen on {address} port {port}: {reason}") from None
