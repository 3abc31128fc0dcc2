"""A test event, which `queuectl webhook test` posts as queued would."""

from __future__ import annotations

import json
import secrets as random_octets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pgmta_features.webhooks.endpoint import EndpointUrl, is_foreign
from pgmta_features.webhooks.endpoint_loop import batch_body
from pgmta_features.webhooks.leased_webhooks import EventRow
from pgmta_features.webhooks.posting import EndpointConnection, Posted
from pgmta_features.webhooks.reach import find_reach
from pgmta_features.webhooks.signing import Secrets, signed_fields
from queued.config import QueuedConfig
from queued.delivery.tls.tls_contexts import TlsContexts


async def try_endpoint(config: QueuedConfig, secrets: Secrets, row: Mapping[str, Any]) -> Posted:
    """Post a test event to an endpoint, by its row, and return the outcome."""
    secret = secrets.find(row["secret"])
    if secret is None:
        return Posted(0, Secrets.missing(row["secret"]))
    now = datetime.now(UTC)
    message = f"test_{random_octets.token_hex(8)}"
    event = {"id": message, "type": "mail.test", "time": now.isoformat().replace("+00:00", "Z")}
    body = batch_body([EventRow("", message, now, json.dumps(event))])
    foreign = is_foreign(row["tenant"], row["viewer"], row["created_by"])
    url, contexts = EndpointUrl.parse(row["url"]), TlsContexts(config.delivery.tls)
    connection = EndpointConnection(url, find_reach(config), lambda: contexts.pkix, foreign=foreign)
    try:
        return await connection.post(signed_fields([secret], message, now, body), body)
    finally:
        connection.close()
