"""Sections that smtpd.yaml and queued.yaml share: the environment and the log."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any, ClassVar, Literal

import psycopg.conninfo
from pydantic import Field, field_validator

from pgmta.config.types import FilePath, Section, checked
from pgmta.mail.address import normalise_domain

_QUOTED = re.compile(r'".*"', re.DOTALL)
_OTHER_SCHEME = re.compile(r"(?!postgres(ql)?://)\w+:?/")
_SECOND_AT = re.compile(r"postgres(ql)?://[^/?@]*@[^/?@]*@")


def check_uri(uri: str) -> str:
    """Return a libpq connection string. Raises ValueError, whose text has no part of it.

    libpq would take what follows the first `@` of a URI as its host, and write it into errors.
    """
    try:
        psycopg.conninfo.conninfo_to_dict(uri)
    except psycopg.Error as error:
        # libpq's message may repeat parts of the string, and a password may be one of them
        reason = _QUOTED.sub('"…"', str(error).strip().replace(uri, "…"))
        if _OTHER_SCHEME.match(uri):
            reason = "a URI of PostgreSQL begins with postgresql://"
        elif "=" not in uri and not uri.startswith(("postgresql:", "postgres:")):
            reason = "write postgresql://USER@HOST/DATABASE, or pairs such as host=… dbname=…"
        raise ValueError(f"is no libpq connection string: {reason}") from None
    if _SECOND_AT.match(uri):
        raise ValueError("has a host with an @: an @ in a password is written %40")
    return uri


class Database(Section):
    """Name the PostgreSQL that holds the queue."""

    uri: str | None = Field(
        default=None,
        description="libpq connection string or URI; absent: an embedded PostgreSQL under "
        "environment.directory",
        repr=False,
    )

    @field_validator("uri")
    @classmethod
    def _readable(cls, uri: str | None) -> str | None:
        return uri if uri is None else check_uri(uri)


class QueueDatabase(Database):
    """Choose the rows of this configuration too."""

    where: str | None = Field(
        default=None,
        description="SQL condition on columns of queue that chooses this configuration's rows; "
        "absent: every row",
    )


class DatabasePlace(Section):
    """Say where the database is: the part of the environment that commands need."""

    directory: FilePath = Field(
        default=Path("var"),
        validate_default=True,
        description="where the embedded PostgreSQL keeps its data, relative to this file",
    )
    database: Database = Field(default=Database())


class Environment(DatabasePlace):
    """Describe the host and the folder of the process."""

    needs_restart: ClassVar[bool] = True

    hostname: str = Field(
        default_factory=socket.getfqdn,
        description="name in 220, EHLO and Received; default: this host's full name",
    )

    @field_validator("hostname")
    @classmethod
    def _named(cls, hostname: str) -> str:
        return checked("", normalise_domain, hostname)


def environment_field() -> Any:
    """Return the field of a file that has the section.

    A file without the section has its defaults. They are validated too, because the directory is
    relative to the file.
    """
    return Field(default_factory=dict, validate_default=True)


class Log(Section):
    """Choose what the process logs to stderr."""

    needs_restart: ClassVar[bool] = True

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="debug, info, warning or error"
    )
    format: Literal["text", "json"] = Field(default="text", description="text or json")
