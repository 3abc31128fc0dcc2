"""Bodies of requests: read within bounds, as JSON or as a form."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qsl

from aiohttp import web
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from pgmta.compose.token import Purpose
from queued.web.http_answers import HttpError

_FORM = "application/x-www-form-urlencoded"
_JSON = "application/json"
_FIELDS = 5
_LONGEST = 200  # characters of a value that is looked at

_Text = Annotated[str, StringConstraints(max_length=_LONGEST, strict=True)]


class TokenOrder(BaseModel):
    """A token that comes back, its purpose, and the code of a recovery."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    purpose: Purpose
    token: _Text
    code: _Text = ""


async def read_body(request: web.BaseRequest, kind: str, most: int) -> bytes:
    """Return the body. Raises HttpError for another type, and for a body that is too long."""
    if request.content_type != kind:
        raise HttpError(415, f"The body has to be {kind}.", {"Accept": kind})
    body = b""
    if (request.content_length or 0) <= most:
        while len(body) <= most and (part := await request.content.readany()):
            body += part
        if len(body) <= most:
            return body
    raise HttpError(413, f"The body has more than {most} octets.", {"Connection": "close"})


async def read_order(request: web.BaseRequest, most: int) -> TokenOrder:
    """Return the order of a program. Raises HttpError."""
    body = await read_body(request, _JSON, most)
    try:
        return TokenOrder.model_validate_json(body)
    except ValidationError as error:
        detail = error.errors(include_input=False, include_context=False, include_url=False)[0]
        name = str(detail["loc"][0]) if detail["loc"] else ""
        known = name in TokenOrder.model_fields
        reason = f"{name}: {detail['msg']}" if known else "unknown member" if name else "no JSON"
        raise HttpError(400, f"The body is no order of a token: {reason}.") from None


async def read_form(request: web.BaseRequest, purpose: Purpose, most: int) -> TokenOrder:
    """Return the order of a form. Raises HttpError. Values that are too long are shortened."""
    body = await read_body(request, _FORM, most)
    try:
        fields = dict(parse_qsl(body.decode("ascii"), max_num_fields=_FIELDS))
    except ValueError:
        raise HttpError(400, "The body is no form.") from None
    return TokenOrder(
        purpose=purpose,
        token=fields.get("token", "")[:_LONGEST],
        code=fields.get("code", "").strip()[:_LONGEST],
    )
