"""Calls of hooks: what they cost others, and what becomes of those that do not answer."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from smtpd.config.hooks import HookLimits
from smtpd.hooks.call import HookCall, HookTimeout
from smtpd.hooks.runner import HookOverload, HookRunner
from tests.support.waiting import PATIENCE, eventually, let_others_run, take_time_async


class Session:
    """The part of aiosmtpd that a call needs."""

    loop: Any = None


@asynccontextmanager
async def running(pooled: bool = False, **limits: Any) -> AsyncIterator[HookRunner]:
    runner = HookRunner("test", HookLimits(**limits), pooled=pooled)
    try:
        yield runner
    finally:
        await runner.stop(0.0)


def begin(
    runner: HookRunner, method: Callable[..., Any], *arguments: Any, rescue: Any = None
) -> tuple[asyncio.Future[Any], HookCall | None]:
    future = asyncio.get_running_loop().create_future()

    def done(answer: Any, error: BaseException | None) -> None:
        if error:
            future.set_exception(error)
        else:
            future.set_result(answer)

    return future, runner.call(method, rescue, ("server", Session(), "envelope", *arguments), done)


async def ask(runner: HookRunner, method: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
    return await asyncio.wait_for(begin(runner, method, *arguments, **more)[0], PATIENCE)


async def answers(runner: HookRunner) -> bool:
    try:
        return bool((await ask(runner, thread))[1])
    except (HookTimeout, HookOverload):
        return False


async def thread(server: Any, session: Any, envelope: Any) -> tuple[int, bool]:
    return threading.get_ident(), session.loop is asyncio.get_running_loop()


async def sleep(server: Any, session: Any, envelope: Any, seconds: float) -> str:
    await take_time_async(seconds)
    return "250 slept"


async def block(server: Any, session: Any, envelope: Any, event: threading.Event) -> str:
    event.wait(PATIENCE)
    return "250 blocked"


async def test_hooks_run_in_one_thread_and_loop_of_their_own() -> None:
    async with running() as runner:
        answers = [await ask(runner, thread) for _ in range(3)]
        assert answers == [answers[0]] * 3
        assert answers[0][1]
        assert answers[0][0] != threading.get_ident()
        many = [begin(runner, sleep, 0.01)[0] for _ in range(500)]
        assert await asyncio.gather(*many) == ["250 slept"] * 500


async def test_errors_come_back() -> None:
    async def fails(*_: Any) -> None:
        raise LookupError("x")

    async def exits(*_: Any) -> None:
        sys.exit(1)

    async def cancels(*_: Any) -> None:
        raise asyncio.CancelledError

    async def slow_rescue(error: Exception) -> str:
        await let_others_run()
        return f"450 {error!r}"

    async with running() as runner:
        with pytest.raises(LookupError):
            await ask(runner, fails)
        with pytest.raises(SystemExit):
            await begin(runner, exits)[0]
        with pytest.raises(asyncio.CancelledError):
            await begin(runner, cancels)[0]
        with pytest.raises(TypeError):
            await ask(runner, fails, rescue=lambda: "no argument")
        assert await ask(runner, fails, rescue=slow_rescue) == "450 LookupError('x')"
        assert await ask(runner, fails, rescue=lambda error: f"450 {error}") == "450 x"
        with pytest.raises(TypeError):
            await ask(runner, lambda *_: "250 a plain function")


def endless() -> tuple[Callable[..., Coroutine[Any, Any, None]], asyncio.Event]:
    """A hook that never answers, and the event that its cancellation sets."""
    cancelled = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def never(*_: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            loop.call_soon_threadsafe(cancelled.set)

    return never, cancelled


async def test_a_thread_that_was_blocked_serves_again() -> None:
    event = threading.Event()
    async with running() as runner:
        first, _ = await ask(runner, thread)
        blocked = begin(runner, block, event)[0]
        second, _ = await ask(runner, thread)
        assert second != first
        event.set()
        assert await asyncio.wait_for(blocked, PATIENCE) == "250 blocked"

        async def in_thread() -> bool:
            return bool((await ask(runner, thread))[0] == first)

        await eventually(in_thread)


async def test_a_hook_that_never_answers_is_cancelled_after_its_time() -> None:
    never, cancelled = endless()
    async with running(time=1.0) as runner:
        began = time.monotonic()
        waiting = begin(runner, never)[0]
        assert await ask(runner, sleep, 0.01) == "250 slept"
        with pytest.raises(HookTimeout):
            await waiting
        assert 0.9 < time.monotonic() - began < PATIENCE
        await asyncio.wait_for(cancelled.wait(), PATIENCE)


async def test_a_call_that_waited_for_the_client_has_its_time_afterwards() -> None:
    never, cancelled = endless()
    async with running(time=1.0) as runner:
        waiting, call = begin(runner, never)
        assert call
        runner.pause(call)
        await eventually(lambda: not runner._look_handle)
        runner.go_on(call)
        with pytest.raises(HookTimeout):
            await asyncio.wait_for(waiting, PATIENCE)
        await asyncio.wait_for(cancelled.wait(), PATIENCE)


async def test_a_session_that_ends_cancels_its_hook() -> None:
    never, cancelled = endless()
    async with running() as runner:
        future, call = begin(runner, never)
        await ask(runner, thread)
        assert call
        call.abandon()
        await asyncio.wait_for(cancelled.wait(), PATIENCE)
        assert not future.done()


async def test_too_many_open_calls_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smtpd.hooks.runner.MAX_CALLS", 2)
    async with running() as runner:
        calls = [begin(runner, sleep, 3600)[1] for _ in range(2)]
        with pytest.raises(HookOverload):
            await ask(runner, thread)
        for call in calls:
            assert call
            call.abandon()
        await eventually(lambda: answers(runner))


@pytest.mark.parametrize("pooled", [False, True])
async def test_calls_are_refused_at_once_while_every_thread_hangs(pooled: bool) -> None:
    event, begun = threading.Event(), list[int]()
    number = 1 if pooled else 2

    async def blocks(*_: Any) -> str:
        begun.append(threading.get_ident())
        return await block("server", Session(), "envelope", event)

    async def refused() -> bool:
        try:
            await ask(runner, thread)
        except (HookTimeout, HookOverload) as error:
            return isinstance(error, HookOverload)
        return False

    async with running(pooled, threads=1, time=0.5) as runner:
        blocked = [begin(runner, blocks)[0] for _ in range(number)]
        await eventually(lambda: len(begun) == number)
        waiting = [begin(runner, thread)[0] for _ in range(2)]
        for future in (*blocked, *waiting):
            with pytest.raises(HookTimeout):
                await asyncio.wait_for(future, PATIENCE)
        await eventually(refused)
        event.set()
        await eventually(lambda: answers(runner))
        assert len(set(begun)) == number


@pytest.mark.slow
async def test_calls_end_when_smtpd_stops() -> None:
    async with running() as runner:
        short, long = begin(runner, sleep, 0.2)[0], begin(runner, sleep, 3600)[0]
        stuck = begin(runner, block, threading.Event())[0]
        await runner.stop(0.5)
        with pytest.raises(HookTimeout):
            await long
        with pytest.raises(HookTimeout):
            await stuck
        assert isinstance(short.exception(), HookTimeout) or short.result() == "250 slept"
        with pytest.raises(HookOverload):
            await ask(runner, thread)
