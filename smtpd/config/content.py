"""The section `content` of smtpd.yaml."""

from __future__ import annotations

from pydantic import Field

from pgmta.config.types import Section
from smtpd.config.role import BareNewlines


class Content(Section):
    """Rules for content on the wire."""

    bare_newlines: BareNewlines | None = Field(
        default=None,
        description="bare CR or LF: guard keeps them but refuses an end of data for lenient "
        "servers; reject refuses them all; null: by role of the listener, relay reject, others "
        "guard",
    )
