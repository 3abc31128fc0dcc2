"""Random requests made from the description: what comes back is described, and stored if taken."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import psycopg
import pytest

from pgmta.model import ANY_SENDER
from pgmta_features.http_api.caller import ANY_CREDENTIAL
from tests.features.http_api.served import ServedApi, make_key
from tests.support.packages import folder
from tests.support.rows import column

_CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance",
    "response_headers_conformance", "response_schema_conformance", "unsupported_method",
    "ignored_auth",
)  # fmt: skip
_HOOKS = """
import json, os
import schemathesis

@schemathesis.hook
def after_call(context, case, response):
    if response.status_code == 202 and case.path.startswith("/v1/messages"):
        with open(os.environ["TAKEN"], "a") as file:
            file.write(response.content.decode() + "\\n")
"""


@pytest.mark.slow
@pytest.mark.needs("schemathesis")
@pytest.mark.timeout(900)
def test_random_requests(
    api: ServedApi, db: psycopg.Connection, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    seconds = pytestconfig.getoption("--api-seconds")
    token = make_key(db, "shop", senders=[ANY_SENDER], credentials=[ANY_CREDENTIAL])
    (tmp_path / "random_hooks.py").write_text(_HOOKS)
    taken = tmp_path / "taken"
    taken.touch()
    variables = {
        "SCHEMATHESIS_HOOKS": "random_hooks", "TAKEN": str(taken), "PYTHONPATH": str(tmp_path)
    }  # fmt: skip
    done = subprocess.run(
        [
            folder() / "schemathesis" / "bin" / "schemathesis", "run", f"{api.url}/v1/openapi.json",
            "--header", f"Authorization: Bearer {token}", "--checks", ",".join(_CHECKS),
            "--max-time", str(seconds), "--continue-on-failure", "--request-timeout", "60",
            "--exclude-path", "/v1/events",  # streams
            "--suppress-health-check", "all", "--warnings", "off", "--no-color",
        ],
        cwd=tmp_path, env={**os.environ, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(done.stdout[-3000:])
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    found = [json.loads(line) for line in taken.read_text().splitlines()]
    ids = {each["id"] for answer in found for each in answer.get("data", [answer]) if "id" in each}
    assert ids, "no request was taken"
    known = column(db, "SELECT id::text FROM messages UNION SELECT message_id::text FROM attempts")
    assert ids <= set(known), ids - set(known)
