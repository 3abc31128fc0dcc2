"""Ends a direct call that keeps the thread of the sessions."""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from smtpd.hooks import outside
from smtpd.hooks.thread import HookInterrupted

_LOOK = 0.025  # seconds between two looks, while there are direct calls
_LOOKS = 3  # that find the same call
_IDLE = 40  # looks without a direct call, then the watchdog sleeps
_BUSY = 0.02  # seconds of CPU: less in all looks means that the system has stopped the process
_SIGNAL = getattr(signal, "SIGRTMIN", 0) + 5  # a real-time signal
_TASKS = Path("/proc/self/task")  # the threads of the process


class HookMoved(BaseException):
    """A call has to run in the thread of its handler.

    No Exception, because hooks catch those.
    """


class Watchdog:
    """Has a thread that looks every 25 ms which direct call runs.

    If it finds the same one 3 times, it sends a signal to the thread of the sessions. The signal's
    handler raises HookInterrupted in the hook. That ends loops of Python and most calls of the
    system, because Python does not repeat them then (PEP 475). Signal handlers run in the thread of
    the sessions too. So no exception is raised after the end of the call.
    """

    def __init__(self) -> None:
        self.number = 0
        """Direct calls so far."""
        self.inside = 0
        """The number of the direct call that runs, else 0."""
        self.asleep = False
        """Whether `wake` has to be called."""
        self.moved = ""
        """The audit event that ended the last call, if one did."""
        self.interrupted = 0
        """The number of the last call that was interrupted."""
        self._wanted = 0
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._main = threading.main_thread()

    @staticmethod
    def possible() -> bool:
        """Return whether the calling thread gets signals, and the system measures threads."""
        main = threading.current_thread() is threading.main_thread()
        return main and sys.platform == "linux" and _TASKS.is_dir()

    def start(self) -> None:
        """Begin to watch; done once, when the first handler is called directly."""
        if self._thread:
            return
        signal.signal(_SIGNAL, self._signalled)
        outside.guard(self._main.ident or 0, self._refuse)
        self._thread = threading.Thread(target=self._run, name="hook watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. The signal keeps its handler, so that a late one does no harm."""
        self._stopping.set()
        self._wake.set()
        if self._thread:
            outside.guard(self._main.ident or 0, None)
            self._thread.join()

    def wake(self) -> None:
        """Have the thread look again."""
        self.asleep = False
        self._wake.set()

    def _refuse(self, event: str) -> None:
        """Prevent that a direct call waits; its handler's thread may do the same."""
        if self.inside:
            self.moved = event
            raise HookMoved(event)

    def _signalled(self, _: int, __: FrameType | None) -> None:
        if self.inside and self.inside == self._wanted:
            self.interrupted = self.inside
            raise HookInterrupted

    def _run(self) -> None:
        number, idle = 0, 0
        found, looks, used = 0, 0, 0.0
        while not self._stopping.wait(_LOOK):
            idle = 0 if self.number != number or self.inside else idle + 1
            number = self.number
            if idle > _IDLE:
                idle = 0
                self._sleep(number)
            inside = self.inside
            if not inside or inside != found:
                found, looks, used = inside, 1, self._cpu()
                continue
            looks += 1
            if looks >= _LOOKS and self._held(self._cpu() - used):
                looks, used = 0, self._cpu()
                self._wanted = inside
                signal.pthread_kill(self._main.ident or 0, _SIGNAL)

    def _sleep(self, number: int) -> None:
        self._wake.clear()
        self.asleep = True
        if self.number == number and not self._stopping.is_set():
            self._wake.wait()
        self.asleep = False

    def _held(self, used: float) -> bool:
        """Return whether the thread of the sessions computes or waits; False if it may not run."""
        return used >= _BUSY or self._state() != "R"

    def _cpu(self) -> float:
        """Return the CPU time of the sessions' thread in seconds."""
        return time.clock_gettime(time.pthread_getcpuclockid(self._main.ident or 0))

    def _state(self) -> str:
        """Return the state of the sessions' thread; R means that it could run (proc(5))."""
        text = (_TASKS / f"{self._main.native_id}" / "stat").read_text()
        return text.rpartition(")")[2].split()[0]
