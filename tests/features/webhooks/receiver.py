"""A receiver of events, which answers each path as the test says."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from tests.features.providers.scripted_server import Got, said
from tests.support.threaded_server import ThreadedServer

type Answering = Callable[[Got], list[bytes]]

OK = said("204 No Content")


class Receiver(ThreadedServer):
    """Takes batches; `answering` has the answer of a path, and other paths are accepted."""

    def __init__(self) -> None:
        self.answering: defaultdict[str, Answering] = defaultdict(lambda: lambda _: OK)
        super().__init__(lambda got: self.answering[path_of(got)](got))

    def url(self, path: str = "/") -> str:
        return self.url_of(path)

    def got(self, path: str = "/") -> list[Got]:
        """The requests at a path, also those that were not accepted."""
        return [each for each in self.requests if path_of(each) == path]

    def events(self, path: str = "/") -> list[dict[str, Any]]:
        """Their events, in order."""
        return [event for each in self.got(path) for event in events_of(each)]


def path_of(got: Got) -> str:
    return got.line.split()[1]


def events_of(got: Got) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(got.body)["data"]
    return found
