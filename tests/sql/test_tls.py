"""The tables of TLS: policies, broken hosts, results for reports."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import psycopg
import pytest

from pgmta.errors import StoreUnavailable
from pgmta.model import StsPolicy, TlsResult
from pgmta.store.broken_tls import BrokenTlsHosts
from pgmta.store.sts_policies import StsPolicies
from pgmta.store.tls_reports import TlsReports
from queued.delivery.mtasts import FetchedPolicy
from queued.delivery.sts_fetch import StsError
from queued.upkeep.sts_policies import StsPolicyDuty
from tests.sql.test_surface import linked, one
from tests.support.waiting import PATIENCE

POLICY = StsPolicy("b.example", "1", "enforce", ("mx.b.example", "*.c.example"), 86400, 86400.0)


async def test_policies_are_kept_and_end(database: str, db: psycopg.Connection) -> None:
    async with linked(database, role="pgmta_queued") as link:
        policies = StsPolicies(link)
        assert await policies.find("b.example") is None
        await policies.keep(POLICY)
        found = await policies.find("b.example")
        assert found
        assert 86390 < found.left <= 86400
        assert replace(found, left=86400.0) == POLICY
        await policies.keep(replace(POLICY, id="2", mode="none", mx=()))
        found = await policies.find("b.example")
        assert found
        assert (found.id, found.mode, found.mx) == ("2", "none", ())
        db.execute("UPDATE sts_policies SET used_on = current_date - 3")
        with db.transaction():  # of an operator who looks at the row: no delivery waits for it
            db.execute("SELECT FROM sts_policies FOR UPDATE")
            async with asyncio.timeout(PATIENCE):
                assert await policies.find("b.example")
        await policies.find("b.example")
        assert one(db, "SELECT used_on = current_date FROM sts_policies")
        db.execute("UPDATE sts_policies SET used_on = current_date - 3")
        with psycopg.connect(database) as other:
            other.execute("SELECT FROM pgmta.sts_policies FOR UPDATE")
            assert await asyncio.wait_for(policies.find("b.example"), PATIENCE)
        db.execute("REVOKE UPDATE ON sts_policies FROM pgmta_queued")
        assert await policies.find("b.example")  # what can't be written counts all the same
        db.execute("REVOKE SELECT ON sts_policies FROM pgmta_queued")
        with pytest.raises(StoreUnavailable):
            await policies.find("b.example")
        db.execute("GRANT SELECT, UPDATE ON sts_policies TO pgmta_queued")
        db.execute("UPDATE sts_policies SET expires_at = now() - interval '2 days'")
        assert await policies.find("b.example") is None
        assert await policies.expire() == 1
        db.execute("ALTER TABLE sts_policies RENAME COLUMN mx TO old")
        for work in policies.find("b.example"), policies.keep(POLICY):
            with pytest.raises(StoreUnavailable):  # so the mail is deferred
                await work


class Web:
    """A web server with policies of some domains."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def fetch(self, domain: str) -> FetchedPolicy:
        self.asked.append(domain)
        if domain == "away.example":
            raise StsError("no answer")
        return FetchedPolicy("testing", ("mx.d.example",), 3600)


async def test_policies_are_fetched_again_before_they_end(
    database: str, db: psycopg.Connection
) -> None:
    async with linked(database, role="pgmta_queued") as link:
        policies, web = StsPolicies(link), Web()
        duty = StsPolicyDuty(policies, BrokenTlsHosts(link, 60), TlsReports(link), lambda: web)
        for domain in ("b.example", "away.example", "unused.example", "fresh.example"):
            await policies.keep(replace(POLICY, domain=domain))
        db.execute("UPDATE sts_policies SET next_fetch = now() WHERE domain <> 'fresh.example'")
        db.execute("UPDATE sts_policies SET used_on = current_date - 40 WHERE domain ~ 'unused'")
        await duty.do()
        await duty.do()  # the one that failed is not due again at once
        assert sorted(web.asked) == ["away.example", "b.example"]
        rows = db.execute("SELECT domain, id, mode FROM sts_policies ORDER BY domain").fetchall()
        assert rows == [
            ("away.example", "1", "enforce"),  # kept
            ("b.example", "1", "testing"),
            ("fresh.example", "1", "enforce"),
            ("unused.example", "1", "enforce"),
        ]


async def test_broken_hosts_are_known_to_all_workers(database: str, db: psycopg.Connection) -> None:
    async with linked(database, role="pgmta_queued") as link:
        first, second = BrokenTlsHosts(link, 60), BrokenTlsHosts(link, 60)
        assert not await first.known("mx.b.example:25")
        await first.remember("mx.b.example:25", "handshake failure")
        assert await first.known("mx.b.example:25")
        assert await second.known("mx.b.example:25")
        db.execute("UPDATE broken_tls SET until = now()")
        assert not await BrokenTlsHosts(link, 60).known("mx.b.example:25")
        assert await first.expire() == 1
    away = BrokenTlsHosts(link, 60)
    link._uri = "postgresql://127.0.0.1:1/none"  # without a database the memory counts
    await link.close()
    await away.remember("a:25", "x")
    assert await away.known("a:25")


async def test_results_are_added_up(database: str, db: psycopg.Connection) -> None:
    good = TlsResult("b.example", "sts", "1")
    bad = TlsResult("b.example", "sts", "1", "certificate-expired", "mx", "192.0.2.1", "why")
    async with linked(database, role="pgmta_queued") as link:
        reports = [TlsReports(link), TlsReports(link)]
        for _ in range(2):
            for each in reports:
                for result in (good, good, bad):
                    each.count(result)
            await asyncio.gather(*(each.write() for each in reports))
            await reports[0].write()  # nothing new
        rows = db.execute("SELECT result, host, sessions FROM tls_reports ORDER BY 1").fetchall()
        assert rows == [("certificate-expired", "mx", 4), ("successful", "", 8)]
        assert await reports[0].expire(86400.0) == 0
        db.execute("UPDATE tls_reports SET day = day - 40")
        assert await reports[0].expire(86400.0) == 2
        reports[0].count(good)
        reports[0].count(replace(good, policy_type="nonsense"))
        await reports[0].write()  # the database refuses it: it stops nothing
        reports[0].count(good)
        await reports[0].write()
        assert one(db, "SELECT sum(sessions) FROM tls_reports") == 1
