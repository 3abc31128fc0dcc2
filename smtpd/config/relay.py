"""The section `relay` of smtpd.yaml: who may send, to which domains and recipients."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from pgmta.config.types import (
    FilePath,
    HostPort,
    NetworkList,
    Section,
    parse_host_port,
)
from pgmta.selection import Term
from smtpd.config.listener_role import parse_domain


class CalloutSettings(Section):
    """Ask the next hop, by RCPT without a message."""

    hosts: list[Annotated[HostPort, BeforeValidator(parse_host_port)]] = Field(
        min_length=1, description="host:port of next hops, asked in this order"
    )
    unavailable: Literal["defer", "accept"] = Field(
        default="defer",
        description="for a recipient that was never accepted while no next hop answers: defer "
        "(451 4.4.3), or accept",
    )


class RecipientsEntry(Section):
    """One of a file, the table recipients and a callout, for some domains."""

    domains: list[Annotated[str, AfterValidator(parse_domain)]] | None = Field(
        default=None, description="of relay.domains; null: all of them"
    )
    file: FilePath | None = Field(
        default=None, description="an address or @domain per line; read again when it changes"
    )
    table: bool = Field(default=False, description="the table recipients of the database")
    callout: CalloutSettings | None = Field(
        default=None, description="ask the next hop: host:port, or hosts and options"
    )
    delimiter: str | None = Field(
        default=None,
        pattern=r"[!#$%&'*+/=?^_`{|}~.-]",
        max_length=1,
        description="the character before a tag, such as +: user+tag is known if user is",
    )

    @field_validator("callout", mode="before")
    @classmethod
    def _short(cls, value: object) -> object:
        """Read `host:port` alone, which is the usual case."""
        return {"hosts": [value]} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_source(self) -> RecipientsEntry:
        if bool(self.file) + self.table + bool(self.callout) != 1:
            raise ValueError("needs one of: file, table: true, callout")
        if self.delimiter and self.callout:
            raise ValueError("delimiter is for file and table: the next hop knows its tags")
        return self


class Relay(Section):
    """The relay policy; smtpd refuses all other mail: it is no open relay."""

    networks: NetworkList = Field(
        default=[ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128")],
        description="clients in these networks may send to any address",
    )
    domains: list[Annotated[str, AfterValidator(parse_domain)]] = Field(
        default=[], description="any client may send to recipients in these domains (or *.domain)"
    )
    recipients: list[RecipientsEntry] = Field(
        default=[],
        description="sources of the recipients of these domains; without an entry every recipient "
        "is taken; the first entry with the domain decides",
    )

    @model_validator(mode="after")
    def _of_domains(self) -> Relay:
        served = Term.of("domain", self.domains)
        for number, entry in enumerate(self.recipients):
            for domain in entry.domains or ():
                if not served.fits(domain):
                    raise ValueError(
                        f"recipients[{number}].domains: {domain!r} is not in relay.domains"
                    )
        return self
