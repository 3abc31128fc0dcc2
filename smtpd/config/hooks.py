"""The hooks of smtpd.yaml, and the bounds on them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from pgmta.config.types import Period, Section, Size, Whole

_IDENTIFIER = r"[^\W\d]\w*"
_REFERENCE = re.compile(rf"{_IDENTIFIER}(\.{_IDENTIFIER})*:{_IDENTIFIER}(\.{_IDENTIFIER})*")


class HookEntry(Section):
    """A handler of the operator's own, in the interface of aiosmtpd (docs/programs/hooks.md)."""

    handler: str | None = Field(
        default=None, description="package.module:Name of a class, an object or a function"
    )
    authenticator: str | None = Field(
        default=None,
        description="in place of handler: package.module:Name of a class or function that judges "
        "passwords",
    )
    arguments: list[Any] = Field(default=[], description="for the class or the function")
    sync: Literal["loop", "thread"] = Field(
        default="loop",
        description="thread: its methods may block, and run in a pool of hook_limits.threads "
        "threads; loop: in one event loop",
    )
    on_failure: Literal["accept", "defer", "reject"] = Field(
        default="defer",
        description="what follows if it raises, does not answer or answers nonsense; accept: as if "
        "it left the command to smtpd; defer: 451 4.3.0; reject: 554 5.3.0",
    )

    @field_validator("handler", "authenticator")
    @classmethod
    def _is_reference(cls, value: str | None) -> str | None:
        if value is not None and not _REFERENCE.fullmatch(value):
            raise ValueError(f"expected package.module:Name, not {value!r}")
        return value

    @model_validator(mode="after")
    def _one_of_both(self) -> HookEntry:
        if bool(self.handler) == bool(self.authenticator):
            raise ValueError("expected either handler or authenticator")
        return self

    @property
    def reference(self) -> str:
        """The text of handler or authenticator."""
        return self.handler or self.authenticator or ""


def _parse_hook(value: object) -> object:
    """Read `package.module:Name` alone, which is the usual case."""
    return {"handler": value} if isinstance(value, str) else value


Hooks = list[Annotated[HookEntry, BeforeValidator(_parse_hook)]]


class HookLimits(Section):
    """Bounds on what hooks may use, per handler and process."""

    time: Period = Field(default=60.0, description="for the answer of a hook, then 451 4.3.0")
    threads: Whole = Field(
        default=16,
        ge=1,
        le=256,
        description="threads for methods that block, beside that of the event loop",
    )
    content: Size = Field(
        default=50 << 20,
        description="content of a message that handle_DATA gets as bytes; larger content is a file",
    )
