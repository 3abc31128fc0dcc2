"""The whole of queued.yaml: its sections. Twin of etc/queued.yaml."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from pgmta.config.environment import Environment, Log
from pgmta.config.types import Section
from queued.config.delivery import Delivery
from queued.config.process import Process
from queued.config.retention import Retention
from queued.config.retry import Retry
from queued.config.routes import Pattern, Target
from queued.config.urgent import Urgent
from queued.config.worker import Worker


class QueuedConfig(Section):
    """The whole of queued.yaml."""

    environment: Environment = Field(default_factory=Environment)
    process: Process = Field(default=Process())
    worker: Process | None = Field(
        default=None, exclude=True, description="the name of `process` in earlier versions"
    )
    workers: list[Worker] = Field(
        default=[Worker()], min_length=1, description="what this configuration runs"
    )
    urgent: Urgent = Field(default=Urgent())
    delivery: Delivery = Field(default=Delivery())
    routes: dict[Pattern, Target] = Field(
        default={"*": "mx"},
        description="recipient domain, *.domain or * → host:port (port 25 if absent) or mx",
    )
    retry: Retry = Field(default=Retry())
    retention: Retention = Field(default=Retention())
    log: Log = Field(default=Log())

    @field_validator("workers")
    @classmethod
    def _distinct(cls, workers: list[Worker]) -> list[Worker]:
        names = [worker.name for worker in workers]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two workers are called {name!r}")
        return workers

    @model_validator(mode="after")
    def _take_old_name(self) -> QueuedConfig:
        if self.worker is not None:
            if "process" in self.model_fields_set:
                raise ValueError("worker is the old name of process: write only one of them")
            object.__setattr__(self, "process", self.worker)  # the model is frozen
        return self

    @property
    def notes(self) -> list[str]:
        """Sentences about keys by an old name; they are still read."""
        notes = ["worker has a new name: process"] if self.worker is not None else []
        return notes + [
            f"workers[{number}].expire (worker {worker.name}) has a new name: release_after"
            for number, worker in enumerate(self.workers)
            if worker._old_keys
        ]
