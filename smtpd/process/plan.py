"""The plan of the master: the part of smtpd.yaml that it needs, as JSON.

The modules that read the file take 20 MB. So a process that ends reads it for the master.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgmta.errors import ConfigError

if TYPE_CHECKING:
    from smtpd.config import Listener, SmtpdConfig

_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - not bound here


@dataclass(frozen=True, slots=True)
class ListeningPlace:
    """Where to listen: TCP, or a Unix socket."""

    address: str
    port: int
    socket: str | None


@dataclass(frozen=True, slots=True)
class LogChoice:
    """Level and format of the log."""

    level: str
    format: str


@dataclass(frozen=True, slots=True)
class MaildropDirectory:
    """The directory of mail that waits; `server` takes it, '' if no listener does."""

    directory: str | None
    named: bool
    server: str


@dataclass(frozen=True, slots=True)
class MasterPlan:
    """Says what the master does; `path` is the file that was read."""

    path: str
    listen: list[ListeningPlace]
    processes: int
    user: str | None
    metrics: str
    maildrop: MaildropDirectory
    log: LogChoice
    warnings: list[str]
    attached: bool = False

    @property
    def lasting(self) -> dict[str, object]:
        """The sections that last as long as the master, by name."""
        return {"listen": self.listen, "processes": self.processes, "user": self.user,
                "metrics": self.metrics}  # fmt: skip


def make_plan(path: Path, config: SmtpdConfig, warnings: list[str], **more: Any) -> MasterPlan:
    """Return the plan of a configuration."""
    drop = config.maildrop
    return MasterPlan(
        str(path),
        [
            ListeningPlace(at.address, at.port, str(at.socket) if at.socket else None)
            for at in config.listen
        ],
        config.processes,
        config.user,
        str(config.metrics.listen or ""),
        MaildropDirectory(
            str(drop.directory) if drop.directory else None,
            "directory" in drop.model_fields_set,
            next(map(_place, filter(_suits, config.listen)), ""),
        ),
        LogChoice(config.log.level, config.log.format),
        warnings,
        **more,
    )


def write_plan(descriptor: int, plan: MasterPlan | ConfigError) -> None:
    """Write a plan, or the mistakes of the file, and close the descriptor."""
    said = {"problems": plan.problems} if isinstance(plan, ConfigError) else asdict(plan)
    with os.fdopen(descriptor, "w") as pipe:
        json.dump(said, pipe)


def parse_plan(text: bytes) -> MasterPlan:
    """Return a plan that was written. Raises ConfigError with the mistakes of the file.

    Raises ValueError if the process ended before it had written all of it.
    """
    said = json.loads(text)
    if "problems" in said:
        raise ConfigError(said["problems"])
    nested = {
        "listen": [_make(ListeningPlace, each) for each in said["listen"]],
        "maildrop": _make(MaildropDirectory, said["maildrop"]),
        "log": _make(LogChoice, said["log"]),
    }
    return _make(MasterPlan, said | nested)


def _make[T](kind: type[T], said: dict[str, Any]) -> T:
    """Return the parts that we know: a later version may have written more."""
    known = {name: said[name] for name in kind.__annotations__ if name in said}
    return kind(**known)


def _suits(listener: Listener) -> bool:
    """Return whether the listener takes mail of this host without TLS and AUTH."""
    free = listener.tls in (None, "none", "offered") and listener.auth in (None, "none", "offered")
    return free and listener.role != "submission" and not listener.proxy


def _place(listener: Listener) -> str:
    if listener.socket:
        return str(listener.socket)
    address = _ANY_ADDRESS.get(listener.address, listener.address)
    return f"[{address}]:{listener.port}" if ":" in address else f"{address}:{listener.port}"
