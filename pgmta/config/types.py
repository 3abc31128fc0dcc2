"""Value types of the configuration files: durations, sizes, addresses of hosts."""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Strict,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)

from pgmta.errors import AddressError

FOLDER = "folder"
"""The key of the file's folder in the context of validators, for paths relative to the file."""

_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")
MAX_DURATION_S = 36525 * 86400.0
"""A hundred years: PostgreSQL can represent a time this far ahead or ago."""

_SIZE = re.compile(r"(\d{1,18}(?:\.\d+(?=\s*[KMGT]))?)\s*(?:([KMGT])(?:I?B)?|B)?", re.IGNORECASE)

_MAX_WORD_CHARACTERS = 100  # that are compared: a longer word is no slip of a known one
_ALIKE_LETTERS = 4  # words that begin with the same letters are more likely meant


class SectionError(ValueError):
    """Has the mistakes of a section that another model has read: the model, and its error."""

    def __init__(self, model: type[BaseModel], error: ValidationError) -> None:
        super().__init__(str(error))
        self.model = model
        self.error = error


def hint(word: str, known: Iterable[str]) -> str:
    """Return advice on an unknown word: the nearest known word, or all of them."""
    known, word = list(known), word[:_MAX_WORD_CHARACTERS]
    folded = {each.lower(): each for each in reversed(known)}
    close = difflib.get_close_matches(word.lower(), folded)
    # for example, `retries` is meant as `retry` rather than as `metrics`
    alike = [each for each in close if each[:_ALIKE_LETTERS] == word.lower()[:_ALIKE_LETTERS]]
    near = next(iter([*alike, *close]), "")
    return f"did you mean {folded[near]!r}?" if near else f"known: {', '.join(known)}"


class Section(BaseModel):
    """Hold a mapping of the file. Unknown keys are mistakes; values do not change later."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    needs_restart: ClassVar[bool] = False
    """Whether queued and `queued web` keep it as it is when their file is read again."""


def listed(value: Any) -> list[Any]:
    """Return a list as it is, and any other value as the only one of a list."""
    return value if isinstance(value, list) else [value]


def some_listed(value: Any) -> list[Any]:
    """Return the same as `listed`. Raises ValueError for an empty list."""
    if not (values := listed(value)):
        raise ValueError("the list is empty")
    return values


def refuse_twice(what: str, names: Sequence[str]) -> None:
    """Raise ValueError for a name that two of a list have; `what` they are, in the plural."""
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two {what} are called {name!r}")


def each_by(parse: Callable[[Any], object]) -> BeforeValidator:
    """Return the reader of one value or a list of values, each by `parse`."""
    return BeforeValidator(lambda value: [parse(each) for each in some_listed(value)])


def checked[**P, T](expected: str, parse: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the parsed address or domain. Raises ValueError, which begins with `expected`."""
    try:
        return parse(*args, **kwargs)
    except AddressError as error:
        raise ValueError(f"{expected}{error}") from None


def parse_duration(value: Any) -> float:
    """Return the seconds of `90`, `90s`, `1m30s`, `4h`, `5d`, at most MAX_DURATION_S.

    Raises ValueError for anything else.
    """
    if isinstance(value, bool):
        raise ValueError("expected a duration such as 30s, 5m, 4h or 5d")
    if isinstance(value, int | float):
        seconds = float(value) if abs(value) < 1e18 else float("inf")
    else:
        text = str(value).strip()
        parts = _DURATION.findall(text)
        if not parts or "".join(_DURATION.split(text)[0::3]).strip():
            raise ValueError(f"{text!r} is no duration; write for example 30s, 5m, 4h or 5d")
        seconds = sum(float(number) * _UNIT_S[unit] for number, unit in parts)
    if not 0 <= seconds < float("inf"):
        raise ValueError("a duration can't be negative or infinite")
    if seconds > MAX_DURATION_S:
        raise ValueError("a duration is at most 36525d")
    return seconds


def at_least(least: str) -> AfterValidator:
    """Return the validator of durations that are not shorter than this one."""
    bound = parse_duration(least)

    def check(seconds: float) -> float:
        if seconds < bound:
            raise ValueError(f"should be at least {least}")
        return seconds

    return AfterValidator(check)


