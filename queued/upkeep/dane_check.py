"""Whether the name servers validate: the log says it before mail is sent without DANE."""

from __future__ import annotations

from functools import partial

from queued.delivery.tls.tls_policy import TlsMode
from queued.process.queued_process import QueuedProcess
from queued.routing.routes import Routes
from queued.upkeep.duty import Duty


async def _check_dane(process: QueuedProcess) -> None:
    """Ask the name servers, if TLSA records of MX hosts may count. Only a change is logged.

    Deliveries ask only for a domain that is signed. Without validation none seems to be.
    """
    config = process.config
    routes = Routes(config.routes, config.routing)
    if routes.may_use_dane(TlsMode(config.delivery.tls.mode)):
        await process.smtp.questions.validating()


DUTY = Duty("DANE", 60.0, lambda process: partial(_check_dane, process))
