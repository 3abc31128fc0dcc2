"""Tokens of accounts that come back, from programs and from pages."""

from __future__ import annotations

from typing import Annotated, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError, model_validator

from pgmta.compose.token import ACTION_NAME, Purpose
from pgmta.http.answers import JSON_TYPE, HttpError
from pgmta.http.request_body import read_body
from pgmta_features.lifecycle.config import PURPOSES
from queued.web.requests import FORM, MAX_CHARACTERS, form_fields

_Text = Annotated[str, StringConstraints(max_length=MAX_CHARACTERS, strict=True)]

_ACTIONS = {purpose: name for name, purpose in PURPOSES.items()}

type OrderPurpose = Literal[Purpose.ACTIVATE, Purpose.RECOVER, Purpose.CONFIRM]


class TokenOrder(BaseModel):
    """A token that comes back: its purpose, the action of CONFIRM, and its code if it has one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    purpose: OrderPurpose
    action: _Text = ""
    token: _Text
    code: _Text = ""

    @model_validator(mode="after")
    def _one_action(self) -> TokenOrder:
        if self.purpose is not Purpose.CONFIRM:
            if self.action:
                raise ValueError("action is for the purpose confirm")
        elif not is_confirmed(self.action):
            raise ValueError("the purpose confirm needs an action")
        return self

    @property
    def path(self) -> str:
        """The path of its page."""
        return f"{self.purpose.path}/{self.action}" if self.action else self.purpose.path

    @property
    def action_name(self) -> str:
        """The name of its action in the database."""
        return _ACTIONS.get(self.purpose, self.action)


def is_confirmed(action: str) -> bool:
    """Return whether a text can be the name of an action whose tokens have the purpose CONFIRM."""
    return bool(ACTION_NAME.fullmatch(action)) and action not in PURPOSES


async def read_order(request: web.Request) -> TokenOrder:
    """Return the order of a program. Raises HttpError."""
    body = await read_body(request, JSON_TYPE)
    try:
        return TokenOrder.model_validate_json(body)
    except ValidationError as error:
        detail = error.errors(include_input=False, include_context=False, include_url=False)[0]
        name = str(detail["loc"][0]) if detail["loc"] else ""
        if name in TokenOrder.model_fields:
            reason = f"{name}: {detail['msg']}"
        elif detail["type"] == "value_error":
            reason = detail["msg"].removeprefix("Value error, ")
        else:
            reason = "unknown member" if name else "no JSON"
        raise HttpError(400, f"The body is no order of a token: {reason}.") from None


async def read_form(request: web.Request, purpose: OrderPurpose, action: str) -> TokenOrder:
    """Return the order of a form. Raises HttpError. Values that are too long are shortened."""
    fields = form_fields(await read_body(request, FORM))
    return TokenOrder(
        purpose=purpose,
        action=action,
        token=fields.get("token", "")[:MAX_CHARACTERS],
        code=fields.get("code", "").strip()[:MAX_CHARACTERS],
    )
