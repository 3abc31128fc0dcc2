"""URLs of endpoints, conditions, and the hosts that may be asked."""

from __future__ import annotations

import ipaddress
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgmta_features.webhooks.endpoint import EndpointUrl, fits, is_foreign, read_condition
from pgmta_features.webhooks.reach import Reach, Unreachable, check_public, is_public
from pgmta_features.webhooks.retries import MAX_WAIT_S, Halving, wait_after


def test_a_url_is_read_as_a_request_needs_it() -> None:
    found = EndpointUrl.parse("https://Shop.Example:8443/hook?a=b")
    assert (found.tls, found.host, found.port, found.target) == (
        True, "shop.example", 8443, "/hook?a=b",
    )  # fmt: skip
    assert found.authority == "shop.example:8443"
    assert EndpointUrl.parse("http://[2001:DB8::1]").authority == "[2001:db8::1]"


@pytest.mark.parametrize("text", [
    "ftp://shop.example/", "https://", "https://user:secret@shop.example/", "https://a b/",
    "https://shop.example/#x", "https://shop.example:0/", "https://shop.example:99999/", "//x",
    "https://sh\nop.example/", "https://shöp.example/", "https://[::1/", "https://x" + "y" * 2000,
    "https://shop.example\\@evil.example/", "https://-/", "javascript:alert(1)",
    "https://127.1/", "https://2130706433/", "https://0x7f.1/", "https://127.0.0.1./",
])  # fmt: skip
def test_other_texts_are_no_url(text: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        EndpointUrl.parse(text)
    assert "secret" not in str(error.value)


PUBLIC = ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "64:ff9b::5db8:d70e"]
INWARD = [
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1",
    "169.254.169.254", "192.0.2.1", "198.18.0.1", "224.0.0.1", "233.252.0.1", "240.0.0.1",
    "255.255.255.255", "::", "::1", "fe80::1", "fc00::1", "fd12::1", "fec0::1", "ff02::1",
    "ff0e::1", "2001:db8::1", "::ffff:127.0.0.1", "::ffff:93.184.215.14", "::127.0.0.1",
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2002:a00:1::",
    "2001:0:7f00:1::1", "2606:2800::5efe:7f00:1", "100::1", "5f00::1", "192.88.99.1", "3fff::1",
    "192.0.0.9", "192.31.196.1", "192.52.193.1", "192.175.48.1", "168.63.129.16", "2001:1::1",
    "2001:20::1", "2620:4f:8000::1", "64:ff9b::a83f:8110",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", INWARD)
async def test_addresses_that_only_we_reach(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))

    async def find(_: str) -> list[str]:
        return [address]

    reach = Reach([], find)
    with pytest.raises(Unreachable):
        await reach.find_addresses(EndpointUrl.parse("https://shop.example"), foreign=False)


@given(st.ip_addresses(v=4, network="10.0.0.0/8") | st.ip_addresses(v=4, network="127.0.0.0/8"))
def test_no_form_of_an_inward_address_is_public(inner: ipaddress.IPv4Address) -> None:
    number = int(inner)
    for outer in (
        number,
        (0xFFFF << 32) | number,
        (0x64FF9B << 96) | number,
        (0x2002 << 112) | (number << 80),
        (0x20010000 << 96) | (number ^ 0xFFFFFFFF),
        (0x2606 << 112) | (0x5EFE << 32) | number,
    ):
        assert not is_public(ipaddress.IPv6Address(outer))


async def test_what_a_host_may_be() -> None:
    async def find(name: str) -> list[str]:
        return {"both": ["10.0.0.1", "93.184.215.14"], "inner": ["10.0.0.1"]}.get(
            name, ["93.184.215.14"]
        )

    reach = Reach([ipaddress.ip_network("10.0.0.0/8")], find)

    async def found(url: str, *, foreign: bool = False) -> list[str]:
        return await reach.find_addresses(EndpointUrl.parse(url), foreign=foreign)

    assert await found("https://both/") == ["10.0.0.1", "93.184.215.14"]
    assert await found("http://both/") == ["10.0.0.1"]
    assert await found("http://inner:99/") == ["10.0.0.1"]
    assert await found("https://both/", foreign=True) == ["93.184.215.14"]
    for url, reason in {
        "http://public/": "by https alone",
        "https://public:25/": "not asked at port 25",
    }.items():
        with pytest.raises(Unreachable, match=reason):
            await found(url)
    with pytest.raises(Unreachable, match="no public address") as error:
        await found("https://inner/", foreign=True)
    assert "10.0.0.1" not in str(error.value)  # a tenant learns nothing of our network


