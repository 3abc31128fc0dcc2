"""queued.yaml: workers, routes, delivery and retries. Twin of etc/queued.yaml."""

from __future__ import annotations

import math
import re
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    Strict,
    field_validator,
    model_validator,
)

from pgmta.address import normalise_domain
from pgmta.config.environment import Environment, Log
from pgmta.config.types import (
    Duration,
    HostPort,
    Period,
    Section,
    Size,
    Whole,
    parse_host_port,
    parse_server,
)
from pgmta.errors import AddressError

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Process(Section):
    """The times that hold for every worker of the process."""

    lease: Period = Field(
        default=60.0, ge=3, description="other workers take over a dead worker's rows after this"
    )
    poll: Period = Field(
        default=1.0,
        description="how often to poll for due rows; of several workers that share rows only the "
        "one with the turn does, and the others poll five times less often",
    )
    watch: Period | None = Field(
        default=0.04,
        description="how often to look for mail of SQL programs, which send no notification; up "
        "to six times less often after a quiet time; null: it waits for the poll",
    )
    drain: Duration = Field(
        default=30.0, description="at SIGTERM, deliveries under way have this long to end"
    )


class WorkerAction(StrEnum):
    """The action of a worker on the rows that its condition matches."""

    DELIVER = "deliver"
    HOLD = "hold"
    QUARANTINE = "quarantine"
    DELETE = "delete"
    RELEASE = "release"
    RETRY = "retry"


STANDING = (WorkerAction.HOLD, WorkerAction.QUARANTINE)
"""Actions whose condition is a standing rule: a row that matches is never claimed."""


