"""Mail by HTTP with the real daemon: Retry-After, and a secret that is in requests alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from time import monotonic
from typing import Any

import psutil
import pytest
import yaml
from click.testing import CliRunner
from psycopg import sql

from queued.cli.queuectl import main
from tests.features.providers.scripted_server import said
from tests.support.certificates import Certificate
from tests.support.provider import OK, Provider
from tests.support.system import System

pytestmark = pytest.mark.slow

SECRET = "c0nfidential-4711"


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as made:
        yield made


def shaping(folder: Path, provider: Provider, **more: Any) -> str:
    """Write the file; the secret is in a header field and in the body."""
    secret = folder / "provider.key"
    secret.write_text(f"{SECRET}\n")
    secret.chmod(0o600)
    words = {"to": "{{recipient}}", "subject": "{{subject}}", "key": "{{secrets.provider}}"}
    parameters = {"url": provider.url, "json": words, "error": "error", **more}
    route = {"name": "way", "transport": "http", "parameters": parameters}
    file = folder / "shaping.yaml"
    file.write_text(yaml.safe_dump({"secrets": {"provider": secret.name}, "routes": [route]}))
    return str(file)


def test_retry_after(system: System, tmp_path: Path, provider: Provider) -> None:
    times: dict[str, list[float]] = defaultdict(list)

    def answering(document: Any) -> list[bytes]:
        name = document["to"].partition("@")[0]
        times[name].append(monotonic())
        if len(times[name]) > 1:
            return OK
        at = datetime.now(UTC) + timedelta(seconds=8)  # a date has whole seconds
        value = "7" if name == "seconds" else format_datetime(at, usegmt=True)
        status = "429 Too Many Requests" if name == "seconds" else "503 Down"
        return said(status, b"", f"Retry-After: {value}")

    provider.answering = answering
    file = shaping(tmp_path, provider, json={"to": "{{recipient}}"})
    system.queued(shaping=file, retry={"intervals": ["100ms"]})
    system.enqueue("seconds@r.example", "date@r.example")
    system.wait_empty()
    for name in ("seconds", "date"):
        first, second = times[name]
        assert 7 <= second - first <= 9, name


def test_a_secret_is_in_requests_alone(system: System, tmp_path: Path) -> None:
    """The provider repeats what it got in its refusals."""
    authority = Certificate.root()
    ca = str(authority.files(tmp_path)[0])
    tls = authority.issue("localhost").server(tmp_path)

    def answering(document: Any) -> list[bytes]:
        key = document["key"]
        return said(f"422 No {key}", f'{{"error": "{key}"}}'.encode(), f"X-Key: {key}")

    system.environment = {"LC_ALL": "C"}  # no fork: /proc shows its own command
    with Provider(answering, tls) as provider:
        file = shaping(tmp_path, provider, private=True)
        daemon = system.queued(shaping=file, delivery={"tls": {"ca": ca}}, log={"attempts": True})
        CliRunner().invoke(main, ["trace", "-c", str(daemon.path), "--domain", "r.example",
                                  "--for", "1h", "--background"])  # fmt: skip
        daemon.wait_log("traces begin")
        message = system.enqueue("a@r.example", on_failed="hold")
        system.wait_status(a="HOLD")
        (document,) = provider.documents
        assert document["key"] == SECRET
    process = psutil.Process(daemon.pid)
    for each in (process, *process.children(recursive=True)):
        assert SECRET not in f"{each.cmdline()} {each.environ()}"
    for words in (["show", "--transcript"], ["explain"], ["route"]):
        target = "a@r.example" if words == ["route"] else str(message)
        shown = CliRunner().invoke(main, [*words, target, "-c", str(daemon.path)])
        assert shown.exit_code == 0, shown.output
        assert SECRET not in shown.output
    system.stop()
    assert "error=(left out)" in system.attempts("a@r.example")[0]["reply"]
    tables = system.ask(
        "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p', 'v', 'm')"
        " AND relnamespace = 'pgmta'::regnamespace"
    )
    assert len(tables) > 30
    for table in tables:
        name = sql.Identifier("pgmta", table["relname"]).as_string()
        assert not system.ask(f"SELECT t FROM {name} AS t WHERE t::text LIKE %s", f"%{SECRET}%")
    assert SECRET not in daemon.story(10_000)
