"""Structured logs on stderr: text for people, JSON for machines."""

from __future__ import annotations

import importlib
import json
import logging
import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TextIO, cast

from pgmta.console.journal import marked
from pgmta.mail.text import one_line, printable, printable_lines

if TYPE_CHECKING:
    from types import ModuleType

    from structlog.typing import EventDict, FilteringBoundLogger, Processor

_PIPE_BUF_OCTETS = 4096  # a pipe takes so many at once, unmixed with those of others (pipe(7))
_NEEDS_QUOTES = re.compile(r"[ \t='\"]")  # characters of a text that is quoted


class LogFormat(Protocol):
    """Level and format of a log, as the section `log` of a file has them."""

    @property
    def level(self) -> str:
        """The lowest level: debug, info, warning or error."""

    @property
    def format(self) -> str:
        """Text, or json."""


def configure(log: LogFormat, **bound: Any) -> None:
    """Set up structlog for the whole process; `bound` goes with every line.

    Warnings of libraries come in the same format. Below warning the libraries stay silent,
    because aiosmtpd logs every command at info and debug, and with it every AUTH.
    """
    structlog = _structlog()
    _Logger.off_stdout = False
    level = getattr(logging, log.level.upper())
    first: list[Any] = []
    renderer: Processor = structlog.processors.JSONRenderer()  # ASCII, escapes
    if log.format == "text":
        first.append(_printable_values)
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=24)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *first,
            _Marked(renderer),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # one write per line, because other processes write to the same stream
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, _Tolerant(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**bound)
    logging.basicConfig(level=logging.WARNING, handlers=[_LibraryLines()], force=True)
    _quieten_libraries()


def _quieten_libraries() -> None:
    for library in ("mail.log", "psycopg"):  # pgmta names these causes itself
        logging.getLogger(library).setLevel(logging.ERROR)


def _structlog() -> Any:
    """Return structlog. Its first import leaves rich out, which takes 5 MB and 0.1 s.

    structlog would use it for coloured tracebacks, and ours are plain text.
    """
    known = cast("dict[str, ModuleType | None]", sys.modules)
    if "structlog" in known or "rich" in known:
        return importlib.import_module("structlog")
    known["rich"] = None  # an import of it fails
    try:
        return importlib.import_module("structlog")
    finally:
        known.pop("rich", None)


def keep_off_stdout() -> None:
    """Write lines of a command without a log to stderr, because stdout has its result."""
    _quieten_libraries()
    if "structlog" in sys.modules:
        _use_stderr()
    else:
        _Logger.off_stdout = True


def _use_stderr() -> None:
    structlog = _structlog()
    # the stream at the time of the line: tests replace it
    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))


def _printable_values(logger: Any, name: str, event: EventDict) -> EventDict:
    """Replace characters that a terminal may obey; only a traceback keeps its lines."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = (printable_lines if key == "exception" else one_line)(value)
        elif isinstance(value, list) and all(isinstance(each, str) for each in value):
            event[key] = one_line("; ".join(value))
        elif not isinstance(value, int | float | None):
            event[key] = printable(repr(value))
    return event


class _Marked:
    """Renders a line with its priority for the journal."""

    def __init__(self, renderer: Processor) -> None:
        self._renderer = renderer

    def __call__(self, logger: Any, name: str, event: EventDict) -> str:
        level = event["level"]
        return marked(level, str(self._renderer(logger, name, event)))


class _LibraryLines(logging.Handler):
    """Writes lines of libraries as our own; the part is the name of the library's logger."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        try:
            log = _structlog().get_logger(part=record.name)
            log.log(record.levelno, record.getMessage(), exc_info=record.exc_info)
        except Exception:  # for example if a message does not fit its arguments
            self.handleError(record)


class _Tolerant:
    """A stream whose reader may go, or whose disk may be full: mail goes on without a log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


class Lines:
    """Lines of one event that come so often that structlog takes too long, many in one write.

    A line is `head`, and its values between the `gaps`. A write has whole lines, because other
    processes write to the same stream: at most as many octets as a pipe takes at once.
    """

    def __init__(self, log: LogFormat, event: str, **bound: str) -> None:
        self._stream = _Tolerant(sys.stderr)
        self._json = log.format == "json"
        self._second, self._time = 0, ""
        self._ends = "", f" [info     ] {event:<24} "
        if self._json:
            self._ends = f'{{"event": {json.dumps(event)}, "level": "info", "timestamp": "', '", '
        self._bound = bound

    def gaps(self, numbers: Sequence[str], texts: Sequence[str], **fixed: str) -> list[str]:
        """Return the text before, between and after values of these names, in this order.

        That after them has the fixed values. `value` makes a text fit for a gap.
        """
        gap, quote = ('"{}": ', '"') if self._json else ("{}=", "")
        between = ", " if self._json else " "
        found, before = [], ""
        for name in (*numbers, *texts):
            mark = quote if name in texts else ""
            found.append(f"{before}{gap.format(name)}{mark}")
            before = f"{mark}{between}"
        rest = (
            f"{gap.format(name)}{quote}{self.value(text)}{quote}"
            for name, text in (fixed | self._bound).items()
        )
        end = "}" if self._json else ""
        return [*found, f"{before}{between.join(rest)}{end}"]

    def value(self, text: str) -> str:
        """Return a text as a line has it: no terminal obeys it, and it ends no field."""
        if self._json:
            return json.dumps(text)[1:-1]  # ASCII only
        text = one_line(text)
        return repr(text) if _NEEDS_QUOTES.search(text) else text

    def head(self) -> str:
        """Return the beginning of lines about an event of now."""
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second, self._time = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        before, after = self._ends
        return f"{before}{self._time}.{int((now - second) * 1e6):06}Z{after}"

    def write(self, lines: Sequence[str]) -> None:
        """Write these lines."""
        longest = max(
            len(line) if line.isascii() else len(line.encode("utf-8", "replace")) for line in lines
        )
        step = max(1, _PIPE_BUF_OCTETS // (longest + 1))
        for first in range(0, len(lines), step):
            text = "\n".join(lines[first : first + step])
            self._stream.write(f"{text}\n")


def get(name: str) -> FilteringBoundLogger:
    """Return the logger of one part of the program."""
    return cast("FilteringBoundLogger", _Logger(name))


class _Logger:
    """The logger of a part; its first line imports structlog, which takes 0.1 s.

    So a command that logs nothing starts sooner.
    """

    off_stdout = False
    """Whether the first line has lines go to stderr."""

    def __init__(self, name: str) -> None:
        self._name = name

    @cached_property
    def _logger(self) -> FilteringBoundLogger:
        structlog = _structlog()
        if _Logger.off_stdout:
            _Logger.off_stdout = False
            _use_stderr()
        logger: FilteringBoundLogger = structlog.get_logger(part=self._name)
        return logger

    def __getattr__(self, level: str) -> Any:
        return getattr(self._logger, level)
