"""Ask the running processes, and wait for their answers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from pgmta.command import print_line
from pgmta.errors import PgmtaError
from pgmta.postgres.operator import OperatorConnection
from pgmta_features.inquiries.store import InquiryOrders
from queued.cli.options.queue_command import who

ANSWER_TIMEOUT_S = 6.0
"""A process looks for inquiries every 5 s at least."""
LOOK_INTERVAL_S = 0.05
"""Between two looks for answers."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The answers by process, and the number of workers of each process that delivers.

    `silent` are processes that have not answered, with the seconds since their last heartbeat.
    """

    answers: dict[str, dict[str, Any]]
    workers: dict[str, int]
    silent: dict[str, float]

    def warn(self) -> None:
        """Print the processes that have not answered."""
        for process, seconds in self.silent.items():
            print_line(
                f"warning: {process} has not answered within {ANSWER_TIMEOUT_S:g} s; "
                f"its last heartbeat was {seconds:.0f} s ago", err=True,
            )  # fmt: skip


async def ask(
    db: OperatorConnection, action: str, value: str, token: str | None = None
) -> Answered:
    """Ask all processes, or the one whose name ends with a token, and wait for the answers.

    Raises PgmtaError if there is no such process, or the right is missing.
    """
    orders = InquiryOrders(db)
    answering = await orders.answering()
    process = _named(token, answering) if token else None
    number = await orders.begin(action, value, who(), process)
    try:
        end = time.monotonic() + ANSWER_TIMEOUT_S
        while True:
            answers = await orders.answers(number)
            wanted = {process} if process else set(await orders.answering())
            if wanted <= answers.keys() or time.monotonic() > end:
                break
            await asyncio.sleep(LOOK_INTERVAL_S)
    finally:
        await orders.end(number)
    answering = await orders.answering()
    silent = {
        name: found["silence"] for name, found in answering.items()
        if name not in answers and process in (None, name)
    }  # fmt: skip
    return Answered(answers, _workers(answering), silent)


def _workers(answering: dict[str, dict[str, Any]]) -> dict[str, int]:
    return {name: found["workers"] for name, found in answering.items() if found["workers"]}


def _named(token: str, answering: dict[str, dict[str, Any]]) -> str:
    found = [name for name in answering if name.rpartition(":")[2] == token]
    if len(found) != 1:
        raise PgmtaError(
            f"no process {token} delivers mail; `queuectl inspect` has the connections"
        )
    return found[0]
