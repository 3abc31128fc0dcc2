"""pgmta.Client beside a real queued: what becomes of mail, and waiting for it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from pgmta import Client
from tests.pgmta.client.test_client import mail
from tests.support.nexthop import Do, Transaction
from tests.support.system import System
from tests.support.waiting import SLACK


def answer(point: str, line: str, transaction: Transaction | None) -> Do | None:
    if point != "RCPT":
        return None
    for word, reply in (("bad", "550 5.1.1 no"), ("later", "451 4.3.0 later")):
        if word in line:
            return Do(line=reply)
    return None


async def test_what_becomes_of_mail(system: System) -> None:
    hop = system.hop(answer)
    async with Client(system.uri) as client:
        many = [mail(n, to=[f"r{n}@b.example", f"q{n}@b.example"]) for n in range(300)]
        ids = [each.id or 0 for each in await client.send_many(many)]
        before = await client.wait(ids, timeout=0.1)  # no consumer: it ends at its time
        assert list(before) == ids
        assert {row.state for rows in before.values() for row in rows} == {"queued"}
        waits = [asyncio.create_task(client.wait(part)) for part in (ids[:200], ids[100:], ids[:1])]
        await asyncio.to_thread(system.queued, hop, retry={"intervals": ["1h"]})
        for found in await asyncio.gather(*waits):
            assert {row.state for rows in found.values() for row in rows} == {"delivered"}
        kept = Counter(recipient for each in hop.kept for recipient in each.recipients)
        assert kept == Counter(recipient for each in many for recipient in each.to)
        bad, later, held = [
            await client.send(mail(to=["ok@b.example", f"{name}@b.example"], on_failed="remove"))
            for name in ("bad", "later", "held")
        ]
        [ok, refused] = (await client.wait([bad]))[bad]
        assert (ok.state, refused.state, refused.code) == ("delivered", "failed", 550)
        assert (refused.recipient, refused.reply) == ("bad@b.example", "5.1.1 no")
        await client.wait([held])
        began = time.monotonic()
        [_, row] = (await client.wait([later, 10**9], timeout=0.2))[later]
        assert 0.2 <= time.monotonic() - began < 0.2 + SLACK
        assert (row.state, row.attempts, row.code) == ("deferred", 1, 451)
        assert row.next_attempt is not None
        waiting = asyncio.create_task(client.wait([later]))
        assert await client.cancel(later, "enough") == 1
        assert [row.state for row in (await waiting)[later]] == ["delivered", "cancelled"]
        assert await client.wait([10**9]) == {10**9: []}
        endless = await client.send(mail(to=["later@b.example"]))
        waits = [asyncio.create_task(client.wait([endless])) for _ in range(2)]
        while (await client.wait([endless], timeout=0))[endless][0].state != "deferred":
            pass
    # they return the last look when the client is closed
    assert [(await each)[endless][0].state for each in waits] == ["deferred"] * 2
