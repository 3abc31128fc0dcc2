"""Verifiers of others accept our signatures, through a rotation: svix, and the one of Node."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime

import pytest

from pgmta.config.token_keys import KeyFile
from pgmta_features.webhooks.signing import Secrets, signed_fields
from tests.support.packages import folder

BODY = json.dumps({"type": "mail.events", "reply": "grüß Gott ✓"}, ensure_ascii=False).encode()

SVIX = """
import json, sys
from svix.webhooks import Webhook, WebhookVerificationError
for case in json.load(sys.stdin):
    try:
        Webhook(case["secret"]).verify(case["body"], case["fields"])
        print("good")
    except WebhookVerificationError:
        print("bad")
"""
NODE = """
const { Webhook } = require("standardwebhooks");
for (const each of JSON.parse(require("fs").readFileSync(0, "utf8"))) {
  try { new Webhook(each.secret).verify(each.body, each.fields); console.log("good"); }
  catch { console.log("bad"); }
}
"""


def cases() -> str:
    """An old and a new secret, another one, and a body that was changed on its way."""
    secrets = Secrets([KeyFile("a", bytes(32))], {})
    old, new, other = (secrets.find(secrets.new_reference() or "") or "" for _ in range(3))
    fields = signed_fields([new, old], "msg_1_1-1_2-1_2", datetime.now(UTC), BODY)
    return json.dumps([
        {"secret": secret, "fields": fields, "body": text}
        for secret, text in (
            (old, BODY.decode()), (new, BODY.decode()), (other, BODY.decode()),
            (new, BODY.decode().replace("grüß", "gruß")),
        )
    ])  # fmt: skip


def verified(command: list[str], **variables: str) -> list[str]:
    done = subprocess.run(
        command, input=cases(), capture_output=True, text=True, check=True,
        env=os.environ | variables,
    )  # fmt: skip
    return done.stdout.split()


EXPECTED = ["good", "good", "bad", "bad"]


@pytest.mark.needs("svix")
def test_svix_verifies() -> None:
    python = str(folder() / "svix" / "bin" / "python")
    assert verified([python, "-c", SVIX]) == EXPECTED


@pytest.mark.needs("nodejs", "standardwebhooks")
def test_the_library_of_node_verifies() -> None:
    assert verified(["node", "-e", NODE], NODE_PATH=str(folder() / "node_modules")) == EXPECTED
