"""What each resource of the API gets, and the operations of all of them."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Coroutine
from functools import cached_property
from typing import Any

from pgmta.features import features
from pgmta_features.http_api.config import ApiLimits
from pgmta_features.http_api.database import ApiDatabase
from pgmta_features.http_api.key_ring import KeyRing
from pgmta_features.http_api.operation import Operation
from pgmta_features.http_api.spooled import ListPlaces
from queued.web.site import Site
from queued.web.web_config import WebConfig, whole_web_config

RESOURCES: dict[str, str] = {
    "key": "",
    "messages": "",
    "messages_send": "",
    "description": "",
    "events": "",
    "webhooks": "webhooks",
    "suppressions": "",
    "templates": "",
    "usage": "",
    "campaigns": "campaigns",
}
"""The modules of `resources`, each with the feature that it is about, '' for the core."""

_CONNECTIONS = 8  # beside those that take mail


class Api:
    """The site, the database and the keys, as long as the process lives."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.database = ApiDatabase(site.resources, site.schema, _CONNECTIONS)
        self.lists = ListPlaces()
        self.keys = KeyRing(site.resources, self.spawn)
        self._tasks: set[asyncio.Task[None]] = set()

    @staticmethod
    def unserved() -> Api:
        """Return one that serves nothing, for what is made from its operations."""
        config = whole_web_config().model_validate({"environment": {"hostname": "localhost"}})
        return Api(Site(config, "", []))

    @property
    def config(self) -> WebConfig:
        """The present configuration."""
        return self.site.config

    @property
    def limits(self) -> ApiLimits:
        """The present bounds on clients."""
        return self.config.limits if isinstance(self.config.limits, ApiLimits) else ApiLimits()

    @cached_property
    def operations(self) -> list[Operation]:
        """The operations of the resources whose features are there."""
        known = features()
        found: list[Operation] = []
        for name, feature in RESOURCES.items():
            if not feature or feature in known:
                module = importlib.import_module(f"pgmta_features.http_api.resources.{name}")
                found += module.operations(self)
        return found

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside the requests, which nobody waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
