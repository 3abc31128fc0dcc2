"""The errors of the hosts that were tried for one connection (pure)."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from time import monotonic

from pgmta.config.types import HostPort
from pgmta.errors import DeliveryError, Stage
from queued.delivery.transport.facts import ConnectionFacts
from queued.delivery.transport.transcript import ENTRIES, NOTE, Entry

_QUOTED = 200  # characters of each error that the error of all repeats


class Tries:
    """The hosts and addresses that were tried without success."""

    def __init__(self) -> None:
        self._failed: list[tuple[str, DeliveryError]] = []
        self.seconds = 0.0
        """The time of the connections that failed."""

    def __len__(self) -> int:
        return len(self._failed)

    def add(self, host: HostPort, address: str, error: DeliveryError, seconds: float = 0.0) -> None:
        """Note that a connection to an address, or the search for addresses, has failed."""
        error.host, error.address = str(host), address
        self._failed.append((f"{host.host}[{address}]" if address else host.host, error))
        self.seconds += seconds

    def error(self, otherwise: str) -> DeliveryError:
        """Return one error for all; `otherwise` is its text if nothing was tried.

        It is the last reply of a host or, without any, the last error. The others follow, with
        their hosts. It is permanent only if all are.
        """
        if not self._failed:
            return DeliveryError(otherwise, Stage.MX)
        replies = [each for each in self._failed if each[1].code]
        main = (replies or self._failed)[-1]
        place, error = main
        others = [_shown(*each) for each in self._failed if each is not main]
        line = f"{error.line} (of {place})" if others and error.code else error.line
        whole = DeliveryError(
            "; ".join([line, *others]),
            error.stage,
            code=error.code,
            permanent=all(each.permanent for _, each in self._failed),
            host=error.host,
            address=error.address,
        )
        whole.facts = _facts_of(error, [each for _, each in self._failed])
        return whole


def _facts_of(main: DeliveryError, errors: list[DeliveryError]) -> ConnectionFacts | None:
    """Return the facts of an error with the dialogues of all."""
    said: deque[Entry] = deque(maxlen=ENTRIES)
    for error in errors:
        if isinstance(error.facts, ConnectionFacts):
            said.extend(error.facts.dialogue)
        if not error.code:
            said.append((monotonic(), NOTE, error.line))
    if not isinstance(main.facts, ConnectionFacts):
        return ConnectionFacts(address=main.address, dialogue=said) if said else None
    return replace(main.facts, dialogue=said)


def _shown(place: str, error: DeliveryError) -> str:
    """Return an error with its place; texts of pgmta itself contain it already."""
    if error.code:
        return f"{place} {error.stage}: {error.code} {error.line}"[:_QUOTED]
    return error.line[:_QUOTED] if place in error.line else f"{place}: {error.line}"[:_QUOTED]
