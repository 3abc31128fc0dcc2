"""A question whose server dies."""

from __future__ import annotations

import asyncio
import os
import signal

import psycopg
import pytest
import uvloop

from pgmta.postgres.link import connect
from pgmta.postgres.question import Question
from tests.support.database import PrivateServer
from tests.support.waiting import PATIENCE


async def ask_while_the_server_dies(uri: str) -> None:
    """Ask a process that has stopped and then ends, with last words and the question unread."""
    connection = await connect(uri, "question")
    process = connection.backend[0]
    pauses = iter([0.05, 0.0, 3600.0])

    def pause() -> float:
        seconds = next(pauses)
        if not seconds:
            os.kill(process, signal.SIGSTOP)
            asyncio.get_running_loop().call_later(0.1, end)
        return seconds

    def end() -> None:
        os.kill(process, signal.SIGQUIT)
        os.kill(process, signal.SIGCONT)

    async with asyncio.timeout(PATIENCE):
        await Question(connection, pause, lambda row: None).run(b"SELECT 1")


def test_last_words_of_a_server_end_a_question(private_server: PrivateServer) -> None:
    with pytest.raises(psycopg.OperationalError):
        uvloop.run(ask_while_the_server_dies(private_server.uri))
