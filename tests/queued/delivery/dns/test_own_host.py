"""Which addresses are those of this host."""

from __future__ import annotations

import ipaddress

import psutil
import pytest

from queued.delivery.dns import hosts
from queued.delivery.dns.hosts import OwnHost


def addresses() -> list[str]:
    """Return the addresses of all interfaces, by another library."""
    found = [each.address for nets in psutil.net_if_addrs().values() for each in nets]
    ips = []
    for each in found:
        try:
            ips.append(ipaddress.ip_address(each.partition("%")[0]))
        except ValueError:  # of an Ethernet card
            continue
    return [str(ip) for ip in ips if not (ip.is_loopback or ip.is_link_local)]


@pytest.mark.parametrize("binds_all", [False, True])
def test_addresses_of_interfaces(binds_all: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    own = OwnHost("Relay.Example.")
    assert not own._binds_all, "ip_nonlocal_bind is set on this machine"
    own._binds_all = binds_all
    for address in addresses():
        assert own.has_address(ipaddress.ip_address(address)) or binds_all, address
        if ":" not in address:
            mapped = ipaddress.ip_address(f"::ffff:{address}")
            assert own.has_address(mapped) == own.has_address(ipaddress.ip_address(address))
    for address in (
        "203.0.113.99",
        "2001:db8::99",
        "127.0.0.1",
        "::1",
        "0.0.0.0",
        "::",
        "224.0.0.1",
    ):
        assert not own.has_address(ipaddress.ip_address(address)), address
    monkeypatch.setattr(hosts, "_binds", lambda address: True)
    assert OwnHost("x")._binds_all


def test_name() -> None:
    own = OwnHost("Relay.Example.")
    assert own.has_name("relay.example")
    assert not own.has_name("elay.example")
