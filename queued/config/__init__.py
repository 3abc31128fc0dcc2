"""queued.yaml: workers, routes, delivery and retries."""

from queued.config.delivery import Delivery
from queued.config.dns import Dns
from queued.config.file import QueuedConfig
from queued.config.process import Process
from queued.config.retention import Retention
from queued.config.retry import Retry
from queued.config.routes import Pattern, Target
from queued.config.timeouts import Timeouts
from queued.config.urgent import Urgent
from queued.config.worker import STANDING, Worker, WorkerAction

__all__ = [
    "STANDING",
    "Delivery",
    "Dns",
    "Pattern",
    "Process",
    "QueuedConfig",
    "Retention",
    "Retry",
    "Target",
    "Timeouts",
    "Urgent",
    "Worker",
    "WorkerAction",
]
