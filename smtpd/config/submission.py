"""The section `submission` of smtpd.yaml."""

from __future__ import annotations

from pydantic import Field

from pgmta.config.types import Section


class Submission(Section):
    """Rules for mail of users who have logged in (RFC 6409)."""

    check_from: bool = Field(
        default=True,
        description="refuse a message whose From has an address that the user may not send from",
    )
