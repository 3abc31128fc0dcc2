"""Networks to which DNS leads no mail, in all forms of their addresses."""

from __future__ import annotations

import ipaddress

import pytest

from queued.config import Delivery
from queued.delivery.dns.forbidden import ForbiddenNetworks


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("0.1.2.3", "0.0.0.0/8"), ("10.255.0.1", "10.0.0.0/8"), ("100.64.0.1", "100.64.0.0/10"),
        ("100.127.255.254", "100.64.0.0/10"), ("127.0.0.2", "127.0.0.0/8"),
        ("169.254.169.254", "169.254.0.0/16"), ("172.16.0.1", "172.16.0.0/12"),
        ("172.31.255.254", "172.16.0.0/12"), ("192.0.0.8", "192.0.0.0/24"),
        ("192.0.2.1", "192.0.2.0/24"), ("192.168.1.1", "192.168.0.0/16"),
        ("198.18.0.1", "198.18.0.0/15"), ("198.19.255.1", "198.18.0.0/15"),
        ("198.51.100.1", "198.51.100.0/24"), ("203.0.113.1", "203.0.113.0/24"),
        ("224.0.0.1", "224.0.0.0/4"), ("239.255.255.250", "224.0.0.0/4"),
        ("240.0.0.1", "240.0.0.0/4"), ("255.255.255.255", "240.0.0.0/4"),
        ("::", "::/128"), ("::1", "::1/128"), ("100::1", "100::/64"), ("2001:2::1", "2001:2::/48"),
        ("2001:db8::1", "2001:db8::/32"), ("3fff:fff::1", "3fff::/20"), ("5f00::1", "5f00::/16"),
        ("fd00:ec2::254", "fc00::/7"), ("fe80::1%eth0", "fe80::/10"), ("fec0::1", "fec0::/10"),
        ("ff02::1", "ff00::/8"),
        ("::ffff:10.1.2.3", "10.0.0.0/8"), ("64:ff9b::192.168.1.1", "192.168.0.0/16"),
        ("2002:6440:1::1", "100.64.0.0/10"),
        ("8.8.8.8", None), ("100.63.255.255", None), ("100.128.0.1", None), ("172.15.0.1", None),
        ("172.32.0.1", None), ("198.17.0.1", None), ("198.20.0.1", None), ("223.255.255.1", None),
        ("2606:4700::1", None), ("64:ff9b::8.8.8.8", None), ("64:ff9b:1::8.8.8.8", None),
        ("2002:808:808::1", None), ("::ffff:8.8.8.8", None), ("4000::1", None),
    ],
)  # fmt: skip
def test_networks_that_are_forbidden_by_default(address: str, network: str | None) -> None:
    found = ForbiddenNetworks(Delivery().forbidden).find_network(ipaddress.ip_address(address))
    assert (found and str(found)) == network


@pytest.mark.parametrize(
    "address",
    ["::10.1.2.3", "::ffff:10.1.2.3", "::ffff:0:10.1.2.3", "64:ff9b::10.1.2.3",
     "64:ff9b:1::10.1.2.3", "2002:a01:203::1", "2001:0:1:2:3:4:f5fe:fdfc",
     "2001:db8::5efe:a01:203", "2001:db8::200:5efe:a01:203", "::ffff:10.1.2.3%1", "10.1.2.3"],
)  # fmt: skip
def test_ipv4_addresses_in_ipv6_ones(address: str) -> None:
    (ten,) = Delivery.model_validate({"forbidden": ["10.0.0.0/8"]}).forbidden
    assert ForbiddenNetworks([ten]).find_network(ipaddress.ip_address(address)) is ten
    other = ipaddress.ip_network("11.0.0.0/8")
    assert ForbiddenNetworks([other]).find_network(ipaddress.ip_address(address)) is None
