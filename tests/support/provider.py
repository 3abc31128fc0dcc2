"""An HTTP interface of a provider for scenarios."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from typing import Any

from tests.features.providers.scripted_server import Got, said
from tests.support.threaded_server import ThreadedServer

type Answering = Callable[[Any], list[bytes]]
"""Returns the parts of the answer to a JSON document."""

OK = said("202 Accepted", b'{"id": "7"}')


class Provider(ThreadedServer):
    """Takes JSON documents; `answering` may be exchanged at any time."""

    def __init__(
        self, answering: Answering = lambda _: OK, tls: ssl.SSLContext | None = None
    ) -> None:
        self.answering = answering
        super().__init__(lambda got: self.answering(json.loads(got.body)), tls)

    @property
    def url(self) -> str:
        return self.url_of("/v1/send")

    @property
    def got(self) -> list[Got]:
        return self.requests

    @property
    def documents(self) -> list[Any]:
        return [json.loads(each.body) for each in self.requests]
