"""An installation with endpoints, and a receiver."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgmta.config.token_keys import read_key
from pgmta_features.webhooks.signing import Secrets
from tests.features.webhooks.receiver import Receiver

type Add = Callable[..., int]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as found:
        yield found


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """The installation's key."""
    file = tmp_path / "webhook.key"
    file.write_text(secrets.token_hex(32))
    file.chmod(0o600)
    return file


@pytest.fixture
def known(key: Path) -> Secrets:
    """What the key derives."""
    return Secrets([read_key(str(key))], {})


@pytest.fixture
def settings(key: Path) -> dict[str, Any]:
    """The section of queued.yaml."""
    return {"webhooks": {"keys": [str(key)], "networks": ["127.0.0.0/8"]}}


@pytest.fixture
def add(db: psycopg.Connection, known: Secrets) -> Add:
    """Adds an endpoint, and returns its id."""

    def adding(url: str, name: str = "shop", **more: Any) -> int:
        fields = {"name": name, "url": url, "kinds": None, "condition": "{}", "owner": None,
                  "secret": known.new_reference(), "batch": 100, "tenant": None} | more  # fmt: skip
        row = db.execute(
            "SELECT pgmta.webhook_add(%(name)s, %(url)s, %(kinds)s, %(condition)s, %(secret)s,"
            " %(owner)s, %(batch)s, %(tenant)s)", fields,
        ).fetchone()  # fmt: skip
        assert row
        return int(row[0])

    return adding