@cache
def _bytes() -> TypeAdapter[ByteSize]:
    """Commands without a size don't wait for this."""
    return TypeAdapter(ByteSize)


def parse_size(value: Any) -> int:
    """Return the octets of `1000`, `64KB`, `1.5 MB`, `2GiB`; raises ValueError otherwise.

    The units are powers of 1024, because SMTP's usual limits are: 50MB is 52,428,800 octets.
    pydantic's ByteSize alone would read KB as 1000, and would ignore words after the unit.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        match = _SIZE.fullmatch(str(value).strip())
        if not match:
            raise ValueError(f"{value!r} is no size; write for example 1000, 64KB or 50MB")
        unit = f"{match[2]}iB" if match[2] else "B"
        size = _bytes().validate_python(f"{match[1]}{unit}")
    if size < 1:
        raise ValueError("a size is at least 1")
    return size


@dataclass(frozen=True, slots=True)
class HostPort:
    """Name where a next hop listens; an IPv6 address is written in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_HOST_PORT = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::(\d+))?")

_BEFORE_PORT = re.compile(r"(\[[^\]]*\]|[^:]*):[^:]*")
_BRACKETS = re.compile(r"\[([^\]:]+)\]")


def parse_host_port(value: Any, default_port: int = 25) -> HostPort:
    """Return `host`, `host:port` or `[IPv6]:port` as a HostPort; raises ValueError otherwise."""
    if isinstance(value, HostPort):
        return value
    text = value.strip() if isinstance(value, str) else ""
    match = _HOST_PORT.fullmatch(text)
    if not match or (match[1] and not is_address(match[1])):
        named = _BRACKETS.match(text)
        wanted = "a name without" if named and not is_address(named[1]) else "an IPv6 address in"
        raise ValueError(f"{value!r} is no host:port (write {wanted} brackets)")
    port = int(match[3]) if match[3] else default_port
    if not 1 <= port <= 65535:
        raise ValueError(f"port {port} is not between 1 and 65535")
    return HostPort(match[1] or match[2], port)


def without_port(name: str) -> str:
    """Return the host of `host:port` or `[IPv6]:port` as it is written there; other text stays."""
    match = _BEFORE_PORT.fullmatch(name)
    return match[1] if match else name


def parse_server(value: Any) -> HostPort:
    """Return the `address` or `address:port` of a name server; raises ValueError otherwise."""
    server = parse_host_port(value, 53)
    if not is_address(server.host):
        raise ValueError(f"{server.host!r} is no IP address; names can't be looked up yet")
    return server


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_network(value: object) -> Network:
    """Return an address or CIDR network; raises ValueError otherwise."""
    try:
        return ipaddress.ip_network(str(value))
    except ValueError as error:
        reason = f"expected an address or CIDR network: {error}"
        with suppress(ValueError):
            reason += f"; did you mean {ipaddress.ip_network(str(value), strict=False)}?"
        raise ValueError(reason) from None


def parse_listen_address(value: str) -> str:
    """Return an IP address to listen on; raises ValueError."""
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise ValueError(f"{value!r} is no IP address to listen on") from None


def is_address(text: str) -> bool:
    """Return whether a text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def beside_file(path: Path, info: ValidationInfo) -> Path:
    """Return a path that is relative to the folder of the file that names it."""
    folder = (info.context or {}).get(FOLDER)
    if folder is None or path.is_absolute():
        return path
    return Path(os.path.normpath(Path(folder).resolve() / path))


def _positive(seconds: float) -> float:
    if seconds <= 0:
        raise ValueError("must be longer than 0")
    return seconds


Duration = Annotated[float, BeforeValidator(parse_duration)]
Period = Annotated[float, BeforeValidator(lambda value: _positive(parse_duration(value)))]
Size = Annotated[int, BeforeValidator(parse_size)]
FilePath = Annotated[Path, AfterValidator(beside_file)]
"""A path relative to the file that names it."""
NetworkList = list[Annotated[Network, BeforeValidator(parse_network)]]
Whole = Annotated[int, Strict()]
"""A whole number that YAML reads as a number: neither "12" nor `on`."""
