"""From the request of queued to the provider's later word, in the books and in `queuectl show`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from queued.cli.queuectl import main
from tests.features.callbacks.provided import call, signed
from tests.features.callbacks.test_callbacks import nothing
from tests.features.providers.scripted_server import CUT
from tests.features.rates.mail_clock import shaping
from tests.features.suppressions.campaign import Campaign, sections
from tests.support.provider import OK, Provider
from tests.support.system import System
from tests.support.waiting import until
from tests.web.web import serving


@pytest.mark.slow
def test_later_words(system: System, for_web: str, campaign: Campaign, tmp_path: Path) -> None:
    def answer(document: Any) -> list[bytes]:
        return [CUT] if document["to"] == "cut@r.example" else OK

    with Provider(answer) as provider:
        parameters = {"url": provider.url, "json": {"to": "{{recipient}}", "key": "{{key}}"}}
        route = {"name": "way", "transport": "http", "parameters": parameters}
        daemon = system.queued(
            shaping=shaping(tmp_path, route), retry={"intervals": ["1h"], "unknown": "retry"},
            **sections(tmp_path, "https://mail.example"),
        )  # fmt: skip
        campaign.add("fine@r.example", "late@r.example", "gone@r.example", "cut@r.example")
        campaign.start()
        sent = {f"{name}@r.example": "sent" for name in ("fine", "late", "gone")}
        until(lambda: campaign.states() == sent | {"cut@r.example": "unknown"})
        keys = {each["to"].partition("@")[0]: each["key"] for each in provider.documents}
        system.enqueue("cut@r.example", on_failed="hold")
        system.wait_status(cut="DEFERRED")
        waiting = provider.documents[-1]["key"]
    host = provider.url.split("/")[2]
    hook = signed(tmp_path, hosts=[host])
    hook["events"] = hook["events"] | {"text": "text"}
    with serving(tmp_path, for_web, tokens=nothing(), callbacks={"hook": hook}) as web:
        answer_of = call(web, [
            {"key": waiting, "event": "ok"},
            {"key": keys["cut"], "event": "ok"},
            {"key": keys["fine"], "event": "ok"},
            {"key": keys["late"], "event": "bad", "code": 552, "text": "mailbox full"},
            {"key": keys["gone"], "event": "bad", "type": "gone"},
            {"key": keys["fine"], "event": "spam"},
        ])  # fmt: skip
        assert answer_of.status == 200
    assert campaign.states() == {
        "fine@r.example": "sent", "cut@r.example": "sent", "late@r.example": "failed",
        "gone@r.example": "failed",
    }  # fmt: skip
    assert campaign.reasons() == ["fine@r.example complained", "gone@r.example bounced"]
    system.wait_queue(lambda rows: not rows)
    for command in ("show", "explain"):
        found = {}
        for name, key in keys.items():
            words = [command, "-c", str(daemon.path), key.split("-")[1]]
            done = CliRunner().invoke(main, words)
            assert done.exit_code == 0, done.output
            found[name] = done.stdout
            as_json = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
            assert bool(as_json["history"][0]["confirmed_at"]) is (name in ("fine", "cut"))
        assert "552 mailbox full" in found["late"].partition("came back")[2]
        said = found["fine"].partition("the provider said later")[2]
        assert said.index("delivered") < said.index("complained")
        assert "said later" not in found["gone"]
