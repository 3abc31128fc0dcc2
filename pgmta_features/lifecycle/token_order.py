"""Tokens of accounts that come back, from programs and from pages."""

from __future__ import annotations

from typing import Annotated, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from pgmta.compose.token import Purpose
from pgmta.http.answers import JSON_TYPE, HttpError
from pgmta.http.request_body import read_body
from queued.web.requests import FORM, MAX_CHARACTERS, form_fields

_Text = Annotated[str, StringConstraints(max_length=MAX_CHARACTERS, strict=True)]


class TokenOrder(BaseModel):
    """A token that comes back, its purpose, and the code of a recovery."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    purpose: Literal[Purpose.ACTIVATE, Purpose.RECOVER]
    token: _Text
    code: _Text = ""


async def read_order(request: web.Request) -> TokenOrder:
    """Return the order of a program. Raises HttpError."""
    body = await read_body(request, JSON_TYPE)
    try:
        return TokenOrder.model_validate_json(body)
    except ValidationError as error:
        detail = error.errors(include_input=False, include_context=False, include_url=False)[0]
        name = str(detail["loc"][0]) if detail["loc"] else ""
        known = name in TokenOrder.model_fields
        reason = f"{name}: {detail['msg']}" if known else "unknown member" if name else "no JSON"
        raise HttpError(400, f"The body is no order of a token: {reason}.") from None


async def read_form(
    request: web.Request, purpose: Literal[Purpose.ACTIVATE, Purpose.RECOVER]
) -> TokenOrder:
    """Return the order of a form. Raises HttpError. Values that are too long are shortened."""
    fields = form_fields(await read_body(request, FORM))
    return TokenOrder(
        purpose=purpose,
        token=fields.get("token", "")[:MAX_CHARACTERS],
        code=fields.get("code", "").strip()[:MAX_CHARACTERS],
    )
