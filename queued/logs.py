"""Structured logs on stderr: text for people, JSON for machines."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from queued.config.environment import Log


def configure(log: Log, **bound: Any) -> None:
    """Set up structlog for the whole process; `bound` goes with every line.

    Libraries' own warnings come through the same stream; below warning they stay silent,
    because aiosmtpd tells every command, and with it every AUTH, at info and debug.
    """
    level = getattr(logging, log.level.upper())
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if log.format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=24)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # a line in one write: other processes write to the same stream
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**bound)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, force=True)
    for library in ("mail.log", "psycopg"):  # we tell ourselves what their warnings are about
        logging.getLogger(library).setLevel(logging.ERROR)


def get(name: str) -> structlog.typing.FilteringBoundLogger:
    """Return the logger of one part of the program."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(part=name)
    return logger
