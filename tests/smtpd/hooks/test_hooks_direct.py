"""When a handler is called directly, and when no longer."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from smtpd.hooks import outside
from smtpd.hooks.eligible import never_awaits
from smtpd.hooks.runner import HookRunner
from smtpd.hooks.trial import Trial
from smtpd.hooks.watchdog import Watchdog
from tests.smtpd.handlers.direct import Awaiting, Both, Quick
from tests.smtpd.hooks.test_hooks_runner import ask, begin
from tests.support.waiting import PATIENCE, until

MAIN = threading.main_thread().ident


async def quick(*_: Any) -> int:
    return threading.get_ident()


@asynccontextmanager
async def running(calls: int = 5, watchdog: Watchdog | None = None) -> AsyncIterator[HookRunner]:
    """A runner that tries to become direct after that number of quick calls."""
    assert Watchdog.possible()
    outside.install()
    watchdog = watchdog or Watchdog()
    runner = HookRunner("test", time=60.0, threads=4, calls=1000)
    await asyncio.wrap_future(runner.run(lambda: None))
    runner.try_direct(Trial(calls), watchdog)
    try:
        yield runner
    finally:
        await runner.stop(0.0)
        watchdog.stop()


def direct(runner: HookRunner) -> bool:
    """Whether calls are direct now."""
    return runner.direct


async def become_direct(runner: HookRunner, most: int = 10_000) -> int:
    """Call until calls are direct; return how often."""
    for count in range(most):
        if direct(runner):
            return count
        await ask(runner, quick)
    raise AssertionError("never direct")


async def test_only_methods_that_cannot_suspend_are_eligible() -> None:
    class Other:
        async def plain(self) -> list[Any]:
            async def inner() -> None:
                await asyncio.sleep(0)

            with threading.Lock():
                return [one for one in (inner, 5) if one]

        async def loop(self) -> None:
            async for _ in self.values():
                pass

        async def context(self) -> None:
            async with asyncio.Lock():
                pass

        async def comprehension(self) -> Any:
            return [one async for one in self.values()]

        async def values(self) -> AsyncIterator[int]:
            yield 1

        def function(self) -> Any:
            return quick()

        async def __call__(self) -> None:
            pass

    other = Other()
    assert never_awaits([other.plain, quick, Both().handle_DATA, Quick().handle_RCPT])
    suspending = [other.loop, other.context, other.comprehension, other.values, ask]
    for method in (*suspending, other.function, other, print, Awaiting().handle_NOOP):
        assert not never_awaits([other.plain, method])


async def test_calls_become_direct_after_quick_ones() -> None:
    async with running() as runner:
        first = [await ask(runner, quick) for _ in range(5)]
        assert len(set(first)) == 1
        assert MAIN not in first
        await become_direct(runner)
        future, call = begin(runner, quick)
        assert call is None
        assert future.result() == MAIN


async def test_the_change_waits_for_open_calls() -> None:
    release = threading.Event()

    async def hold(*_: Any) -> str:
        release.wait(PATIENCE)
        return "250 held"

    async with running(calls=300) as runner:
        futures = [begin(runner, quick)[0] for _ in range(300)]
        held = begin(runner, hold)[0]
        futures += [begin(runner, quick)[0] for _ in range(300)]
        answers = await asyncio.gather(*futures)
        assert MAIN not in answers  # the thread could be in a call until its end
        assert not direct(runner)
        release.set()
        assert await held == "250 held"


async def test_all_open_calls_are_answered_in_the_change() -> None:
    async with running(calls=200) as runner:
        count = 0
        while not direct(runner):
            futures = [begin(runner, quick)[0] for _ in range(50)]
            answers = await asyncio.wait_for(asyncio.gather(*futures), PATIENCE)
            count += len(answers)
            assert count < 100_000
        assert await ask(runner, quick) == MAIN


async def test_a_call_that_waits_begins_the_trial_again() -> None:
    async def waits(*_: Any) -> None:
        threading.Event().wait(0.001)

    async def sleeps(*_: Any) -> None:
        time.sleep(0)

    async def raises(*_: Any) -> None:
        raise LookupError

    async with running(calls=4) as runner:
        for method in (waits, sleeps, raises) * 2:
            for _ in range(3):
                await ask(runner, quick)
            await asyncio.gather(begin(runner, method)[0], return_exceptions=True)
            assert not direct(runner)


async def test_slow_calls_end_direct_calls_and_the_next_trial_is_longer() -> None:
    async def slow(*_: Any) -> None:
        end = time.monotonic() + 0.06
        while time.monotonic() < end:
            pass

    async with running(calls=5) as runner:
        await become_direct(runner)
        for _ in range(3):
            await ask(runner, slow)
        assert not direct(runner)
        assert await become_direct(runner) >= 20
        while direct(runner):
            await ask(runner, slow)
        assert await become_direct(runner) >= 80


async def test_a_direct_call_that_waited_was_one_too_many() -> None:
    async def waits(*_: Any) -> None:
        threading.Event().wait(0.01)

    async with running() as runner:
        await become_direct(runner)
        await ask(runner, waits)
        assert not direct(runner)


async def test_what_else_a_handler_does_in_its_loop_keeps_it_there() -> None:
    started: list[asyncio.Task[bool]] = []
    event = asyncio.Event()

    async def begins(*_: Any) -> None:
        started.append(asyncio.get_running_loop().create_task(event.wait()))

    async with running() as runner:
        await ask(runner, begins)
        for _ in range(300):
            assert await ask(runner, quick) != MAIN


async def test_a_connection_of_sqlite_keeps_its_handler_in_the_thread() -> None:
    async with running() as runner:
        connection = await asyncio.wrap_future(runner.run(lambda: sqlite3.connect(":memory:")))
        for _ in range(300):
            assert await ask(runner, quick) != MAIN
        await asyncio.wrap_future(runner.run(connection.close))


async def test_a_moved_call_is_undone_and_begun_anew() -> None:
    async def sleeps(*_: Any) -> int:
        time.sleep(0.01)
        return threading.get_ident()

    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    undone: list[bool] = []
    async with running() as runner:
        await become_direct(runner)

        class Session:
            loop: Any = None

        def answered(answer: Any, error: BaseException | None) -> None:
            done.set_result((answer, error, undone[:]))

        call = runner.call(
            sleeps, None, (None, Session(), None), answered, lambda: undone.append(runner.direct)
        )
        assert call
        answer, error, order = await asyncio.wait_for(done, PATIENCE)
        assert answer != MAIN
        assert (error, order) == (None, [False])


async def test_the_hook_has_no_loop_of_the_sessions() -> None:
    seen: list[Any] = []

    async def looks(server: Any, session: Any, envelope: Any) -> str:
        try:
            seen.append(asyncio.get_running_loop())
        except RuntimeError as error:
            seen.append(str(error))
        return "250 looked"

    async with running() as runner:
        await become_direct(runner)
        assert await ask(runner, looks) == "250 looked"
        assert seen == ["no running event loop"]
        assert asyncio.get_running_loop().is_running()


async def test_the_watchdog_spares_a_process_that_the_system_has_stopped() -> None:
    watchdog = Watchdog()
    assert not watchdog._held(0.0)  # this thread computes, and has got no CPU time
    assert watchdog._held(1.0)

    def held() -> None:
        until(lambda: watchdog._held(0.0))

    thread = threading.Thread(target=held)
    thread.start()
    thread.join(PATIENCE)  # this thread waits here
    assert not thread.is_alive()


def asleep(watchdog: Watchdog) -> bool:
    """Whether it does not look."""
    return watchdog.asleep


async def test_the_watchdog_sleeps_while_there_are_no_direct_calls() -> None:
    watchdog = Watchdog()
    async with running(watchdog=watchdog) as runner, asyncio.timeout(PATIENCE):
        await become_direct(runner)
        while not asleep(watchdog):
            await asyncio.sleep(0.05)
        assert await ask(runner, quick) == MAIN
        assert not asleep(watchdog)

        async def spins(*_: Any) -> int:
            while threading.get_ident() == MAIN:
                pass
            return threading.get_ident()

        assert await ask(runner, spins) != MAIN
        assert not direct(runner)
