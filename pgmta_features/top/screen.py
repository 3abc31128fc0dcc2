"""The screen of `queuectl top`."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import ClassVar

import psycopg
from rich.console import RenderableType
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from pgmta.errors import StoreUnavailable
from pgmta.mail.text import printable
from pgmta.postgres.operator import OperatorConnection
from pgmta_features.top.figures import Figures, LiveFigures
from pgmta_features.top.panels import (
    SORTS,
    hop_table,
    host_table,
    queue_lines,
    rate_line,
    worker_table,
)

_LOOK_INTERVAL_S = 1.0
_PAUSE_FACTOR = 10  # a pause lasts so many times as long as a look, to spare a slow database
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_HELP = """\
queuectl top

accepted    rows that came into the queue per second
delivered, deferred, failed, unknown
            attempts that ended so per second; failed has those that
            are too old
            All rates are means of the last 10 seconds.

Queue       rows by next hop, as the last count has them: a queued
            counts once per minute
Hosts       attempts of the last minute per second, how many seconds
            one took, and the most frequent class of failures
Workers     IN FLIGHT and DONE are those of the last heartbeat, which
            is 10 seconds old at most

q quit    s sort: most, slowest, name    p pause    h help

Any key goes back."""


class Looked(Message):
    """Figures have come, or the reason why they have not."""

    def __init__(self, figures: Figures | None, reason: str = "") -> None:
        super().__init__()
        self.figures = figures
        self.reason = reason


class HelpScreen(ModalScreen[None]):
    """Says what the figures mean."""

    CSS = """
    HelpScreen { align: center middle; }
    #help { width: auto; height: auto; padding: 1 2; border: solid gray; }
    """

    def compose(self) -> ComposeResult:
        """Show the text."""
        yield Static(_HELP, id="help", markup=False)

    def on_key(self) -> None:
        """Go back."""
        self.dismiss()


class TopScreen(App[None]):
    """Shows figures until q, a signal or the end of the terminal.

    Keys work also while the database is slow or away. `connect` lends a connection with the
    settings OF_THE_LOG.
    """

    CSS = """
    Screen { layout: vertical; }
    #head, #rates { height: 1; }
    #queue { height: 2; }
    #hops, #hosts { height: 2fr; }
    #workers { height: 1fr; min-height: 4; }
    #hops, #hosts, #workers { border-top: solid gray; border-title-align: left; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("s", "sort", "Sort"),
        Binding("p", "pause", "Pause"),
        Binding("h", "help", "Help"),
        Binding("question_mark", "help", show=False),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(
        self, connect: Callable[[], AbstractAsyncContextManager[OperatorConnection]]
    ) -> None:
        super().__init__(ansi_color=True)
        self._connect = connect
        self._figures: Figures | None = None
        self._away = ""
        self._sort = 0
        self._paused = False
        self._going = asyncio.Event()  # cleared while the display is paused
        self._going.set()
        self._looking: asyncio.Task[None] | None = None

    def compose(self) -> ComposeResult:
        """Lay out the parts."""
        for name in ("head", "rates", "queue", "hops", "hosts", "workers"):
            yield Static("", id=name, markup=False)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to look."""
        self.theme = "ansi-dark"
        loop = asyncio.get_running_loop()
        for each in _SIGNALS:
            loop.add_signal_handler(each, self.exit)
        self._looking = loop.create_task(self._look())
        self._show()

    def on_unmount(self) -> None:
        """End to look."""
        if self._looking:
            self._looking.cancel()
        loop = asyncio.get_running_loop()
        for each in _SIGNALS:
            loop.remove_signal_handler(each)

    def on_resize(self) -> None:
        """Use the new size."""
        self.call_after_refresh(self._show)

    def on_looked(self, message: Looked) -> None:
        """Show what came."""
        self._away = message.reason
        if not self._paused or not message.figures:
            self._figures = message.figures or self._figures
            self._show()

    def action_sort(self) -> None:
        """Use the next order."""
        self._sort = (self._sort + 1) % len(SORTS)
        self._show()

    def action_pause(self) -> None:
        """Stop to look, or go on."""
        self._paused = not self._paused
        (self._going.clear if self._paused else self._going.set)()
        self._show()

    def action_help(self) -> None:
        """Show what the figures mean."""
        self.push_screen(HelpScreen())

    async def _look(self) -> None:
        """Look each second, until the end."""
        while True:
            try:
                async with self._connect() as db:
                    figures = LiveFigures(db)
                    while True:
                        await self._going.wait()
                        began = time.monotonic()
                        self.post_message(Looked(await figures.look()))
                        took = time.monotonic() - began
                        await asyncio.sleep(max(_LOOK_INTERVAL_S - took, took * _PAUSE_FACTOR))
            except (StoreUnavailable, psycopg.Error) as error:
                self.post_message(Looked(None, " ".join(str(error).split()) or "it is away"))
                await asyncio.sleep(_LOOK_INTERVAL_S)

    def _show(self) -> None:
        figures = self._figures
        head = Text("pgmta top", "bold", no_wrap=True, overflow="ellipsis")
        if figures:
            head.append(f"  {figures.at.astimezone():%Y-%m-%d %H:%M:%S}", "not bold")
        head.append(f"  sorted by {SORTS[self._sort]}", "not bold")
        if self._paused:
            head.append("  PAUSED", "bold yellow")
        if self._away:
            head.append(f"  DATABASE AWAY: {printable(self._away)}", "bold red")
        self._put("head", head)
        for name, title in (
            ("hops", "Queue by next hop"),
            ("hosts", "Hosts of the last minute, attempts per second"),
            ("workers", "Workers"),
        ):
            self.screen_stack[0].query_one(f"#{name}").border_title = title
        if not figures:
            return
        sort = SORTS[self._sort]
        self._put("rates", rate_line(figures))
        self._put("queue", queue_lines(figures))
        self._put("hops", hop_table(figures, sort, self._height("hops")))
        self._put("hosts", host_table(figures, sort, self._height("hosts")))
        self._put("workers", worker_table(figures, self._height("workers")))

    def _height(self, name: str) -> int:
        return self.screen_stack[0].query_one(f"#{name}").content_size.height

    def _put(self, name: str, what: RenderableType) -> None:
        self.screen_stack[0].query_one(f"#{name}", Static).update(what, layout=False)
