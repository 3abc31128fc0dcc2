"""The key of `queuectl up`, with which its API takes mail."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from pgmta.model import ANY_SENDER
from pgmta.postgres.operator import connected
from pgmta_features.http_api.caller import ANY_CREDENTIAL, ANY_TENANT
from pgmta_features.http_api.commands.key_table import KeyRights, KeyTable
from pgmta_features.http_api.scopes import SCOPES
from pgmta_features.http_api.token import new_token, parse_token
from queued.cli.options.first_step import FirstStep

_KEY = "make-run"
_PORT = 2582  # in etc/dev/api.yaml
_MAIL = (
    '{"sender": "me@example.org", "to": ["you@example.com"], "subject": "first mail",'
    ' "body": "It works."}'
)


async def _prepare(uri: str, directory: Path) -> None:
    """Make the key; a token that is in its file already stays.

    Raises StoreUnavailable, psycopg.Error.
    """
    path = _token_file(directory)
    token = parse_token(path.read_text(encoding="ascii").strip()) if path.exists() else None
    if token is None:
        token = new_token()
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{token}\n")
    rights = KeyRights(
        list(SCOPES), ANY_TENANT, [ANY_SENDER], None, "all", None, [ANY_CREDENTIAL], 0, 9
    )
    async with connected(uri) as db:
        await KeyTable(db, "queuectl up").adopt(_KEY, rights, token)


def _token_file(directory: Path) -> Path:
    return directory / "api.token"


def _hint(directory: Path) -> tuple[str, str]:
    token = shlex.quote(str(_token_file(directory)))
    return "or, by HTTP", (
        f"curl -sS http://127.0.0.1:{_PORT}/v1/messages"
        f' -H "Authorization: Bearer $(cat {token})"'
        f" -H 'Content-Type: application/json' -d '{_MAIL}'"
    )


STEP = FirstStep(
    prepare=_prepare,
    served="is the HTTP API, which /v1/docs describes",
    process="api",
    port=_PORT,
    hint=_hint,
)
