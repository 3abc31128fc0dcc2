"""Whatever raises in a worker, and wherever: every row has an end, and every copy a reason."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest

from pgmta import service
from pgmta.action import Action
from pgmta.compose.template import TemplateSource
from pgmta.service import start_part
from pgmta_features.rates import budget_line, rate_stage
from queued.config import QueuedConfig, Worker
from queued.delivery import backlog, connection_pacing, destination_queue, other_hosts
from queued.outgoing import (
    check_stage,
    compose_stage,
    deadline_stage,
    gate_stage,
    outgoing,
    returned_stage,
    rewrite_stage,
    sign_stage,
    stage,
    stages,
)
from queued.process.queued_process import QueuedProcess
from queued.signing import signers
from queued.worker import (
    attempt_recorder,
    claim_exclusions,
    claim_loop,
    delivery_worker,
    dispatch,
    leases,
    settler,
    verdict,
)
from queued.worker.delivery_worker import DeliveryWorker
from tests.sql.test_composed import put_template
from tests.support.dkim import Keys
from tests.support.nexthop import Do, NextHop, Transaction
from tests.support.waiting import eventually

TEMPLATE = TemplateSource(
    sender="s@a.example", from_="s@a.example", subject="x", body="Code {{code}}"
)
GROUPS: dict[str, tuple[ModuleType, ...]] = {
    "worker": (claim_loop, dispatch, leases, claim_exclusions, attempt_recorder, settler, verdict),
    "outgoing": (
        budget_line, check_stage, compose_stage, deadline_stage, gate_stage, outgoing, rate_stage,
        returned_stage, rewrite_stage, sign_stage, signers, stage, stages,
    ),
    "delivery": (backlog, connection_pacing, destination_queue, other_hosts),
}  # fmt: skip
PARTS = {
    "Leases.unowned", "Leases._look", "Leases.in_doubt", "Leases.drop", "Leases.add_claimed",
    "Settler.put_outcome", "Settler.rows", "Settler._keep",
    "SignStage._signed", "SignStage._end", "SignStage._fail", "SignStage._await",
}  # fmt: skip
"""The mechanism itself, and its end: a worker without them has no leases and no outcomes."""
NOT_OF_MAIL = {
    "configure",
    "configured",
    "drain",
    "abort",
    "stop",
    "give_up",
    "wait",
    "_add",
    "forget_places",
}
"""Functions that no mail passes."""


def places(modules: tuple[ModuleType, ...]) -> Iterator[tuple[type, str, Callable[..., Any]]]:
    """Yield the functions of the classes of these modules."""
    for module in modules:
        for kind in vars(module).values():
            if not inspect.isclass(kind) or kind.__module__ != module.__name__:
                continue
            for name, function in vars(kind).items():
                plain = inspect.isfunction(function) and not name.startswith("__")
                if plain and f"{kind.__name__}.{name}" not in PARTS and name not in NOT_OF_MAIL:
                    yield kind, name, function


class Fault:
    """Makes one function raise once, while it is armed."""

    def __init__(self) -> None:
        self.raised = 0

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that fails at its first call."""
        fault = self

        def fail() -> None:
            if not fault.raised:
                fault.raised += 1
                raise RuntimeError(f"a defect in {function.__qualname__}")

        if inspect.iscoroutinefunction(function):

            async def wrapped(*args: Any, **named: Any) -> Any:
                fail()
                return await function(*args, **named)

            return wrapped

        def plain(*args: Any, **named: Any) -> Any:
            fail()
            return function(*args, **named)

        return plain


def script(point: str, line: str, transaction: Transaction | None) -> Do | None:
    """Put one recipient off, refuse another one, and take all others."""
    if point == "RCPT" and "put-off" in line:
        return Do(line="450 4.2.0 Later")
    if point == "RCPT" and "refused" in line:
        return Do(line="550 5.1.1 No")
    return None


def noting(function: Callable[..., Any], passed: set[Callable[..., Any]]) -> Callable[..., Any]:
    """Return the function that notes its calls."""

    def noted(*args: Any, **named: Any) -> Any:
        passed.add(function)
        return function(*args, **named)

    return noted


