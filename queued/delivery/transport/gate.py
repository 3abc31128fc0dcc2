"""The gate: which mail may not go for now, and why. Features are its keepers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pgmta.errors import NoHostLeft
from pgmta.model import Item, ReasonToWait
from queued.delivery.transport.destination import Destination


@dataclass(eq=False)
class HostClosed(NoHostLeft):
    """The mail would go to a host that gets none for now."""

    reason: ReasonToWait = field(kw_only=True)


class Keeper:
    """Keeps mail back for a feature, in all workers of a process. This one keeps none back.

    It calls `changed` after it has changed `ready`, `looks` or `active`.
    """

    def __init__(self) -> None:
        self.ready = True
        """Whether it knows which mail it keeps back."""
        self.looks = False
        """Whether it looks at rows right after their claim."""
        self.active = False
        """Whether it may keep any mail back now. If not, nobody asks it for any."""
        self.changed: Callable[[], None] = lambda: None

    async def get_ready(self) -> None:
        """Return once it is ready: nothing is claimed before. Raises what the database does."""

    async def look_at(self, items: Sequence[Item]) -> None:
        """Look at rows right after their claim: they go nowhere before it returns.

        Raises what the database does; then they go back to the queue.
        """

    def find_rows(
        self, items: Sequence[Item], destination: Destination, host: str = ""
    ) -> dict[int, ReasonToWait]:
        """Return the places of the rows that may not go now, each with the reason.

        A row with a final reason ends. `host` is the one that a connection has, '' before there is
        a connection.
        """
        return {}

    def find_host(self, destination: Destination, host: str) -> ReasonToWait | None:
        """Return why a host gets no mail of a destination now; None if it may get some.

        The name of the host may have a port at its end.
        """
        return None

    def was_closed(self, destination: Destination, reason: ReasonToWait) -> None:
        """Learn that all mail of a destination would go to a host that gets none."""


class Gate:
    """Asks each keeper; without any, all mail may go."""

    def __init__(self, keepers: Sequence[Keeper] = ()) -> None:
        self._keepers: list[Keeper] = []
        self._update()
        for keeper in keepers:
            self.add_keeper(keeper)

    def add_keeper(self, keeper: Keeper) -> None:
        """Ask a keeper too, from now on."""
        self._keepers.append(keeper)
        keeper.changed = self._update
        self._update()

    def _update(self) -> None:
        self.ready = all(keeper.ready for keeper in self._keepers)
        """Whether all keepers know which mail they keep back."""
        self.looks = any(keeper.looks for keeper in self._keepers)
        """Whether rows are looked at right after their claim."""
        self.active = any(keeper.active for keeper in self._keepers)
        """Whether any mail may be kept back now."""

    async def get_ready(self) -> None:
        """Return once all keepers are ready. Raises what the database does."""
        for keeper in self._keepers:
            if not keeper.ready:
                await keeper.get_ready()

    async def look_at(self, items: Sequence[Item]) -> None:
        """Let the keepers look at rows that were claimed. Raises what the database does."""
        for keeper in self._keepers:
            if keeper.looks:
                await keeper.look_at(items)

    def find_rows(
        self, items: Sequence[Item], destination: Destination, host: str = ""
    ) -> dict[int, ReasonToWait]:
        """Return the places of the rows that may not go now, each with the first reason."""
        found: dict[int, ReasonToWait] = {}
        for keeper in self._keepers:
            if keeper.active:
                found = keeper.find_rows(items, destination, host) | found
        return found

    def find_host(self, destination: Destination, host: str) -> ReasonToWait | None:
        """Return why a host gets no mail of a destination now; None if it may get some."""
        for keeper in self._keepers:
            if keeper.active and (found := keeper.find_host(destination, host)):
                return found
        return None

    def was_closed(self, destination: Destination, reason: ReasonToWait) -> None:
        """Tell the keepers that all mail of a destination would go to a host that gets none."""
        for keeper in self._keepers:
            keeper.was_closed(destination, reason)
