"""Value types of the configuration files: durations, sizes, addresses of hosts."""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Strict

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")
LONGEST = 36525 * 86400.0
"""Seconds of the longest duration: a time that much ahead or ago is one that PostgreSQL knows."""

_SIZES = {"": 1, "B": 1, "K": 1 << 10, "KB": 1 << 10, "M": 1 << 20, "MB": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"(\d+)\s*([A-Za-z]*)")


def hint(word: str, known: Iterable[str]) -> str:
    """What to say to a word that is none of those known: the nearest one, or all."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


class Section(BaseModel):
    """A mapping of the file: unknown keys are mistakes, values do not change later."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def parse_duration(value: Any) -> float:
    """Seconds in `90`, `90s`, `1m30s`, `4h`, `5d`, up to LONGEST; raises ValueError otherwise."""
    if isinstance(value, bool):
        raise ValueError("expected a duration such as 30s, 5m, 4h or 5d")
    if isinstance(value, int | float):
        seconds = float(value) if abs(value) < 1e18 else float("inf")
    else:
        text = str(value).strip()
        parts = _DURATION.findall(text)
        if not parts or "".join(_DURATION.split(text)[0::3]).strip():
            raise ValueError(f"{text!r} is no duration; write for example 30s, 5m, 4h or 5d")
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not 0 <= seconds < float("inf"):
        raise ValueError("a duration can't be negative or infinite")
    if seconds > LONGEST:
        raise ValueError("a duration is at most 36525d")
    return seconds


def parse_size(value: Any) -> int:
    """Octets in `1000`, `64KB`, `50MB`; raises ValueError otherwise."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        match = _SIZE.fullmatch(str(value).strip())
        if not match or match[2].upper() not in _SIZES:
            raise ValueError(f"{value!r} is no size; write for example 1000, 64KB or 50MB")
        size = int(match[1]) * _SIZES[match[2].upper()]
    if size < 1:
        raise ValueError("a size is at least 1")
    return size


@dataclass(frozen=True, slots=True)
class HostPort:
    """Where a next hop listens; an IPv6 address stands in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_HOST_PORT = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::(\d+))?")


def parse_host_port(value: Any, default_port: int = 25) -> HostPort:
    """Read `host`, `host:port` or `[IPv6]:port`; raises ValueError otherwise."""
    if isinstance(value, HostPort):
        return value
    match = _HOST_PORT.fullmatch(value.strip()) if isinstance(value, str) else None
    if not match or (match[1] and not _is_ip(match[1])):
        raise ValueError(f"{value!r} is no host:port (an IPv6 address stands in brackets)")
    port = int(match[3]) if match[3] else default_port
    if not 1 <= port <= 65535:
        raise ValueError(f"port {port} is not between 1 and 65535")
    return HostPort(match[1] or match[2], port)


def parse_server(value: Any) -> HostPort:
    """Read the `address` or `address:port` of a name server; raises ValueError otherwise."""
    server = parse_host_port(value, 53)
    if not _is_ip(server.host):
        raise ValueError(f"{server.host!r} is no IP address; names can't be looked up yet")
    return server


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _positive(seconds: float) -> float:
    if seconds <= 0:
        raise ValueError("must be longer than 0")
    return seconds


Duration = Annotated[float, BeforeValidator(parse_duration)]
Period = Annotated[float, BeforeValidator(lambda value: _positive(parse_duration(value)))]
Size = Annotated[int, BeforeValidator(parse_size)]
Whole = Annotated[int, Strict()]
"""A number that is written as one: neither "12" nor `on`."""