class Worker(Section):
    """One worker: an action, and the condition that chooses its rows."""

    name: str = Field(default="deliver", description="unique name, in leases, logs and audit")
    action: WorkerAction = Field(
        default=WorkerAction.DELIVER,
        description="deliver, hold, quarantine, delete, release or retry",
    )
    where: str | None = Field(
        default=None,
        description="SQL condition on columns of queue, checked by PostgreSQL at the start; "
        "absent: every row",
    )
    concurrency: Whole = Field(
        default=500, ge=1, le=10_000, description="deliver: rows leased at a time"
    )
    batch: Whole = Field(
        default=200, ge=1, le=10_000, description="at most this number of rows per statement"
    )
    priority: Whole = Field(
        default=9, ge=0, le=9, description="deliver: only rows of this priority or a lower number"
    )
    every: Period = Field(default=5.0, description="other actions: how often to look")
    older: Period | None = Field(
        default=None, description="other actions: only rows accepted longer ago than this"
    )
    reason: str | None = Field(default=None, description="hold, quarantine: why; default: the name")
    quarantine: str | None = Field(
        default=None, description="quarantine: the id that goes to metadata._quarantineid"
    )
    release_after: Period | None = Field(
        default=None, description="hold, quarantine: release after this time; absent: never"
    )
    _old_keys: tuple[str, ...] = ()

    @model_validator(mode="wrap")
    @classmethod
    def _renamed(cls, data: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        """Read `expire`, the name of `release_after` in earlier versions."""
        if not isinstance(data, dict) or "expire" not in data:
            return read(data)
        if "release_after" in data:
            raise ValueError("expire is the old name of release_after: write only one of them")
        worker = read({"release_after" if k == "expire" else k: data[k] for k in data})
        worker._old_keys = ("expire",)
        return worker

    @model_validator(mode="after")
    def _consistent(self) -> Worker:
        if not _NAME.fullmatch(self.name):
            raise ValueError("name: only letters, digits, '_', '.' and '-', at most 64")
        if self.action is WorkerAction.QUARANTINE and not self.quarantine:
            raise ValueError("action quarantine needs the key quarantine")
        if self.action is not WorkerAction.QUARANTINE and self.quarantine:
            raise ValueError("the key quarantine belongs to the action quarantine")
        if self.action not in STANDING and (self.reason or self.release_after):
            raise ValueError("reason and release_after belong to the actions hold and quarantine")
        if self.action is WorkerAction.DELIVER and self.older:
            raise ValueError("older does not belong to the action deliver")
        if self.action is not WorkerAction.DELIVER and not (self.where or self.older):
            raise ValueError(f"action {self.action} needs a where: it would take every row")
        return self


class Urgent(Section):
    """Slots and connections that are reserved for mail which must not wait behind other mail."""

    priority: Annotated[int, Strict(), Field(ge=0, le=3)] | None = Field(
        default=1,
        description="mail of this priority (0 to 3) or a lower number is urgent; null: none",
    )
    share: Annotated[float, Strict()] = Field(
        default=0.1,
        ge=0,
        le=0.9,
        description="reserved for it: slots beside workers[].concurrency, as a share of these, "
        "rounded up; and connections of delivery.connections, rounded down",
    )
    bound: Whole = Field(
        default=5, ge=1, le=10_000, description="reserved slots that rows of one next hop may use"
    )

    def slots(self, concurrency: int) -> int:
        """Return the reserved slots of a worker with that concurrency."""
        return 0 if self.priority is None else math.ceil(self.share * concurrency)

    def connections(self, most: int) -> int:
        """Return how many of `most` connections other mail leaves free."""
        return 0 if self.priority is None else int(self.share * most)


class Retention(Section):
    """How long the log of attempts, and bodies without a row, are kept."""

    attempts: Period = Field(
        default=90 * 86400.0,
        ge=86400,
        description="day partitions of attempts are dropped at this age",
    )
    orphans: Period = Field(
        default=86400.0, ge=600, description="bodies without a row are deleted at this age"
    )
    keys: Period = Field(default=86400.0, ge=60, description="keys of submissions by SQL expire")


class Timeouts(Section):
    """How long to wait for the next hop (RFC 5321, section 4.5.3.2)."""

    connect: Period = Field(default=30.0, description="for a connection, each address")
    greeting: Period = Field(default=300.0, description="for 220")
    command: Period = Field(default=300.0, description="for the replies to EHLO, MAIL, RCPT")
    data: Period = Field(default=120.0, description="for 354")
    block: Period = Field(default=180.0, description="for the next part of the content to go out")
    final: Period = Field(default=600.0, description="for the reply to the final dot")


class Dns(Section):
    """Which name servers are asked for MX and addresses."""

    servers: list[Annotated[HostPort, BeforeValidator(parse_server)]] = Field(
        default=[], description="address or address:port of name servers; none: the system's"
    )
    timeout: Period = Field(default=10.0, description="for one query, all servers together")


class Delivery(Section):
    """How mail is sent to next hops."""

    connections: Whole = Field(default=20, ge=1, le=1000, description="at most, to one next hop")
    transactions: Whole = Field(default=1000, ge=1, description="at most, on one connection")
    idle: Duration = Field(default=5.0, description="keep an unused connection this long")
    recipients: Whole = Field(
        default=100, ge=1, le=10_000, description="at most, in one transaction"
    )
    inline: Size = Field(
        default=1 << 17, description="content up to this size comes with the claim of its row"
    )
    bare_newlines: Literal["guard", "reject"] = Field(
        default="guard",
        description="bare CR or LF in content, which may come by SQL: guard sends them but holds "
        "what a next hop could take for the end of data; reject holds them all",
    )
    ipv6: bool = Field(default=True, description="use AAAA addresses of next hops")
    timeouts: Timeouts = Field(default=Timeouts())
    dns: Dns = Field(default=Dns())


class Retry(Section):
    """When to try again, and when to stop trying."""

    intervals: list[Period] = Field(
        default=[60.0, 300.0, 900.0, 3600.0, 10800.0],
        min_length=1,
        description="wait after the 1st, 2nd, … failed attempt; the last one repeats",
    )
    jitter: Annotated[float, Strict()] = Field(
        default=0.2, ge=0, lt=1, description="shorten each wait by up to this share, at random"
    )
    expire: Period = Field(
        default=432000.0, description="hold mail that is still undelivered at this age"
    )


def _parse_target(value: Any) -> HostPort | Literal["mx"]:
    return "mx" if value == "mx" else parse_host_port(value)


def _parse_pattern(pattern: str) -> str:
    bare = pattern.removeprefix("*.") if pattern != "*" else "example.com"
    try:
        normal = normalise_domain(bare)
    except AddressError as error:
        raise ValueError(f"expected a domain, *.domain or *: {error}") from None
    return pattern if pattern == "*" else pattern[: len(pattern) - len(bare)] + normal


Target = Annotated[HostPort | Literal["mx"], BeforeValidator(_parse_target)]
Pattern = Annotated[str, AfterValidator(_parse_pattern)]


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
