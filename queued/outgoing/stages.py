"""The stages of outgoing mail, in order: those of the core, each a file, and of features."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable

from stringzilla import find

from pgmta.errors import FeatureError
from pgmta.features import import_paths, load
from pgmta.logs import get
from pgmta.model import Item
from queued.config import QueuedConfig
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.result import NOT_BEGUN, Result, internal
from queued.outgoing.check_stage import CheckStage
from queued.outgoing.compose_stage import ComposeStage
from queued.outgoing.deadline_stage import DeadlineStage
from queued.outgoing.gate_stage import GateStage
from queued.outgoing.outgoing import Outgoing
from queued.outgoing.redirect_stage import RedirectStage
from queued.outgoing.returned_stage import ReturnedStage
from queued.outgoing.rewrite_stage import RewriteStage
from queued.outgoing.sign_stage import SignStage
from queued.outgoing.stage import OutgoingStage, Prepare, StageContext

STAGES: list[type[OutgoingStage]] = [
    ReturnedStage,
    DeadlineStage,
    RedirectStage,
    GateStage,
    ComposeStage,
    RewriteStage,
    CheckStage,
]
"""The stages before the destination is asked for room."""

LAST_STAGES: list[type[OutgoingStage]] = [SignStage]
"""Stages that take long: only mail whose destination has room goes through them."""


log = get("worker")


def _with_features(
    stages: list[type[OutgoingStage]], last: list[type[OutgoingStage]]
) -> tuple[list[type[OutgoingStage]], list[type[OutgoingStage]]]:
    """Return the stages with those of features. Raises FeatureError if one names no stage."""
    found = [*stages], [*last]
    for _, name, path in import_paths("stages"):
        for each in found:
            names = [stage.__name__ for stage in each]
            if name in names:
                each.insert(names.index(name), load(path))
                break
        else:
            if name:
                raise FeatureError(f"{path} should go before {name}, which is no stage")
            found[1].append(load(path))
    return found


class Stages:
    """The stages of one worker, in order: they take messages, and envelopes come out.

    `put` gets the envelopes.
    """

    def __init__(
        self,
        context: StageContext,
        put: Callable[[Destination, Envelope], None],
    ) -> None:
        self.context = context
        """The load and the room of the stages."""
        self._put = put
        self._draining = False
        context.go_on = self._go_on
        first, last = _with_features(STAGES, LAST_STAGES)
        self._first = [make(context) for make in first]
        self._last = [make(context) for make in last]
        self.all: list[OutgoingStage] = [*self._first, *self._last]
        """All stages, in order."""

    def configure(self, config: QueuedConfig, admit: Prepare) -> None:
        """Use another configuration from now on.

        `admit` comes after the stages of STAGES: it says whether a destination has room.
        """
        self._most = config.delivery.recipients
        self.steps: list[Prepare] = []
        """The steps of a message that has passed none."""
        self._later: dict[OutgoingStage, list[Prepare]] = {}
        for stage in reversed(self._last):
            self._add(stage, config)
        self.steps = [admit, *self.steps]
        for stage in reversed(self._first):
            self._add(stage, config)

    def _add(self, stage: OutgoingStage, config: QueuedConfig) -> None:
        self._later[stage] = self.steps
        if prepare := stage.configured(config):
            self.steps = [prepare, *self.steps]

    @property
    def names(self) -> set[str]:
        """The domains, or labels, of the rows that wait in a stage."""
        return set().union(*(stage.names for stage in self.all))

    def rows(self) -> Iterable[Item]:
        """Return the rows that the stages have."""
        return [item for stage in self.all for item in stage.rows()]

    def _go_on(self, stage: OutgoingStage, outgoing: Outgoing) -> None:
        """Put a message through the stages after this one."""
        self.send(outgoing, self._later[stage])

    def send(self, outgoing: Outgoing, steps: list[Prepare]) -> None:
        """Put a message through these steps, of which the list is not changed any more.

        After an error the rows that no stage and no destination has are deferred.
        """
        items, started = outgoing.items, outgoing.started
        try:
            for place, step in enumerate(steps, 1):
                made = step(outgoing)
                if made is outgoing:
                    continue
                if made is None:
                    return
                if isinstance(made, Result):
                    self.context.dispatcher.end(outgoing.items, made, outgoing.started)
                    return
                if isinstance(made, list):
                    for each in made:
                        self.send(each, steps[place:])
                    return
                outgoing = made
            if self._draining:  # no destination begins an attempt any more
                self.context.dispatcher.end(outgoing.items, NOT_BEGUN, started)
                return
            for envelope in _envelopes(outgoing, self._most, self.context):
                self._put(outgoing.routed.destination, envelope)
                self.context.free_octets -= envelope.content_octets
        except Exception as error:
            log.error("no envelope", message=outgoing.message.id,
                      rows=[item.id for item in items], exc_info=error)  # fmt: skip
            self.context.dispatcher.end_unowned(
                items, Result.from_error(internal(error), ""), started
            )

    def drain(self) -> None:
        """Begin nothing new, and hand back the rows that wait."""
        self._draining = True
        for stage in self.all:
            for outgoing in stage.drain():
                self.context.dispatcher.end(outgoing.items, NOT_BEGUN, outgoing.started)

    async def wait(self) -> None:
        """Wait for the work of stages that is under way."""
        for stage in self.all:
            await stage.wait()

    async def abort(self) -> None:
        """End the work of stages at once."""
        for stage in self.all:
            await stage.abort()


def _envelopes(outgoing: Outgoing, most: int, context: StageContext) -> list[Envelope]:
    """Return envelopes of at most `most` rows each."""
    group, trace, content = outgoing.items, outgoing.trace, outgoing.content
    utf8 = outgoing.utf8 or (outgoing.header_utf8 and header_needs_utf8(trace, content))
    urgent = any(item.urgent for item in group)
    clock = context.means.clock
    deadline = clock.find_moment(outgoing.deadline) if outgoing.deadline else None
    return [
        Envelope(
            items=group[start : start + most],
            message=outgoing.message,
            sender=outgoing.sender,
            trace=trace,
            size=outgoing.size,
            utf8=utf8,
            content=content,
            guard=context.guard,
            started=outgoing.started,
            urgent=urgent,
            content_octets=len(content) if isinstance(content, bytes) else 0,
            labels=outgoing.labels,
            deadline=deadline,
            begin=outgoing.begin,
            template=outgoing.template,
        )
        for start in range(0, len(group), most)
    ]


def header_needs_utf8(trace: bytes, body: bytes | AsyncIterable[bytes]) -> bool | None:
    """Return whether the header needs a next hop that knows SMTPUTF8 (RFC 6531, section 3.2).

    Clients say SMTPUTF8 without need. None: the content streams, so the channel looks.
    """
    if not isinstance(body, bytes):
        return None
    end = find(body, b"\r\n\r\n")
    return not (trace.isascii() and (body if end < 0 else body[:end]).isascii())
