"""A process of queued: the parts that its duties and workers share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pgmta.daemon_role import QUEUED, process_name
from pgmta.features import loaded
from pgmta.metrics.series import MoreFigures
from pgmta.model import Item
from pgmta.postgres.database_time import DatabaseTime
from pgmta.postgres.resources import Resources
from pgmta.service import Part
from pgmta.store.admin.upkeep import Upkeep
from pgmta.store.admin.vacuum import Space
from pgmta.store.admin.workers import Registry
from pgmta.store.changes.change import WorkerChanges
from pgmta.store.queue.claim import SESSION
from pgmta.store.queue.conditions import all_of
from pgmta.store.queue.costly import TRYING_SETTINGS, CostlyConditions
from pgmta.store.records.broken_tls import BrokenTlsHosts
from pgmta.store.records.dkim_keys import DkimKeys
from pgmta.store.records.sts_policies import StsPolicies
from pgmta.store.records.tls_reports import TlsReports
from pgmta.store.records.traces import Traces
from pgmta.store.schema import Schema
from queued.config import Delivery, QueuedConfig, Tls, Worker
from queued.delivery.destination_queue import DestinationQueue
from queued.delivery.smtp.smtp_transport import SmtpTransport
from queued.delivery.tls.tls_memory import TlsMemory
from queued.delivery.transport.gate import Gate
from queued.delivery.transports import Transports
from queued.process.delivery_figures import DeliveryFigures
from queued.process.orders import Orders
from queued.process.queue_figures import QueueFigures
from queued.process.task_look import TaskLook
from queued.process.vacuum import Reclaimer, RowVacuum
from queued.routing.routes import Routes
from queued.signing.keyring import Keyring
from queued.signing.signers import Signers


class SharedTlsMemory:
    """Policies, broken hosts and results, over one connection to PostgreSQL."""

    def __init__(self, resources: Resources, config: Tls) -> None:
        link = resources.link("tls")
        self._reports = TlsReports(link)
        self._broken = broken = BrokenTlsHosts(link, config.minimum)
        policies = StsPolicies(link)
        self.memory = TlsMemory(
            policies.find,
            policies.keep,
            broken.known,
            broken.failed,
            broken.worked,
            self._reports.count,
        )
        """The functions that deliveries use."""

    def configure(self, config: Tls) -> None:
        """Keep broken hosts as these settings say, and forget those of other ones."""
        self._broken.configure(config.minimum)

    async def write_results(self) -> None:
        """Write the results since the last time. Those that can't be written now are kept."""
        await self._reports.write_results()


class Destinations(NamedTuple):
    """Destinations of a delivery worker with mail or connections, and its present settings."""

    queues: list[DestinationQueue]
    routes: Routes
    delivery: Delivery


@dataclass(frozen=True, slots=True)
class WorkerMail:
    """The mail of a delivery worker: rows that it has leased, by their ids, and where they go."""

    worker: str
    leased: Mapping[int, Item]
    find_destinations: Callable[[], Destinations]


class QueuedProcess:
    """The parts of one process that duties and workers use; `config` is the present one."""

    due_in: Callable[[float], float]
    """Returns the seconds until a duty of all processes is due in this one, given its interval.

    Set once the workers are there.
    """

    def __init__(self, config: QueuedConfig, uri: str) -> None:
        self.config = config
        self.host = config.environment.hostname
        self.name = process_name(self.host)
        self.resources = Resources(uri, QUEUED.name)
        self.schema = Schema()
        self.clock = DatabaseTime()
        self.link = self.resources.link("upkeep")
        self.upkeep = Upkeep(self.link)
        # this question waits for no lock
        self.tasks_due = TaskLook(Upkeep(self.resources.link("tasks")))
        self.changes = WorkerChanges(self.link)
        self.costly = CostlyConditions(self.resources.link("conditions", SESSION | TRYING_SETTINGS))
        """Sets conditions aside that take too long."""
        self.registry = Registry(self.link, self.name, self.costly.link)
        self.traces = Traces(self.link)
        self.reclaimer = Reclaimer(Space(self.resources.link("vacuum")))
        self.tls = SharedTlsMemory(self.resources, config.delivery.tls)
        keys = DkimKeys(self.resources.link("keys", {"lock_timeout": "2s"}))
        self.orders = Orders(self.resources.link("orders"), self.schema)
        """What operators order."""
        self.gate = Gate()
        """Knows which mail may not go now."""
        self.mail: list[WorkerMail] = []
        """The mail of each delivery worker."""
        self.transports = Transports(self.host, config.delivery, self.tls.memory, self.gate)
        self.signers = Signers(Keyring(keys), config.signing)
        self.figures = DeliveryFigures()
        """Counts of claims, attempts and commits."""
        self.row_vacuum = RowVacuum(Space(self.resources.link("vacuum rows")), self.figures)
        self.queue_figures = QueueFigures()
        """The last count of the queue, if the process has a page for it."""
        self.more_figures: list[MoreFigures] = []
        """Figures of features."""
        self.reported = asyncio.Event()
        """Set when this process has put rows into REPORT."""
        for add_parts in loaded("process_parts"):
            add_parts(self)

    @property
    def smtp(self) -> SmtpTransport:
        """The transport of mail by SMTP."""
        found = self.transports.find_transport("smtp")
        assert isinstance(found, SmtpTransport)  # noqa: S101 - for the type checker
        return found

    def leased(self) -> Iterator[Item]:
        """Yield the rows that the workers have leased."""
        for mail in self.mail:
            yield from mail.leased.values()

    def parts(self) -> dict[str, Part]:
        """Return the work that runs until it is cancelled."""
        return {
            "links": lambda: self.resources.close_unused_links(lambda: any(self.leased())),
            "space": self.reclaimer.run,
            "row vacuum": self.row_vacuum.run,
            "keys": self.signers.keyring.run,
            "orders": self.orders.run,
        }

    def configure(self, config: QueuedConfig) -> None:
        """Use another configuration from now on."""
        self.config = config
        self.tls.configure(config.delivery.tls)
        self.transports.configure(config.delivery)
        self.signers.configure(config.signing)

    def where(self, worker: Worker) -> str | None:
        """Return the whole condition of a worker."""
        return all_of(self.config.environment.database.where, worker.where)

    async def close(self) -> None:
        """Write the last results about TLS, and end threads and connections."""
        await self.tls.write_results()
        self.signers.close()
        await self.resources.close()
