"""A question to one hook whose answer is no reply of SMTP."""

from __future__ import annotations

import asyncio
from typing import Any

from smtpd.hooks.phases import Step


class HookError(Exception):
    """Carries what a hook raised."""

    def __init__(self, inner: BaseException) -> None:
        super().__init__(type(inner).__name__)
        self.inner = inner


async def asked(step: Step, arguments: tuple[Any, ...], *, rescue: bool = True) -> tuple[Any, bool]:
    """Return the answer of one method, and whether it is that of `handle_exception`.

    Raises HookError with what the hook raised, or with what prevented its answer.
    """
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def came(answer: Any, error: BaseException | None) -> None:
        if answered.done():
            return
        if error:
            answered.set_exception(HookError(error))
        else:
            answered.set_result(answer)

    rescuer = step.hook.methods.rescue if rescue else None
    call = step.hook.runner.call(step.method, rescuer, arguments, came)
    try:
        return await answered, call.failed
    finally:
        call.abandon()
