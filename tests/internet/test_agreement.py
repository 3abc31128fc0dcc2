"""Other programs come to the same conclusion about certificates and policies as queued."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import aiohttp.abc
import aiohttp.client
import pytest
from postfix_mta_sts_resolver.resolver import STSFetchResult, STSResolver

from bench.peer.package import libraries
from bench.peer.room import furnish
from tests.internet.case import Case, all_cases
from tests.internet.internet import Internet
from tests.internet.policies import ADDRESS, NOBODY
from tests.support.packages import folder

pytestmark = pytest.mark.needs("nsd", "unbound", "ldnsutils")

# without messages that ask for more than their route does
CASES = [case for case in all_cases() if not (case.then or case.settings or case.message)]
WITH_TLS = [case for case in CASES if any(host.tls == {} or (host.tls and "certificate" in host.tls)
            for host in case.hosts.values())]  # fmt: skip
DANE = [
    case for case in WITH_TLS if "TLSA" in case.zone and case.route.get("tls") in (None, "dane")
]
PKIX = [case for case in WITH_TLS if case.route.get("tls") == "verify"]
STS = [case for case in CASES if case.sts and "TLSA" not in case.zone]


def _ours(internet: Internet, case: Case, host: str) -> str:
    """Return how queued authenticated the host; empty if no mail went there."""
    internet.wait(case)
    if not internet.hosts.hosts[case.name][host].record.kept:
        return ""
    at = case.fqdn(host)
    found = {
        row["tls_verified"]
        for row in internet.attempts(case)
        if (row["host"] or "").partition(":")[0] == at
    }
    assert len(found) == 1, found
    return found.pop() or ""


def _asked(internet: Internet, case: Case) -> list[str]:
    """Return the hosts that queued has looked at: the last one that it tried, and those before."""
    names = list(case.hosts)
    kept = [name for name in names if internet.hosts.kept(case.name)[name]]
    return names[: names.index(kept[0]) + 1] if kept else names


def _posttls_finger(internet: Internet, case: Case, host: str, level: str) -> str:
    """Return the words of posttls-finger about the connection, such as 'Verified'."""
    root = folder() / "postfix"
    place = internet.folder / "postfix"
    if not place.exists():
        place.mkdir()
        (place / "resolv.conf").write_text(
            f"nameserver {internet.names.address}\noptions edns0 trust-ad timeout:2\n"
        )
        (place / "main.cf").write_text(
            "compatibility_level = 3.6\nsmtp_dns_support_level = dnssec\n"
            f"myhostname = relay.example\nshlib_directory = {root}/usr/lib/postfix\n"
        )
    room = furnish(place, ["postfix"], ["postdrop"], {"/etc/resolv.conf": place / "resolv.conf"})
    if level == "secure":
        trusted, target = ["-F", str(internet.authority.path)], f"[{case.fqdn(host)}]"
    else:
        # no CA: without TLSA records it would go on as with level secure. The name of the domain
        # may be in a certificate too.
        trusted, target = [], case.domain if len(case.hosts) == 1 else f"[{case.fqdn(host)}]"
    program = str(root / "usr/sbin/posttls-finger")
    command = room.command(
        [
            *(program, "-c", "-C", "-T", "5", "-t", "5"),
            *("-l", level, "-L", "summary", *trusted),
            f"{target}:{internet.port_of(case)}",
        ]
    )
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env={
            **os.environ,
            "MAIL_CONFIG": str(place),
            "LD_LIBRARY_PATH": f"{root}/usr/lib/postfix:{libraries(root)}",
        },
    )
    text = done.stdout + done.stderr
    found = re.search(r"(\w+) TLS connection established", text)
    return found[1] if found else f"none: {text[-600:]}"


@pytest.mark.needs("postfix", "root")
@pytest.mark.parametrize("case", DANE, ids=lambda case: case.name)
def test_posttls_finger_agrees_about_dane(internet: Internet, case: Case) -> None:
    """It verifies by DANE what queued verifies by DANE, and nothing else."""
    for host in _asked(internet, case):
        ours = _ours(internet, case, host)
        theirs = _posttls_finger(internet, case, host, "dane-only")
        assert (theirs == "Verified") == (ours == "dane"), f"{host}: {ours!r}, they: {theirs}"


@pytest.mark.needs("postfix", "root")
@pytest.mark.parametrize("case", PKIX, ids=lambda case: case.name)
def test_posttls_finger_agrees_about_certificates(internet: Internet, case: Case) -> None:
    """It verifies by CA and name what queued does."""
    for host in case.hosts:
        ours = _ours(internet, case, host)
        theirs = _posttls_finger(internet, case, host, "secure")
        assert (theirs == "Verified") == (ours == "pkix"), f"{host}: {ours!r}, they: {theirs}"


def _s_client(internet: Internet, case: Case, host: str, *words: str) -> bool:
    """Return whether openssl verifies the host's certificate."""
    done = subprocess.run(
        [
            *("openssl", "s_client", "-starttls", "smtp", "-verify_return_error", "-brief"),
            *("-connect", f"{case.address(host)}:{internet.port_of(case)}"),
            *("-name", "relay.example", "-CAfile", str(internet.authority.path), *words),
        ],
        input="QUIT\r\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    return "Verification: OK" in done.stdout + done.stderr


@pytest.mark.parametrize(
    "case",
    [case for case in DANE if case.sign == "secure" and not case.broken],
    ids=lambda case: case.name,
)
def test_openssl_agrees_about_dane(internet: Internet, case: Case) -> None:
    """Openssl, given the TLSA records, verifies what queued verifies by DANE."""
    zone = internet.fill(case, case.zone)
    for host in _asked(internet, case):
        records = re.findall(rf"^_\d+\._tcp\.{host} TLSA (.*)$", zone, re.MULTILINE)
        if not records:
            continue
        words = [word for record in records for word in ("-dane_tlsa_rrdata", record)]
        usable = [r for r in records if r.split()[0] in "23" and r.split()[1] in "01"]
        domain = (case.hosts[host].tls or {}).get("certificate") == "domain"
        words += ["-dane_tlsa_domain", case.domain if domain else case.fqdn(host)]
        theirs = bool(usable) and _s_client(internet, case, host, "-dane_ee_no_namechecks", *words)
        assert theirs == (_ours(internet, case, host) == "dane"), host


@pytest.mark.parametrize("case", PKIX, ids=lambda case: case.name)
def test_openssl_agrees_about_certificates(internet: Internet, case: Case) -> None:
    """Openssl verifies by CA and name what queued does."""
    for host in case.hosts:
        theirs = _s_client(internet, case, host, "-verify_hostname", case.fqdn(host))
        assert theirs == (_ours(internet, case, host) == "pkix"), host


class _FakeNames(aiohttp.abc.AbstractResolver):
    """Leads mta-sts.DOMAIN to the policy server and its port."""

    def __init__(self, address: str, port: int) -> None:
        self._address, self._port = address, port

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[aiohttp.abc.ResolveResult]:
        return [
            aiohttp.abc.ResolveResult(
                hostname=host, host=self._address, port=self._port,
                family=socket.AF_INET, proto=0, flags=0,
            )
        ]  # fmt: skip

    async def close(self) -> None:
        """Do nothing."""


async def _sts_policy(internet: Internet, case: Case, monkeypatch: Any) -> dict[str, Any] | None:
    """Return the policy that postfix-mta-sts-resolver finds, None without one."""
    import aiodns

    address = NOBODY if case.sts.get("unreachable") else ADDRESS
    names = _FakeNames(address, internet.sts_port)
    context = ssl.create_default_context(cafile=str(internet.authority.path))
    real = aiohttp.TCPConnector

    def connector(**words: Any) -> aiohttp.TCPConnector:
        words |= {"resolver": names, "ssl": context}
        return real(**words)

    dns = aiodns.DNSResolver(
        nameservers=["127.0.0.1"],
        udp_port=internet.names.resolver,
        tcp_port=internet.names.resolver,
    )
    monkeypatch.setattr(aiohttp.client, "TCPConnector", connector)
    resolver: Any = STSResolver(loop=asyncio.get_running_loop(), timeout=3)  # type: ignore[no-untyped-call]
    resolver._resolver = dns
    try:
        status, found = await resolver.resolve(case.domain)
    finally:
        await dns.close()
    return found[1] if status is STSFetchResult.VALID and found else None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("case", STS, ids=lambda case: case.name)
async def test_mta_sts_resolver_agrees(
    internet: Internet, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find the same policy, and both find none."""
    internet.wait(case)
    theirs = await _sts_policy(internet, case, monkeypatch)
    rows = internet.system(case).ask(
        "SELECT mode, mx FROM sts_policies WHERE domain = %s", case.domain
    )
    ours = [(row["mode"], sorted(row["mx"])) for row in rows]
    wanted = [(theirs["mode"], sorted(theirs.get("mx", [])))] if theirs else []
    assert ours == wanted, Path(case.name)
