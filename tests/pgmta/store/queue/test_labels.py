"""Labels of mail: PostgreSQL and the routes agree on them, and claims leave out the right rows."""

from __future__ import annotations

import json
import random
from typing import Any

import psycopg
import pytest

from pgmta.model import Item
from pgmta.postgres.link import Link
from pgmta.store.queue.claim import Claims
from pgmta.store.queue.labels import Labels
from pgmta_features.rates.route_rate import RouteRate
from queued.config import Shaping, whole_shaping
from queued.routing.routes import Routes
from tests.support.rows import mail, message, row

DOMAINS = ["b.example", "a.b.example", "x.a.b.example", "c_d.example", "cxd.example", "other.org"]
PATTERNS = [*DOMAINS, "*.b.example", "*.a.b.example", "*.c_d.example", "*.example", "*"]
SENDERS = ["", "s@b.example", "News@B.example", "x@a.b.example", "y@c_d.example", "z@cxd.example"]
METADATA: list[dict[str, Any]] = [
    {}, {"tenant": "42"}, {"tenant": 42}, {"tenant": True, "it's": "a'b"}, {"tenant": None},
    {"tenant": {"a": 1}}, {"tenant": 4.20, "it's": "%s"}, {"other": "42"},
]  # fmt: skip
TENANTS = ["", "shop", "Shop"]
PER = ["destination", "sender_domain", "tenant", "route", "metadata.tenant", "metadata.it's"]
VALUES = ["42", 42, True, "true", "4.20", "a'b", "%s", "null", ""]


def shaping(dice: random.Random) -> Shaping:
    """Some routes, of which the last one goes by the sender."""

    def some(words: list[Any]) -> Any:
        return dice.choice([dice.choice(words), dice.sample(words, 2)])

    routes: list[dict[str, Any]] = []
    for number in range(dice.randint(0, 6)):
        route: dict[str, Any] = {"to": dice.choice(["mx", f"hop{number}.example"])}
        if dice.random() < 0.6:
            route["domain"] = some(PATTERNS)
        if dice.random() < 0.3:
            route["sender_domain"] = some(PATTERNS)
        if dice.random() < 0.3:
            route["sender"] = some(["<>", *SENDERS[1:]])
        if dice.random() < 0.3:
            route["tenant"] = some(["shop", "Shop", "other"])
        if dice.random() < 0.3:
            route["priority"] = some([1, "<=3", "4..9"])
        for key in ("tenant", "it's"):
            if dice.random() < 0.3:
                route[f"metadata.{key}"] = some(VALUES)
        if dice.random() < 0.4:
            route |= {"name": f"r{number}", "rate": "5/s", "per": dice.choice(PER)}
        routes.append(route)
    routes.append({"sender": "s@b.example", "domain": some(PATTERNS), "to": "last.example"})
    return whole_shaping().model_validate({"routes": routes})


async def test_postgresql_and_the_routes_agree(link: Link, db: psycopg.Connection) -> None:
    dice = random.Random(13)
    message(db, 1)
    rows: dict[int, Item] = {}
    for domain in DOMAINS:
        for sender in SENDERS:
            for metadata in METADATA:
                tenant = dice.choice(TENANTS)
                more: dict[str, Any] = {"tenant": tenant, "priority": dice.choice([1, 3, 5])}
                number = row(db, 1, domain=domain, sender=sender, metadata=metadata, **more)
                rows[number] = mail(domain, sender, metadata=json.dumps(metadata), **more)
    seen, rates = set(), set()
    for _ in range(60):
        routes = Routes({"*.example": "mx"}, shaping(dice))
        labels = Labels(routes.labelled, routes.limits)
        query = f"SELECT id, {labels.expression}, {labels.limit or 'NULL'} FROM queue".encode()
        for number, label, rate_label in await link.run(query):
            rate = next(iter(routes.limits_of(rows[number])), None)
            assert rate is None or isinstance(rate, RouteRate)
            if "{" not in (rate_label or ""):  # objects in metadata have no label
                assert (rate_label or "") == (rate.budget(rows[number]).label if rate else "")
                rates.add(rate_label)
            found, expected = routes.find(rows[number]), routes.label(rows[number])
            if expected == (domain := rows[number].domain):
                assert found == routes.find(mail(domain, "other@other.example"))
            else:
                assert label == expected, (rows[number], labels.expression)
            seen.add((expected.partition(" ")[2].count(" "), bool(found.destination.domain)))
    assert len(rates) > 30
    assert len(seen) == 4, "labels with and without a domain, to MX and to hosts"


NEWS = {"sender_domain": "news.example", "to": "news.smtp.example"}


@pytest.mark.parametrize("rows", [30, 300])
@pytest.mark.parametrize("each", [0, 5])
async def test_claims_leave_out_the_mail_of_one_route(
    link: Link, db: psycopg.Connection, rows: int, each: int
) -> None:
    message(db, 1)
    fine = set()
    for n in range(rows):  # by time, and by domain with a backlog
        row(db, 1, sender="s@news.example", priority=1, due=-100 - n)
        row(db, 1, priority=1, due=-100 - n, domain="dead.example")
        if n % 10 == 0:
            fine.add(row(db, 1, sender="s@other.example", priority=1))
            fine.add(row(db, 1, sender="s@news.example", priority=1, domain="mx.example"))
    file = {"routes": [{**NEWS, "domain": "b.example"}]}
    routes = Routes({}, whole_shaping().model_validate(file))
    assert routes.label(mail("b.example", "s@news.example")) == "route 0"
    assert routes.label(mail("b.example", "s@other.example")) == "route - b.example"
    assert routes.label(mail("dead.example", "s@news.example")) == "dead.example"
    claims = Claims(link, "w", 60, urgent=3, each=each, siblings=0)
    claims.label(routes.labelled)
    taken: set[int] = set()
    busy = ["route 0", "dead.example"]
    for _ in range(100):
        items = (await claims.claim(20, busy)).items
        taken |= {item.id for item in items}
        if not items:
            break
    assert taken == fine
    claims.label([])
    assert (await claims.claim(20, ["b.example", "dead.example"])).items == []
    assert len((await claims.claim(20, ["b.example"])).items) in (5, 20)


@pytest.mark.parametrize("rows", [30, 300])
async def test_claims_leave_out_the_mail_of_one_rate(
    link: Link, db: psycopg.Connection, rows: int
) -> None:
    message(db, 1)
    fine = set()
    for n in range(rows):
        row(db, 1, tenant="full", priority=1, due=-100 - n)
        if n % 10 == 0:
            fine.add(row(db, 1, tenant="other", priority=1))
            fine.add(row(db, 1, priority=1, domain="mx.example"))
    rate = {"name": "t", "domain": "b.example", "to": "h.example"}
    rate |= {"rate": "10/min", "per": "tenant"}
    routes = Routes({}, whole_shaping().model_validate({"routes": [rate]}))
    claims = Claims(link, "w", 60, siblings=0)
    claims.label(routes.labelled, routes.limits)
    taken: set[int] = set()
    while items := (await claims.claim(20, ["rate t full"])).items:
        taken |= {item.id for item in items}
    assert taken == fine