class Site:
    """A worker in this process, its queue and its next hop."""

    def __init__(
        self, uri: str, worker: DeliveryWorker, hop: NextHop, config: QueuedConfig
    ) -> None:
        self.config = config
        self.worker = worker
        self.hop = hop
        self.db = psycopg.connect(uri, autocommit=True)

    async def send(self, name: str) -> None:
        """Send mail, with the functions as they are patched now, and wait for its end."""
        self.worker.configure(self.config)  # stages keep their steps
        self.submit(name)
        await eventually(self.settled)
        self.judge()

    def submit(self, name: str) -> None:
        """Submit messages for one round."""
        for body in ("x", "x" * 20_000):
            self.db.execute(
                "SELECT submit('s@a.example', ARRAY[%s, %s, %s, %s],"
                " convert_to(E'From: s@a.example\\r\\nSubject: x\\r\\n\\r\\n' || %s || E'\\r\\n',"
                " 'UTF8'), wake => true)",
                (f"{name}@b.example", f"{name}.b@b.example", f"put-off.{name}@b.example",
                 f"refused.{name}@c.example", body),
            )  # fmt: skip

        put_template(self.db, name, TEMPLATE)  # no worker knows it yet
        self.db.execute(
            "SELECT submit_template(%s, %s, '{\"code\": 1}', wake => true)",
            (name, f"{name}.t@b.example"),
        )

    def settled(self) -> bool:
        """Return whether all have an end: delivered, put off, or on hold."""
        waiting = self.db.execute(
            "SELECT count(*) FROM queue WHERE status <> 'HOLD' AND recipient NOT LIKE 'put-off%'"
        ).fetchone()
        sending = self.db.execute("SELECT count(*) FROM queue WHERE status = 'SENDING'").fetchone()
        return waiting == sending == (0,) and not self.worker.leased

    def judge(self) -> None:
        """Assert that each copy has its reason, and clear the queue and the log."""
        events = Counter(
            recipient
            for (recipient,) in self.db.execute(
                "SELECT recipient FROM attempts WHERE event = 'unknown'"
            )
        )
        for recipient, number in self.hop.deliveries().items():
            assert number <= 2 + events[recipient], (recipient, number, events)
        held = self.db.execute("SELECT recipient FROM queue WHERE recipient NOT LIKE 'put-off%'")
        lost = [name for (name,) in held if not name.startswith("refused")]
        for name in lost:
            assert events[name] or not self.hop.deliveries()[name], name
        self.db.execute("DELETE FROM queue; DELETE FROM attempts")
        self.hop.transactions.clear()


@asynccontextmanager
async def site(uri: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(leases, "_MAX_LOOK_INTERVAL_S", 0.1)
    monkeypatch.setattr(service, "_RESTART_PAUSES_S", (0.05, 0.1))
    monkeypatch.setattr(delivery_worker, "_CLAIM_END_TIMEOUT_S", 0.5)
    with NextHop(script) as hop:
        config = QueuedConfig.model_validate({
            "environment": {"hostname": "client.example"},
            "routes": {"*": hop.target},
            "process": {"lease": "3s", "poll": "200ms", "drain": "1s"},
            "retry": {"intervals": ["100ms", "1h"], "jitter": 0},
            "signing": {"keys": [Keys(folder).entry("e", "rsa")], "missing": "send"},
        })  # fmt: skip
        process = QueuedProcess(config, uri)
        worker = DeliveryWorker(process, Worker(name="w", action=Action.DELIVER, concurrency=50))
        process.gate.ready = True
        stop = asyncio.Event()
        tasks = [start_part(name, work, stop) for name, work in worker.parts().items()]
        loops = [start_part("claims", loop.run, stop) for loop in worker.loops]
        found = Site(uri, worker, hop, config)
        yield found
        await worker.drain(loops)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await process.close()
        found.db.close()


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
async def test_every_row_has_an_end_whatever_raises(
    group: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = list(places(GROUPS[group]))
    passed: set[Callable[..., Any]] = set()
    async with site(database, tmp_path, monkeypatch) as found:
        with monkeypatch.context() as patch:
            for kind, name, function in every:
                patch.setattr(kind, name, noting(function, passed))
            await found.send("passes")
        for kind, name, function in every:
            if function not in passed:
                continue
            fault = Fault()
            with monkeypatch.context() as patch:
                patch.setattr(kind, name, fault.wrap(function))
                try:
                    await found.send(f"x{kind.__name__}.{name}".lower())
                except AssertionError as error:
                    raise AssertionError(f"after a defect in {function.__qualname__}") from error
    assert len(passed) > 10
