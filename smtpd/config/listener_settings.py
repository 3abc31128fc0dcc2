"""An entry of `listen` in smtpd.yaml, with its certificates, and the entries of `bounces`."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from pgmta.config.types import FilePath, NetworkList, Section, Whole, parse_listen_address
from pgmta.features import import_paths
from smtpd.config.hooks import Hooks
from smtpd.config.listener_role import Auth, Early, Tls

type Audience = Literal["anybody", "authenticated", "none"]
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


class BounceRule(Section):
    """Clients or users, and whether their mail is bounced."""

    networks: NetworkList | None = Field(
        default=None, min_length=1, description="of clients; absent: any"
    )
    users: list[str] | None = Field(
        default=None, min_length=1, description="names of users who have logged in; absent: any"
    )
    audience: Audience = Field(
        alias="for",
        description="anybody, authenticated or none, instead of `bounces` of the listener",
    )

    @model_validator(mode="after")
    def _of_somebody(self) -> BounceRule:
        if self.networks is None and self.users is None:
            raise ValueError("needs networks or users; `bounces` of a listener is for all clients")
        if self.users is not None and self.networks is None and self.audience == "authenticated":
            raise ValueError("users have logged in: for is anybody or none")
        return self


class Certificate(Section):
    """A certificate of this host with its key."""

    certificate: FilePath = Field(
        description="PEM file, relative to this one: the certificate, then those of the "
        "authorities below the root"
    )
    key: FilePath | None = Field(
        default=None, description="PEM file of its private key; null: it is in the same file"
    )


def _parse(value: object) -> object:
    """Read the path of a file alone, which has certificate and key."""
    return {"certificate": value} if isinstance(value, str) else value


Certificates = list[Annotated[Certificate, BeforeValidator(_parse)]]


def _parse_fingerprint(value: str) -> str:
    digits = value.replace(":", "").lower()
    if not _FINGERPRINT.fullmatch(digits):
        raise ValueError("expected the 64 hexadecimal digits of a SHA-256 fingerprint")
    return digits


class ClientCertificates(Section):
    """Certificates by which clients may send to any address."""

    authorities: FilePath | None = Field(
        default=None,
        description="PEM file of the authorities, or of the clients' certificates themselves: "
        "clients are asked for a certificate, and with any other one they can't begin TLS",
    )
    names: list[Annotated[str, AfterValidator(str.lower)]] = Field(
        default=[], description="names of trusted clients: host names or mail addresses"
    )
    fingerprints: list[Annotated[str, AfterValidator(_parse_fingerprint)]] = Field(
        default=[], description="SHA-256 fingerprints of trusted certificates"
    )

    @model_validator(mode="after")
    def _someone(self) -> ClientCertificates:
        named = bool(self.names or self.fingerprints)
        if self.authorities and not named:
            raise ValueError("needs names or fingerprints of the clients that are trusted")
        if named and not self.authorities:
            raise ValueError("needs authorities, whose certificates are asked for")
        return self


class Listener(Section):
    """One address and port."""

    name: str | None = Field(
        default=None, description="for metadata from listener; absent: address:port"
    )

    address: Annotated[str, AfterValidator(parse_listen_address)] = Field(
        default="127.0.0.1", description="IP address; 0.0.0.0 or :: for all"
    )
    port: Whole = Field(default=2525, ge=1, le=65535, description="TCP port")
    socket: Path | None = Field(
        default=None,
        description="path of a Unix socket, instead of address and port; its clients count as "
        "127.0.0.1",
    )
    protocol: Literal["smtp", "lmtp"] = Field(
        default="smtp",
        description="lmtp: LHLO instead of EHLO, and a reply for each recipient (RFC 2033)",
    )
    role: Literal["relay", "submission", "internal"] = Field(
        default="relay",
        description="relay: mail from other servers; submission: mail of users who log in; "
        "internal: mail of own hosts; sets the defaults of the other options",
    )
    tls: Tls | None = Field(
        default=None,
        description="none; offered: STARTTLS; required: no mail without it; implicit: TLS from the "
        "first octet; null: by role, relay and internal offered if there are certificates, "
        "submission required",
    )
    certificates: Certificates | None = Field(
        default=None, min_length=1, description="of this listener; null: those of the top level"
    )
    client_certificates: ClientCertificates = Field(default=ClientCertificates())
    auth: Auth | None = Field(
        default=None,
        description="none, offered or required; null: by role, submission required, others none",
    )
    auth_without_tls: bool = Field(
        default=False, description="take passwords in plain text; only for networks that you trust"
    )
    early: Early | None = Field(
        default=None,
        description="a client that sends before the greeting, before the reply to EHLO or instead "
        "of waiting for another reply: allow or refuse; null: by role, relay refuse, others allow",
    )
    proxy: NetworkList = Field(
        default=[],
        description="clients in these networks must begin with a PROXY header (v1 or v2), which "
        "says who the client is",
    )
    xclient: NetworkList = Field(
        default=[],
        description="clients in these networks may say by XCLIENT who the client is, and as which "
        "user it has logged in with them",
    )
    trust_traceparent: bool = Field(
        default=False,
        description="take the trace context of mail from its field Traceparent; only for clients "
        "that you trust, because the field decides whether spans are recorded",
    )
    hooks: Hooks | None = Field(
        default=None, description="handlers of this listener; absent: those of the top level"
    )
    relay: Literal["policy", "hook"] = Field(
        default="policy",
        description="who accepts recipients: the section relay, which hooks only narrow, or the "
        "handle_RCPT of a hook alone",
    )
    suppressed: Literal["accept", "refuse"] = Field(
        default="accept",
        description="mail of clients that may send to any address, for a recipient on the list of "
        "suppressions: accept, and it ends before its attempt; or refuse at RCPT",
    )
    on_failed: Literal["bounce", "hold", "remove"] = Field(
        default="bounce",
        description="what becomes of mail that fails; bounce: its sender gets a DSN; hold: it "
        "waits for an operator; remove: it goes, and the log has it",
    )
    bounces: Audience = Field(
        default="anybody",
        description="whose mail is bounced: anybody, authenticated (logged in, or with a trusted "
        "certificate) or none; other mail that fails is held",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Listener:
        given = self.model_fields_set & {"address", "port"}
        if self.socket and given:
            raise ValueError(f"socket and {given.pop()} exclude each other")
        if self.suppressed == "refuse" and not any(import_paths("recipient_looks")):
            raise ValueError("suppressed: refuse needs the feature suppressions")
        if self.socket and not self.socket.is_absolute():
            raise ValueError("socket needs an absolute path")
        if self.on_failed != "bounce" and "bounces" in self.model_fields_set:
            raise ValueError(f"bounces is never used, because on_failed is {self.on_failed}")
        if self.protocol == "lmtp" and self.port == 25 and not self.socket:
            raise ValueError("protocol lmtp must not use port 25 (RFC 2033, section 5)")
        return self

    def meets(self, other: Listener) -> bool:
        """Return whether only one of both can be bound. IPv6 sockets take no IPv4."""
        if self.socket or other.socket:
            return self.socket == other.socket
        both = {ipaddress.ip_address(self.address), ipaddress.ip_address(other.address)}
        if self.port != other.port or len({address.version for address in both}) > 1:
            return False
        return len(both) == 1 or any(address.is_unspecified for address in both)

    @property
    def label(self) -> str:
        """The value of metadata from listener."""
        return self.name or str(self.socket or f"{self.address}:{self.port}")
