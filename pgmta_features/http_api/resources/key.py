"""The key itself: who am I."""

from __future__ import annotations

from pydantic import BaseModel, Field

from pgmta_features.http_api.api import Api
from pgmta_features.http_api.operation import Answer, Call, Operation, Time


class Key(BaseModel):
    """The key of the request, and what it may do."""

    name: str
    scopes: list[str]
    tenant: str
    senders: list[str]
    credentials: list[str] = Field(description="values of metadata.credential; *: any")
    priorities: list[int] = Field(description="the first and the last that it may ask for")
    sees: str
    expires_at: Time | None = None


async def _own_key(call: Call) -> Answer:
    caller = call.caller
    return Answer(Key(
        name=caller.name, scopes=sorted(caller.scopes), tenant=caller.tenant,
        senders=list(caller.senders), credentials=list(caller.credentials),
        priorities=list(caller.priorities), sees=caller.sees, expires_at=caller.expires_at,
    ))  # fmt: skip


def operations(api: Api) -> list[Operation]:
    """Return the operations."""
    return [
        Operation(
            method="GET",
            path="/v1/key",
            scope="",
            summary="Show the key of this request",
            handler=_own_key,
            answers={200: Key},
        )
    ]
