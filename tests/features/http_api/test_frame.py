"""Authentication, limits and checks before the handlers, and the listeners."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from psycopg.conninfo import make_conninfo
from structlog.testing import capture_logs

from pgmta_features.http_api.outage_log import OutageLog
from pgmta_features.http_api.problem import away
from pgmta_features.http_api.token import new_token
from tests.features.http_api.served import ServedApi, make_key, serving_api
from tests.support.daemons import ROOT
from tests.support.waiting import free_port, until
from tests.web.web import Answer, Web

JSON = "application/json"
MAIL = {"sender": "a@example.org", "to": ["b@example.com"], "subject": "x", "body": "x"}


def word(answer: Answer) -> tuple[int, str]:
    """The status of an answer, and the word of its problem."""
    kind = answer.members.get("type", "")
    return answer.status, kind.removeprefix("urn:pgmta:problem:")


def own_address() -> str:
    """An address of this host that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.99", 9))
        except OSError:
            pytest.skip("this host has the loopback address alone")
        found: str = probe.getsockname()[0]
        return found


def test_what_a_key_may(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(db, "shop", "send messages", tenant="t1", senders=["@shop.example"])
    answer = api.send("GET", "/v1/key", token)
    assert answer.status == 200
    assert answer.members == {
        "name": "shop", "scopes": ["messages", "send"], "tenant": "t1",
        "senders": ["@shop.example"], "sees": "own", "credentials": [], "priorities": [5, 5],
    }  # fmt: skip
    assert "ratelimit" not in answer.headers


def test_what_may_be_asked(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(db)
    assert api.send("GET", "/v1/nothing", token).status == 404
    assert api.send("DELETE", "/v1/key", token).headers["allow"]
    mail = json.dumps(MAIL).encode()
    kind = f"{JSON}; charset=utf-8"
    assert api.send("POST", "/v1/messages", token, mail, Content_Type=kind).status == 202


def test_limits_of_a_key_and_of_wrong_ones(
    as_api: str, db: psycopg.Connection, tmp_path: Path
) -> None:
    token, new = make_key(db), make_key(db, "new")
    wrong = [f"pgmta_{'a' * 12}_{'a' * 50}{one}{two}" for one in "abcde" for two in "abcde"]
    with serving_api(tmp_path, as_api, limits={"api_rate": 5}) as api:
        answers = [api.send("GET", "/v1/key", token) for _ in range(20)]
        over = [answer for answer in answers if answer.status == 429]
        assert over
        assert {word(answer) for answer in over} == {(429, "rate")}
        assert over[0].headers["retry-after"] == "1"
        assert over[0].headers["ratelimit"] == '"key";r=0;t=1'
        # one old key, again and again, shuts nobody out
        refused = [word(api.send("GET", "/v1/key", wrong[0])) for _ in range(25)]
        assert refused == [(401, "key-refused")] * 25
        refused = [word(api.send("GET", "/v1/key", each)) for each in wrong[1:]]
        assert refused[:19] == [(401, "key-refused")] * 19
        assert refused[-1] == (429, "too-many-refusals")
        assert word(api.send("GET", "/v1/key", new)) == (429, "too-many-refusals")
        assert api.send("GET", "/v1/key", new, source="127.0.0.2").status == 200
        until(lambda: api.send("GET", "/v1/key", token).status == 200)  # it is known


def test_a_key_crosses_no_network_in_the_clear(
    as_api: str, db: psycopg.Connection, tmp_path: Path
) -> None:
    address = own_address()
    token = make_key(db, networks=["198.51.100.0/24", "127.0.0.0/8"])

    def ask(api: ServedApi, **more: str) -> tuple[int, str]:
        return word(api.send("GET", "/v1/key", token, source=address, **more))

    (tmp_path / "direct").mkdir()
    (tmp_path / "proxied").mkdir()
    with serving_api(tmp_path / "direct", as_api, proxies=["203.0.113.1"]) as api:
        assert ask(api) == (403, "insecure")
        assert ask(api, X_Forwarded_For="127.0.0.1") == (403, "insecure")
        assert api.send("GET", "/v1/key", token).status == 200
    with serving_api(tmp_path / "proxied", as_api, proxies=[f"{address}/32"]) as api:
        assert ask(api, X_Forwarded_For="198.51.100.7") == (200, "")
        assert ask(api, X_Forwarded_For="198.51.100.7, 203.0.113.9") == (403, "network-refused")


def check(folder: Path, uri: str, **changes: Any) -> subprocess.CompletedProcess[str]:
    """Check a configuration of the API."""
    file = folder / "api.yaml"
    settings: dict[str, Any] = {
        "environment": {"hostname": "h.example", "database": {"uri": uri}},
        "listen": [{"serves": ["api"]}],
    }
    file.write_text(yaml.safe_dump(settings | changes))
    return subprocess.run(
        [sys.executable, "-m", "queued", "web", "--check", "-c", file],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_mistakes_of_listeners_are_named(
    database: str, db: psycopg.Connection, tmp_path: Path
) -> None:
    listen: list[dict[str, Any]] = [{"port": 2581}, {"address": "0.0.0.0", "serves": ["api"]}]
    done = check(tmp_path, database, listen=listen)
    assert done.returncode == 2
    line = (tmp_path / "api.yaml").read_text().splitlines().index("listen:") + 1
    assert f"api.yaml:{line}: listen: the API listens on 0.0.0.0 without TLS" in done.stderr
    assert check(tmp_path, database, listen=listen, proxies=["192.0.2.1"]).returncode == 0
    done = check(tmp_path, database, listen=[{"serves": ["pages", "apu"]}])
    assert done.returncode == 2
    assert "listen[0].serves[1]: unknown; did you mean 'api'?" in done.stderr
    login = f"pages_{db.info.dbname}"
    db.execute(f"CREATE ROLE {login} LOGIN IN ROLE pgmta_web".encode())
    try:
        uri = make_conninfo(database, user=login)
        listen = [{"serves": ["pages", "api"]}]
        done = check(tmp_path, uri, listen=listen)
        assert done.returncode == 2
        assert "pgmta_api" in done.stderr
        db.execute(f"GRANT pgmta_api TO {login}".encode())
        assert check(tmp_path, uri, listen=listen).returncode == 0
    finally:
        db.execute(f"DROP ROLE {login}".encode())


def test_each_listener_serves_its_audience(
    database: str, db: psycopg.Connection, tmp_path: Path
) -> None:
    token, ports = make_key(db), (free_port(), free_port())
    listen = [{"port": ports[0]}, {"port": ports[1], "serves": ["api"]}]
    daemon = Web(tmp_path, "web", database, {"listen": listen})
    try:
        daemon.ready()

        def ask(port: int, path: str) -> int:
            daemon.port = port
            return daemon.ask("GET", path, Authorization=f"Bearer {token}").status

        paths = ("/v1/key", "/style.css", "/healthy")
        assert [ask(ports[0], path) for path in paths] == [404, 200, 200]
        assert [ask(ports[1], path) for path in paths] == [200, 404, 200]
        daemon.stop()
        assert daemon.faults() == []
    finally:
        daemon.clean()


def test_an_outage_has_one_line_at_its_begin_and_one_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_api(tmp_path, f"postgresql://127.0.0.1:{free_port()}/x") as api:
        for _ in range(2):
            assert word(api.send("GET", "/v1/key", str(new_token()))) == (503, "database-away")
        (line,) = api.events("database is away")
        assert "refused" in line["reason"]
    now = 0.0
    monkeypatch.setattr(f"{OutageLog.__module__}.time.monotonic", lambda: now)
    outages = OutageLog()
    with capture_logs() as lines:
        for failed, at in (False, 0), (True, 1), (False, 2), (True, 5), (False, 14), (False, 16):
            now = float(at)
            if failed:
                outages.note(away())
            else:
                outages.answered()
    assert [(line["event"], line.get("after_s")) for line in lines] == [
        ("database is away", None), ("database is back", 4.0),
    ]  # fmt: skip
