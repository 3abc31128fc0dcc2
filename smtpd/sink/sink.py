"""Composition root of the sink: SMTP for mail, HTTP for its reader, in one process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from aiosmtpd.smtp import SMTP

from pgmta.errors import PgmtaError
from pgmta.http.server import HttpServer, bind
from pgmta.port_user import bind_problem
from pgmta.service import Signals
from smtpd.sink.dissector import Dissector
from smtpd.sink.keep_handler import MAX_MESSAGE_OCTETS, KeepHandler, SinkServer
from smtpd.sink.kept_mails import KeptMails
from smtpd.sink.mail_site import MailSite

_LOOPBACK = "127.0.0.1"
_END_TIMEOUT_S = 1.0  # for answers that are due when the process ends


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
    os.umask(0o077)  # for the files that mailbox.Maildir makes
    loop = asyncio.get_running_loop()
    handler = KeepHandler(folder)

    def connection() -> SMTP:
        return SinkServer(
            handler, hostname="sink.localhost", ident="ESMTP pgmta development sink",
            data_size_limit=MAX_MESSAGE_OCTETS, enable_SMTPUTF8=True, loop=loop,
        )  # fmt: skip

    try:
        mail = await loop.create_server(connection, address, port)
    except OSError as error:
        raise _problem(error, address, port) from None
    server = None
    if page:
        site = MailSite(KeptMails(folder), Dissector(), page).served
        server = HttpServer("sink")
        await server.serve(site)
        try:
            await server.listen(bind(_LOOPBACK, page))
        except OSError as error:
            raise _problem(error, _LOOPBACK, page) from None
    await signals.stop.wait()
    mail.close()
    if server:
        await server.stop(_END_TIMEOUT_S)


def _problem(error: OSError, address: str, port: int) -> PgmtaError:
    return PgmtaError(f"can't listen on {address} port {port}: {bind_problem(error, port)}")
