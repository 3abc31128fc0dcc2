"""Whether the database fits the collectors of a configuration."""

from __future__ import annotations

from pathlib import Path

import psycopg

from pgmta.compose.token import KeyRings
from pgmta.config.loader import Problem, mistakes
from pgmta.postgres import faults
from pgmta.postgres.link import connect, unavailable
from pgmta_features.lifecycle.collections import CollectorStatements
from pgmta_features.lifecycle.config import collectors_of
from pgmta_features.lifecycle.outputs import options_of, unsigned
from queued.config import QueuedConfig

_MISSING = "the database has no schema lifecycle: run `queuectl lifecycle install`"


async def check_collectors(path: Path, uri: str, config: QueuedConfig) -> list[Problem]:
    """Look for the schema lifecycle, and the actions of collectors; return what these lack.

    That is their rows, their keys, and templates of mail, which a printed token needs none of:
    tokens of the action wait for them, and others go on. Raises ConfigError with the mistakes,
    StoreUnavailable, psycopg.Error.
    """
    if not collectors_of(config):
        return []
    try:
        connection = await connect(uri, "check", {"lock_timeout": "3s"})
    except psycopg.Error as error:
        raise unavailable(error) from None
    problems: list[Problem] = []
    lacking: list[Problem] = []
    keys = KeyRings.of(config.tokens)
    try:
        for number, collector in enumerate(collectors_of(config)):
            store = CollectorStatements(collector.name, "", collector.limit)
            store.connection = connection
            key = "collectors", number
            try:
                found = await store.check(options_of(collector, keys))
                if collector.output == "queue":
                    lacking += [(key, text) for text in found]
                others = await unsigned(collector, keys, store)
                lacking += [((*key, "actions"), text) for text in others]
            except psycopg.errors.InvalidParameterValue as error:  # somebody deleted an action
                lacking.append((key, _reason(error)))
            except psycopg.Error as error:
                if faults.outage(error):
                    raise
                problems.append((key, _reason(error)))
    finally:
        await connection.close()
    if problems:
        raise mistakes(path, problems)
    return lacking


def _reason(error: psycopg.Error) -> str:
    if isinstance(error, psycopg.errors.InvalidSchemaName | psycopg.errors.UndefinedFunction):
        return _MISSING
    parts = faults.one_line(error), error.diag.message_detail, error.diag.message_hint
    return "; ".join(part.rstrip(".") for part in parts if part)
