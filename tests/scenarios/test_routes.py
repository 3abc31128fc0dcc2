"""Routes of shaping.yaml: by sender and metadata, beside a dead next hop, and read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.support.nexthop import NextHop, hanging_at
from tests.support.system import System

MANY = 600  # more than a worker has slots


def shaping(folder: Path, *routes: dict[str, Any]) -> str:
    """Write the file, and return its path."""
    file = folder / "shaping.yaml"
    file.write_text(yaml.safe_dump({"routes": routes}), encoding="utf-8")
    return str(file)


def news(hop: NextHop) -> dict[str, Any]:
    return {"name": "news", "sender_domain": "news.example", "to": hop.target}


def test_a_dead_route_does_not_stop_other_mail_of_the_domain(
    system: System, tmp_path: Path
) -> None:
    """Of two routes one hop hangs and one refuses, and all of their mail is older."""
    hangs, refuses, good = system.hop(hanging_at("MAIL")), system.hop(), system.hop()
    refuses.stop()
    for sender in ("x@news.example", "x@offers.example"):
        system.enqueue(*(f"x{n}@b.example" for n in range(MANY)), sender=sender)
    file = shaping(tmp_path, news(hangs), {"sender": "x@offers.example", "to": refuses.target})
    queued = system.queued(good, shaping=file, process={"drain": "0s"})
    hangs.wait(lambda: hangs.open)
    for n in range(30):
        system.enqueue(f"good{n}@b.example")
    good.wait_kept(30)
    queued.stop()
    assert len(good.deliveries()) == 30
    rows = system.ask("SELECT sender, sum(attempts)::int AS tries FROM queue GROUP BY 1")
    assert {row["sender"]: row["tries"] > 0 for row in rows} == {
        "x@news.example": False,
        "x@offers.example": True,
    }


def test_rows_of_one_message_go_apart_by_their_metadata(system: System, tmp_path: Path) -> None:
    ours, theirs, others = system.hop(), system.hop(), system.hop()
    system.enqueue("a@b.example", "b@b.example", "c@b.example", "d@c.example")
    for name, value in (("a", '"42"'), ("b", "43"), ("d", "43")):
        system.ask(
            f"UPDATE queue SET metadata = '{{\"tenant\": {value}}}' "
            f"WHERE split_part(recipient, '@', 1) = '{name}'"
        )
    file = shaping(
        tmp_path,
        {"metadata.tenant": 42, "to": [{"host": "127.0.0.1", "port": ours.port}]},
        {"metadata.tenant": ["43", "44"], "domain": "*.example", "to": theirs.target},
    )
    system.queued(others, shaping=file)
    system.wait_empty()
    assert ours.deliveries() == {"a@b.example": 1}
    assert theirs.deliveries() == {"b@b.example": 1, "d@c.example": 1}
    assert others.deliveries() == {"c@b.example": 1}


def test_mail_of_a_tenant_has_its_route(system: System, tmp_path: Path) -> None:
    """Beside mail of the same domain, of which some is for a tenant whose hop hangs."""
    ours, dead, others = system.hop(), system.hop(hanging_at("MAIL")), system.hop()
    system.enqueue(*(f"x{n}@b.example" for n in range(MANY)), sender="dead@a.example")
    system.enqueue("a@b.example", sender="shop@a.example")
    for tenant in ("dead", "shop"):
        system.ask(f"UPDATE queue SET tenant = '{tenant}' WHERE sender = '{tenant}@a.example'")
    file = shaping(
        tmp_path, {"tenant": "dead", "to": dead.target}, {"tenant": ["shop"], "to": ours.target}
    )
    queued = system.queued(others, shaping=file, process={"drain": "0s"})
    dead.wait(lambda: dead.open)
    ours.wait_kept(1)
    system.enqueue("b@b.example")
    others.wait_kept(1)
    queued.stop()
    assert ours.deliveries() == {"a@b.example": 1}
    assert others.deliveries() == {"b@b.example": 1}


def test_a_fallback_gets_mail_only_while_the_others_are_away(
    system: System, tmp_path: Path
) -> None:
    first, last = system.hop(), system.hop()
    to = [{"host": "127.0.0.1", "port": last.port, "fallback": True}, first.target]
    system.queued(shaping=shaping(tmp_path, {"to": to}), delivery={"idle": "0s"})
    system.enqueue("one@b.example")
    first.wait_kept(1)
    first.stop()
    system.enqueue("two@b.example")
    last.wait_kept(1)
    system.wait_empty()
    assert last.deliveries() == {"two@b.example": 1}


def test_a_mistake_in_the_file_keeps_the_routes(system: System, tmp_path: Path) -> None:
    system.expected = {"configuration kept as it was"}
    old, new, other = system.hop(), system.hop(), system.hop()
    queued = system.queued(other, shaping=shaping(tmp_path, news(old)))
    system.enqueue("one@b.example", sender="x@news.example")
    old.wait_kept(1)
    file = shaping(tmp_path, {**news(new), "tsl": "none"})
    queued.reload(queued.config)
    kept = queued.wait_log("configuration kept as it was")
    assert kept["problems"] == [f"{file}:5: routes[0].tsl: unknown key; did you mean 'tls'?"]
    system.enqueue("two@b.example", sender="x@news.example")
    old.wait_kept(2)
    shaping(tmp_path, news(new))
    queued.reload(queued.config)
    system.enqueue("three@b.example", sender="x@news.example")
    new.wait_kept(1)
    system.enqueue("four@b.example")
    other.wait_kept(1)
    system.wait_empty()
