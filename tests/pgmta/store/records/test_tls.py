"""The tables of TLS: policies, broken hosts, results for reports."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import cast

import psycopg
import pytest

from pgmta.errors import StoreUnavailable
from pgmta.model import StsPolicy, TlsResult
from pgmta.store.records.broken_tls import BrokenTlsHosts
from pgmta.store.records.sts_policies import StsPolicies
from pgmta.store.records.tls_reports import TlsReports
from queued.config import QueuedConfig
from queued.delivery.tls.mta_sts import FetchedPolicy
from queued.delivery.tls.sts_fetch import PolicyFetcher, StsError
from queued.process.queued_process import QueuedProcess
from queued.upkeep.duties import DUTIES
from queued.upkeep.sts_policies import RESULTS, StsPolicyDuty
from tests.sql.test_surface import linked, one
from tests.support.waiting import PATIENCE

TLS = ("TLSv1.2", 60.0)
MX = "mx.b.example:25"
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
        broken, results = BrokenTlsHosts(link, *TLS), TlsReports(link)
        duty = StsPolicyDuty(policies, broken, results, lambda: cast(PolicyFetcher, web))
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


async def fail_twice(hosts: BrokenTlsHosts, host: str) -> None:
    for _ in range(2):
        await hosts.failed(host, "handshake failure", time.monotonic())


async def test_broken_hosts_are_known_to_all_workers(database: str, db: psycopg.Connection) -> None:
    async with linked(database, role="pgmta_queued") as link:
        first, second = BrokenTlsHosts(link, *TLS), BrokenTlsHosts(link, *TLS)
        assert not await first.known(MX)
        await fail_twice(first, MX)
        assert await first.known(MX)
        assert await second.known(MX)
        db.execute("UPDATE broken_tls SET until = now()")
        assert not await BrokenTlsHosts(link, *TLS).known(MX)
        assert await first.expire() == 1
    away = BrokenTlsHosts(link, *TLS)
    link._uri = "postgresql://127.0.0.1:1/none"  # without a database the memory counts
    await link.close()
    await fail_twice(away, "a:25")
    assert await away.known("a:25")


async def test_only_a_second_failure_makes_a_host_broken(database: str) -> None:
    async with linked(database, role="pgmta_queued") as link:
        hosts = BrokenTlsHosts(link, *TLS)
        begun = time.monotonic()
        for _ in range(3):  # of connections side by side: one cause may end them all
            await hosts.failed(MX, "reset", begun)
        assert not await hosts.known(MX)
        hosts.worked(MX)
        await hosts.failed(MX, "reset", time.monotonic())
        assert not await hosts.known(MX), "TLS worked in between"
        hosts.configure("TLSv1.2", 1e-9)
        await hosts.failed(MX, "reset", time.monotonic())
        assert not await hosts.known(MX), "the first failure is long ago"
        hosts.configure(*TLS)
        await hosts.failed(MX, "reset", time.monotonic())
        assert await hosts.known(MX)


async def test_broken_hosts_count_for_the_lowest_version_of_tls_they_failed_with(
    database: str,
) -> None:
    other = "TLSv1.3", 60.0
    async with linked(database, role="pgmta_queued") as link:
        hosts = BrokenTlsHosts(link, *other)
        await fail_twice(hosts, MX)
        await hosts.failed("a:25", "reset", time.monotonic())
        assert await hosts.known(MX)
        hosts.configure("TLSv1.3", 30.0)
        assert await hosts.known(MX)
        begun = time.monotonic()
        hosts.configure(*TLS)
        assert not await hosts.known(MX)
        await hosts.failed("a:25", "reset", begun)
        await hosts.failed("a:25", "reset", time.monotonic())
        assert not await hosts.known("a:25"), "nor does a failure before that"
        assert not await BrokenTlsHosts(link, *TLS).known(MX), "nor after a restart"
        assert await BrokenTlsHosts(link, *other).known(MX), "of a process with the old one"


async def test_results_are_added_up(database: str, db: psycopg.Connection) -> None:
    good = TlsResult("b.example", "sts", "1")
    bad = TlsResult("b.example", "sts", "1", "certificate-expired", "mx", "192.0.2.1", "why")
    async with linked(database, role="pgmta_queued") as link:
        reports = [TlsReports(link), TlsReports(link)]
        for _ in range(2):
            for each in reports:
                for result in (good, good, bad):
                    each.count(result)
            await asyncio.gather(*(each.write_results() for each in reports))
            await reports[0].write_results()  # nothing new
        rows = db.execute("SELECT result, host, sessions FROM tls_reports ORDER BY 1").fetchall()
        assert rows == [("certificate-expired", "mx", 4), ("successful", "", 8)]
        assert await reports[0].expire(86400.0) == 0
        db.execute("UPDATE tls_reports SET day = day - 40")
        assert await reports[0].expire(86400.0) == 2
        reports[0].count(good)
        reports[0].count(replace(good, policy_type="nonsense"))
        await reports[0].write_results()  # the database refuses it: it stops nothing
        reports[0].count(good)
        await reports[0].write_results()
        assert one(db, "SELECT sum(sessions) FROM tls_reports") == 1


async def test_upkeep_writes_the_results_of_a_process(
    database: str, db: psycopg.Connection
) -> None:
    assert RESULTS in DUTIES
    process = QueuedProcess(QueuedConfig(), database)
    process.tls.memory.count(TlsResult("b.example", "sts", "1"))
    await RESULTS.make(process)()
    assert one(db, "SELECT sum(sessions) FROM tls_reports") == 1
    await process.close()
