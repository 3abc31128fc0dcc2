"""An event loop in a separate thread, for servers that a test starts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

from tests.support.waiting import PATIENCE


class LoopThread:
    """Runs until `end`."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def do[T](self, what: Coroutine[Any, Any, T]) -> T:
        """Run this in the loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(what, self.loop).result(PATIENCE)

    def end(self) -> None:
        """Cancel all tasks, and end the thread."""

        async def cancel() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.do(cancel())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
