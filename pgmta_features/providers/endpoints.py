"""The endpoints of a destination: their parsed texts, and whose turn it is."""

from __future__ import annotations

import time
from collections.abc import Iterable

from pgmta_features.providers.http_parameters import HttpParameters
from pgmta_features.providers.http_request import RequestWriter, Target

_REST_S = 30.0  # after a failed connection other endpoints go first for so long


class Endpoints:
    """The endpoints of a destination, which take turns by their weights."""

    def __init__(self, parameters: HttpParameters) -> None:
        settings = parameters.settings
        self.parameters = parameters
        self.writer = RequestWriter(settings)
        self.targets = [Target.of(each) for each in settings.url]
        self._weights = [each.weight for each in settings.url]
        self._credit = [0] * len(self.targets)
        self._rests = [0.0] * len(self.targets)

    def take_turn(self, among: Iterable[int]) -> int:
        """Return the endpoint among those given whose turn it is.

        The turns are those of the smooth weighted round robin of nginx. An endpoint that could not
        be reached has at most one round to catch up.
        """
        whole = sum(self._weights)
        pairs = zip(self._credit, self._weights, strict=True)
        self._credit = [min(credit + weight, whole) for credit, weight in pairs]
        first = max(among, key=self._credit.__getitem__)
        self._credit[first] -= whole
        return first

    def in_order(self) -> list[int]:
        """Return all endpoints for a first connection; those that failed lately come last."""
        if len(self.targets) == 1:
            return [0]
        first = self.take_turn(range(len(self.targets)))
        places = sorted(range(len(self.targets)), key=lambda n: (n != first, -self._weights[n]))
        return sorted(places, key=self.rests)

    def rests(self, place: int) -> bool:
        """Return whether a connection to the endpoint has failed within the last 30 seconds."""
        return self._rests[place] > time.monotonic()

    def failed(self, place: int) -> None:
        """Note that an endpoint could not be connected to."""
        self._rests[place] = time.monotonic() + _REST_S