def test_urls_that_no_foreign_endpoint_can_have() -> None:
    assert not is_foreign(None, None, "ops")
    assert is_foreign(None, "key:shop", "ops")
    for url in ("https://shop.example/", "https://93.184.215.14:8443/", "https://[2606:4700::1]/"):
        check_public(EndpointUrl.parse(url))
    for url, reason in {
        "https://10.0.0.1/": "no public address",
        "https://[::1]/": "no public address",
        "https://localhost/": "no public address",
        "http://shop.example/": "by https alone",
        "https://shop.example:25/": "port 25",
    }.items():
        with pytest.raises(ValueError, match=reason):
            check_public(EndpointUrl.parse(url))


def test_a_condition_is_that_of_filters() -> None:
    condition = read_condition({"sender": ["*@shop.example"], "metadata": ["campaign=spring"]})
    event = {"sender": "Shop@SHOP.example", "recipient": "a@b.example",
             "metadata": {"campaign": "spring"}}  # fmt: skip
    assert fits(condition, json.dumps(event))
    assert not fits(condition, json.dumps(event | {"metadata": {}}))
    assert not fits(condition, json.dumps(event | {"sender": "shop@other.example"}))
    one_of = read_condition({"domain": ["c.example"]})
    accepted = {"sender": "x@y.example", "recipients": ["a@b.example", "a@c.example"]}
    assert fits(one_of, json.dumps(accepted))
    assert not fits(one_of & condition, json.dumps(accepted))
    assert not fits(one_of, json.dumps(accepted | {"recipients": ["a@b.example"]}))


@pytest.mark.parametrize(("given_one", "named"), [
    ({"recipent": ["a"]}, "recipient"),
    ({"sender": "a@b.example"}, "sender: expected a list"),
    ({"sender": [1]}, "sender: expected a list"),
    ({"metadata": ["no pair"]}, "metadata"),
    ({"sender": ["a\0b"]}, "sender"),
    ({"sender": ["x" * 501]}, "500 characters"),
    ({"sender": ["x"] * 101}, "100 texts"),
    ({"recipient": ["*x*"] * 6, "domain": ["*.x"] * 5}, "at most 10 texts about recipients"),
    ({"where": ["true); DROP TABLE queue; --"]}, "unknown key"),
])  # fmt: skip
def test_what_is_no_condition_is_named(given_one: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        read_condition(given_one)


def test_pauses_grow_up_to_two_hours_and_retry_after_makes_them_longer() -> None:
    waits = [wait_after(failures, None) for failures in range(1, 12)]
    assert 4 < waits[0] < 6
    assert all(before < after for before, after in pairwise(waits[:7]))
    assert 0.9 * MAX_WAIT_S <= waits[-1] <= 1.1 * MAX_WAIT_S
    assert wait_after(1, 20.0) == 20
    assert wait_after(1, 0.0) > 4
    assert wait_after(9, 20.0) > 0.8 * MAX_WAIT_S
    assert wait_after(1, 1e9) == MAX_WAIT_S


@given(st.sets(st.integers(0, 99), max_size=8))
def test_halving_finds_each_event_that_is_refused(bad: set[int]) -> None:
    aside, halving, at = [], Halving(100), 0
    while at < 100:
        part = range(at, min(at + halving.size, 100))
        if bad.isdisjoint(part):
            at += len(part)
            halving.accepted()
        elif not halving.refused(len(part)):
            aside.append(part[0])
            halving.set_aside()
            at += 1
    assert aside == sorted(bad)
