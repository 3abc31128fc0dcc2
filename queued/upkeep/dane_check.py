"""Whether the name servers validate: the log says it before mail is sent without DANE."""

from __future__ import annotations

from collections.abc import Callable

from queued.config import QueuedConfig
from queued.delivery.connect.connector import Connector
from queued.delivery.transport.tls_policy import TlsMode
from queued.routing.routes import Routes

EVERY = 60.0  # seconds


async def check_dane(connector: Connector, config: Callable[[], QueuedConfig]) -> None:
    """Ask the name servers, if TLSA records of MX hosts may count. Only a change is logged.

    Deliveries ask only for a domain that is signed. Without validation none seems to be.
    """
    now = config()
    routes = Routes(now.routes, now.routing)
    if routes.may_use_dane(TlsMode(now.delivery.tls.mode)):
        await connector.questions.validating()
