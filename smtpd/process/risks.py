"""Options of smtpd.yaml that are allowed, and that an operator should think about twice."""

from __future__ import annotations

import ipaddress
import os
import struct
from pathlib import Path

from pgmta.config.types import Network
from smtpd.config import Listener, SmtpdConfig

_WIDE_PREFIX_BITS = {4: 8, 6: 16}  # a shorter prefix holds a good part of the Internet
_CONTAINER_FILES = (Path("/.dockerenv"), Path("/run/.containerenv"))
_ROUTES_FILE = Path("/proc/net/route")
_CONTAINER_VARIABLES = ("container", "KUBERNETES_SERVICE_HOST")


def risks(config: SmtpdConfig, gateway: str = "") -> list[str]:
    """Return a sentence for each risk. `gateway` is the one of the container, if this is one."""
    found = [
        f"relay.networks: {network}: its clients may send to any address; that is an open relay"
        for network in config.relay.networks
        if _wide(network)
    ]
    trusting = [listener for listener in config.listen if listener.role != "submission"]
    if gateway and any(ipaddress.ip_address(gateway) in net for net in config.relay.networks):
        found += [
            f"listen[{config.listen.index(listener)}]: relay.networks has {gateway}, from which "
            "connections may come that a proxy or the container's bridge forwards: their clients "
            "may send to any address; use `proxy`, or name narrower networks"
            for listener in trusting
            if not listener.proxy and not ipaddress.ip_address(listener.address).is_loopback
        ]
    found += _of_recipients(config)
    found += _of_certificates(config)
    for number, listener in enumerate(config.listen):
        found += [f"listen[{number}]{text}" for text in _of_listener(config, listener)]
    return found


def _of_certificates(config: SmtpdConfig) -> list[str]:
    """Return certificates that no client ever sees, though an operator named them for TLS."""
    using = [listener for listener in config.listen if config.tls_of(listener) != "none"]
    found = [
        f"listen[{number}].certificates: clients get no TLS, because its `tls` is none"
        for number, listener in enumerate(config.listen)
        if listener.certificates and listener not in using
    ]
    if config.certificates and not any(listener.certificates is None for listener in using):
        found.append("certificates: no listener uses them, so no client gets STARTTLS with them; "
                     "`tls: offered` of a listener does")  # fmt: skip
    return found


def _of_recipients(config: SmtpdConfig) -> list[str]:
    """Return entries of `relay.recipients` that are never asked."""
    entries, domains = config.relay.recipients, config.relay.domains
    if entries and not domains:
        return ["relay.recipients: none is ever asked, because relay.domains is empty"]
    whole = next((n for n, entry in enumerate(entries) if entry.domains is None), len(entries))
    return [
        f"relay.recipients[{number}]: is never asked, because [{whole}] has all domains"
        for number in range(whole + 1, len(entries))
    ]


def _of_listener(config: SmtpdConfig, listener: Listener) -> list[str]:
    found = [
        f".{key}: {network}: its clients may name any {what} as their own"
        for key, what in (("proxy", "address"), ("xclient", "address and user"))
        for network in getattr(listener, key)
        if _wide(network)
    ]
    local = ipaddress.ip_address(listener.address).is_loopback
    if listener.auth_without_tls and config.auth_of(listener) != "none" and not local:
        found.append(".auth_without_tls: passwords can be read on their way")
    relay = listener.role == "relay"
    needed = config.tls_of(listener) in ("required", "implicit")
    if relay and needed and listener.port == 25 and not local:
        found.append(".tls: servers without it can't send to port 25 (RFC 3207, section 4)")
    if listener.trust_traceparent and relay and not local:
        found.append(".trust_traceparent: any client may decide which spans are recorded")
    if listener.client_certificates.authorities and relay:
        found.append(".client_certificates: servers with other certificates can't begin TLS")
    return found


def _wide(network: Network) -> bool:
    return network.prefixlen < _WIDE_PREFIX_BITS[network.version] and not network.is_loopback


def container_gateway() -> str:
    """Return the address from which a container's bridge forwards connections, or nothing."""
    inside = any(path.exists() for path in _CONTAINER_FILES)
    if not inside and not any(name in os.environ for name in _CONTAINER_VARIABLES):
        return ""
    try:
        lines = _ROUTES_FILE.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return ""
    for line in lines:
        words = line.split()
        if len(words) > 2 and words[1] == "00000000":
            return str(ipaddress.IPv4Address(struct.pack("=I", int(words[2], 16))))
    return ""
