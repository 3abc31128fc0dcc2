"""The section `relay` of smtpd.yaml."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from pgmta.config.types import NetworkList, Section
from smtpd.config.recipients import Recipients
from smtpd.config.values import parse_domain
from smtpd.domain_set import DomainSet


class Relay(Section):
    """The relay policy; smtpd refuses all other mail: it is no open relay."""

    networks: NetworkList = Field(
        default=[ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128")],
        description="clients in these networks may send to any address",
    )
    domains: list[Annotated[str, AfterValidator(parse_domain)]] = Field(
        default=[], description="any client may send to recipients in these domains (or *.domain)"
    )
    recipients: list[Recipients] = Field(
        default=[],
        description="sources of the recipients of these domains; without an entry every recipient "
        "is taken; the first entry with the domain decides",
    )

    @model_validator(mode="after")
    def _of_domains(self) -> Relay:
        served = DomainSet(self.domains)
        for number, entry in enumerate(self.recipients):
            for domain in entry.domains or ():
                if domain not in served:
                    raise ValueError(
                        f"recipients[{number}].domains: {domain!r} is not in relay.domains"
                    )
        return self
