"""A staging system: all mail goes to one address, or is held until an operator releases it."""

from __future__ import annotations

import signal
from email import message_from_bytes
from email.header import decode_header, make_header
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from queued.cli.queuectl import main as queuectl
from queued.daemon.queued import main as queued_command
from tests.support.nexthop import at
from tests.support.system import System


@pytest.fixture
def command(system: System) -> Any:
    """Run queuectl on the system's database."""
    path = system.folder / "queuectl.yaml"
    path.write_text(yaml.safe_dump({"environment": {"database": {"uri": system.uri}}}))

    def run(*words: str) -> Result:
        return CliRunner().invoke(queuectl, [*words, "-c", str(path)])

    return run


def test_all_mail_goes_to_one_address_and_the_log_has_its_recipients(system: System) -> None:
    others, team = system.hop(), system.hop(at("RCPT", "452 4.2.2 later", times=1))
    recipients = ["a@b.example", "c@b.example", "d@e.example", "ü@ü.example"]
    system.enqueue(*recipients)
    delivery = {"redirect": "team@staging.example"}
    system.queued(routes={"*": others.target, "staging.example": team.target},
                  delivery=delivery, retry={"intervals": ["1s"], "jitter": 0})  # fmt: skip
    kept = team.wait_kept(4)
    system.wait_empty()
    assert not others.kept
    assert team.deliveries() == {"team@staging.example": 4}
    heads = [message_from_bytes(each.content or b"") for each in kept]
    shown = {str(make_header(decode_header(head["X-Original-To"]))) for head in heads}
    assert shown == set(recipients)
    logged = [a for a in system.attempts() if a["event"] == "delivered"]
    assert {a["recipient"] for a in logged} == set(recipients)
    assert {a["domain"] for a in logged} == {"b.example", "e.example", "ü.example"}


@pytest.mark.parametrize("size", [10, 300_000])
def test_each_copy_names_its_recipient_whatever_is_rewritten(system: System, size: int) -> None:
    team = system.hop()
    content = b"Bcc: a@b.example\r\nX-Internal: 1\r\n\r\n" + b"x" * 60 + b"\r\n" * size
    recipients = [f"r{number}@b.example" for number in range(4)]
    system.enqueue(*recipients, content=content)
    system.queued(team, delivery={"redirect": "team@staging.example"})
    heads = [message_from_bytes(each.content or b"") for each in team.wait_kept(4)]
    assert {head["X-Original-To"] for head in heads} == set(recipients)
    assert not any(head["Bcc"] for head in heads)


@pytest.mark.slow
def test_two_configurations_hold_their_mail_by_two_rules(system: System, command: Any) -> None:
    hop = system.hop()
    for domain in ("a.example", "b.example"):
        where = {"database": {"where": f"domain = '{domain}'"}}
        system.queued(hop, environment=where, delivery={"hold_all": True})
    system.enqueue("x@a.example", "x@b.example")
    system.wait_queue(lambda rows: [row["status"] for row in rows] == ["HOLD"] * 2)
    assert not hop.kept
    assert command("rule", "list").stdout.count("hold_all_") == 2


def test_held_mail_goes_out_when_an_operator_releases_it(system: System, command: Any) -> None:
    hop = system.hop()
    system.enqueue("a@b.example")
    daemon = system.queued(hop, delivery={"hold_all": True})
    system.enqueue("c@b.example")
    rows = system.wait_queue(lambda rows: [r["status"] for r in rows] == ["HOLD"] * 2)
    assert {r["hold_reason"] for r in rows} == {"delivery.hold_all"}
    assert not hop.kept
    released = command("release", "--recipient", "a@b.example", "--yes")
    assert released.exit_code == 0, released.output
    hop.wait_kept(1)
    assert hop.deliveries() == {"a@b.example": 1}
    # the rule outlives the worker
    daemon.write(daemon.config | {"delivery": {}})
    daemon.signal(signal.SIGHUP)
    kept = daemon.wait_log("configuration kept in part")
    assert "delivery.hold_all: needs a restart" in kept["problems"]
    daemon.stop()
    system.queued(hop)
    system.enqueue("e@b.example")
    removed = command("rule", "remove", "hold_all", "--release")
    assert removed.exit_code == 0, removed.output
    hop.wait_kept(3)


@pytest.mark.parametrize("key", [{"hold_all": True}, {"redirect": "team@staging.example"}])
def test_a_reload_begins_no_staging_and_says_so(system: System, key: dict[str, Any]) -> None:
    hop = system.hop()
    daemon = system.queued(hop)
    daemon.write(daemon.config | {"delivery": key})
    daemon.signal(signal.SIGHUP)
    daemon.wait_log("configuration read again")
    assert f"delivery.{next(iter(key))}: needs a restart" in daemon.story(10_000)
    assert "staging:" not in daemon.story(10_000)
    system.enqueue("x@b.example")
    hop.wait_kept(1)
    assert hop.deliveries() == {"x@b.example": 1}
    checked = CliRunner().invoke(queued_command, ["check", "-c", str(daemon.path)])
    assert "staging: all mail " in checked.stderr


def test_a_wrong_address_of_redirect_is_a_mistake(system: System, tmp_path: Any) -> None:
    file = tmp_path / "queued.yaml"
    file.write_text("delivery:\n  redirect: team\n")
    checked = CliRunner().invoke(queued_command, ["check", "-c", str(file)])
    assert checked.exit_code == 2
    assert f"{file}:2: delivery.redirect: expected an address" in checked.stderr
