"""MTA-STS: records, policies, their fetch from a web server, and how long they count."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any, cast

import pytest
from dns import rdata

from pgmta.errors import DeliveryError, Stage, StoreUnavailable
from pgmta.model import StsPolicy, TlsResult
from queued.config import Tls
from queued.delivery.dns.resolver import DnsAnswer
from queued.delivery.tls import sts_fetch
from queued.delivery.tls.mta_sts import FetchedPolicy, mx_matches, parse_policy, record_id
from queued.delivery.tls.sts_cache import StsCache
from queued.delivery.tls.sts_fetch import PolicyFetcher, StsError
from queued.delivery.tls.tls_contexts import TlsContexts
from tests.support.certificates import Certificate
from tests.support.rawhop import run
from tests.support.waiting import let_others_run

DOMAIN = "b.example"
ROOT = Certificate.root()
GOOD = ROOT.issue("mta-sts.b.example")
FILE = (
    b"version: STSv1\r\nmode: enforce\r\nmx: mx.b.example\r\nmx: *.c.example\r\nmax_age: 86400\r\n"
)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (["v=STSv1; id=20160831085700Z;"], "20160831085700Z"),
        (["v=STSv1;id=1"], "1"),
        (["v=STSv1 ; x=y; id=1 ; z=1"], "1"),
        (["other", "v=STSv1; id=1"], "1"),
        (["v=STSv1; id=1", "v=STSv1; id=2"], None),
        (["v=STSv1; id="], None),
        (["v=STSv1; id=1-2"], None),
        (["v=STSv1; id=" + "1" * 33], None),
        (["v=STSv1"], None),
        (["v=STSv10; id=1"], None),
        ([" v=STSv1; id=1"], None),
        ([], None),
    ],
)
def test_records(records: list[str], expected: str | None) -> None:
    assert record_id(records) == expected


def test_policies() -> None:
    assert parse_policy(FILE.decode()) == FetchedPolicy(
        "enforce", ("mx.b.example", "*.c.example"), 86400
    )
    first = (
        "mode: testing\nversion:STSv1 \nmode: none\nmx: MX.b.example.\nmax_age: 9999999999\nx: y\n"
    )
    assert parse_policy(first) == FetchedPolicy("testing", ("mx.b.example",), 31_557_600)
    assert parse_policy("version: STSv1\nmode: none\nmax_age: 60").mx == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mode: none\nmax_age: 60",
        "version: STSv2\nmode: none\nmax_age: 60",
        "version: STSv1\nmode: maybe\nmx: a.example\nmax_age: 60",
        "version: STSv1\nmode: enforce\nmax_age: 60",
        "version: STSv1\nmode: enforce\nmx: a.example\nmax_age: -1",
        "version: STSv1\nmode: enforce\nmx: a.example",
        "version: STSv1\nmode: enforce\nmx: a b\nmax_age: 60",
        "version: STSv1\nmode: enforce\nmx: a.*.example\nmax_age: 60",
        "<html>\nversion: STSv1",
    ],
)
def test_bad_policies(text: str) -> None:
    with pytest.raises(ValueError, match="."):
        parse_policy(text)


def test_hosts_of_a_policy() -> None:
    patterns = ("mx.b.example", "*.c.example")
    for host, expected in {
        "MX.b.example.": True,
        "a.c.example": True,
        "c.example": False,
        "a.a.c.example": False,
        "b.example": False,
        "a.mx.b.example": False,
    }.items():
        assert mx_matches(patterns, host) is expected


# -- the web server --


def response(
    body: bytes = FILE, status: str = "200 OK", kind: str = "text/plain", more: str = ""
) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{more}"
    if "Transfer-Encoding" not in more:
        head += f"Content-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(FILE), FILE)
RESPONSES: dict[str, tuple[bytes, str]] = {
    "good": (response(), ""),
    "utf-8": (response(kind="text/plain; charset=utf-8"), ""),
    "chunked": (response(CHUNKED, more="Transfer-Encoding: chunked\r\n"), ""),
    "redirect": (response(status="301 Moved", more="Location: /x\r\n"), "sts-policy-fetch-error"),
    "missing": (response(status="404 Not Found"), "sts-policy-fetch-error"),
    "other type": (response(kind="text/html"), "sts-policy-invalid"),
    "too large": (response(FILE + b"x: y\r\n" * 12_000), "sts-policy-invalid"),
    "malformed": (response(b"what?"), "sts-policy-invalid"),
    "not ASCII": (response(FILE + b"x: \xff\r\n"), "sts-policy-invalid"),
    "cut off": (response()[:-10], "sts-policy-fetch-error"),
    "1xx": (b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000 + response(), "sts-policy-fetch-error"),
    "tiny chunks": (
        response((b"1;" + b"x" * 200 + b"\r\n#\r\n") * 1000, more="Transfer-Encoding: chunked\r\n"),
        "sts-policy-fetch-error",
    ),
    "no HTTP": (b"220 hop.example ESMTP\r\n", "sts-policy-fetch-error"),
    "nothing": (b"", "sts-policy-fetch-error"),
}


class WebServer:
    """Says `says` to each request, and keeps these; asks the DNS for itself."""

    def __init__(self, certificate: Certificate, folder: Path) -> None:
        self.says = response()
        self.requests: list[bytes] = []
        self.port = 0
        self._context = certificate.server(folder)
        root, _ = ROOT.files(folder)
        self._contexts = TlsContexts(Tls(ca=str(root)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self.says)
        writer.close()

    async def addresses(self, name: str) -> list[str]:
        assert name == "mta-sts.b.example"
        return ["127.0.0.2", "127.0.0.1"]  # nothing is on the first one

    @property
    def fetcher(self) -> PolicyFetcher:
        return PolicyFetcher(lambda: self._contexts.pkix, self.addresses, self.port)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[WebServer]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()


def test_fetch(tmp_path: Path) -> None:
    async def main() -> None:
        async with WebServer(GOOD, tmp_path).listening() as server:
            for name, (says, result) in RESPONSES.items():
                server.says = says
                if result:
                    with pytest.raises(StsError) as found:
                        await server.fetcher.fetch(DOMAIN)
                    assert found.value.result == result, name
                else:
                    assert await server.fetcher.fetch(DOMAIN) == parse_policy(FILE.decode()), name
            head = server.requests[0].decode()
            assert head.startswith("GET /.well-known/mta-sts.txt HTTP/1.1\r\n")
            assert "\r\nhost: mta-sts.b.example\r\n" in head.lower()
            assert len(server.requests) == len(RESPONSES)  # no redirect was followed

    run(main())


async def test_slow_web_servers_do_not_keep_the_policies_of_others_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def addresses(name: str) -> list[str]:
        if name != "mta-sts.b.example":
            await asyncio.Event().wait()
        return []

    monkeypatch.setattr(sts_fetch, "_MIN_FETCH_S", 0.1)
    fetcher = PolicyFetcher(cast(Any, None), addresses, 443)
    slow = [asyncio.create_task(fetcher.fetch(f"{number}.example")) for number in range(100)]
    await let_others_run()
    with pytest.raises(StsError, match="has no address"):
        await asyncio.wait_for(fetcher.fetch(DOMAIN), 5.0)
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)


@pytest.mark.parametrize(
    "certificate",
    [
        ROOT.issue("b.example"),
        ROOT.issue("mta-sts.b.example", days=(-9, -1)),
        Certificate.self_signed("mta-sts.b.example"),
    ],
)
def test_certificates_of_web_servers(tmp_path: Path, certificate: Certificate) -> None:
    async def main() -> None:
        async with WebServer(certificate, tmp_path).listening() as server:
            with pytest.raises(StsError) as found:
                await server.fetcher.fetch(DOMAIN)
            assert found.value.result == "sts-webpki-invalid"

    run(main())


# -- the policy that counts --


class World:
    """The DNS, the web server and the store of one domain."""

    def __init__(self) -> None:
        self.record: str | None = "v=STSv1; id=1"
        self.found: FetchedPolicy | None = FetchedPolicy("enforce", ("mx.b.example",), 86400)
        self.stored: StsPolicy | None = None
        self.away = False
        self.fetches = 0
        self.counted: Counter[str] = Counter()

    async def ask(self, name: str, kind: str) -> DnsAnswer:
        assert (name, kind) == ("_mta-sts.b.example", "TXT")
        if self.record is None:
            raise DeliveryError("4.4.3 SERVFAIL", Stage.ADDRESS)
        found = (rdata.from_text("IN", "TXT", f'"{self.record}"'),) if self.record else ()
        return DnsAnswer(found, False, monotonic() + 60, True, name)

    async def fetch(self, domain: str) -> FetchedPolicy:
        self.fetches += 1
        await let_others_run()
        if self.found is None:
            raise StsError("no answer")
        return self.found

    async def find_policy(self, domain: str) -> StsPolicy | None:
        if self.away:
            raise StoreUnavailable("away")
        return self.stored

    async def keep_policy(self, policy: StsPolicy) -> None:
        self.stored = policy

    def count(self, result: TlsResult) -> None:
        self.counted[result.result] += 1

    async def policy(self) -> StsPolicy | None:
        """The policy as a worker finds it that has nothing in memory."""
        me = cast(Any, self)
        return await StsCache(me, me, me).policy(DOMAIN)


async def test_a_policy_is_fetched_once_and_kept() -> None:
    world = World()
    me = cast(Any, world)
    domains = StsCache(me, me, me)
    found = await asyncio.gather(*(domains.policy(DOMAIN) for _ in range(10)))
    assert world.fetches == 1
    assert set(found) == {StsPolicy(DOMAIN, "1", "enforce", ("mx.b.example",), 86400, 86400.0)}
    assert await world.policy() == world.stored == found[0]
    assert world.fetches == 1


async def test_a_policy_for_no_time_is_not_fetched_for_each_connection() -> None:
    world = World()
    world.found = FetchedPolicy("enforce", ("mx.b.example",), 0)
    me = cast(Any, world)
    domains = StsCache(me, me, me)
    for _ in range(3):
        await domains.policy(DOMAIN)
    assert world.fetches == 1


async def test_a_kept_policy_outlives_what_happens_later() -> None:
    world = World()
    kept = await world.policy()
    for world.record in ("", None, "v=STSv1; id=2"):  # gone, SERVFAIL, a new one …
        world.found = None  # … that can't be fetched
        assert await world.policy() == kept
    assert world.counted == {"sts-policy-fetch-error": 1}
    world.found = FetchedPolicy("none", (), 60)
    policy = await world.policy()
    assert policy
    assert (policy.id, policy.mode) == ("2", "none")


async def test_without_a_policy() -> None:
    world = World()
    world.found = None
    me = cast(Any, world)
    domains = StsCache(me, me, me)
    assert await domains.policy(DOMAIN) is None
    domains._known.clear()
    assert await domains.policy(DOMAIN) is None
    assert world.fetches == 1  # not again for a while
    world.record = ""
    assert await world.policy() is None
    world.away = True
    with pytest.raises(DeliveryError) as found:
        await world.policy()
    assert not found.value.permanent
