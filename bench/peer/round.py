"""One round of a cell with one system: start it, load it, meter it, compare what arrived."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from bench import cpu
from bench.ledger import SIGNED
from bench.peer.cells import Cell
from bench.peer.meter import Meter, disk_written
from bench.peer.system import Running, System
from bench.phases import Options, Phase, Result

EMPTY_WITHIN = 30.0
QUIET = 200.0  # KB/s of others on the disk that don't matter


class Load(Phase):
    """A phase whose server is metered by cgroup, and for memory while it works."""

    def __init__(self, name: str, options: Options, directory: Path) -> None:
        super().__init__(name, options, directory)
        self.meter: Meter | None = None
        self.disk: list[tuple[float, int | None]] = []

    def attach(self, running: Running) -> Meter:
        """Meter a server that has started."""
        self.groups |= running.groups
        self.meter = Meter(running.groups, self.directory)
        self.stack.callback(self.meter.close)
        return self.meter

    def mark(self) -> cpu.Snapshot:
        """Return the CPU time used so far."""
        snapshot = super().mark()
        if self.meter is None:
            return snapshot
        self.look_at_disk()
        self.meter.begin()
        groups = snapshot.groups | self.meter.seconds()
        return cpu.Snapshot(snapshot.at, groups, snapshot.machine)

    def look_at_disk(self) -> None:
        """Note the time and what the disk has taken in."""
        self.disk.append((time.monotonic(), disk_written(self.directory)))

    def disk_figures(self) -> None:
        """Work out what the disk took in for the load, and say when others wrote before it."""
        (start, idle), (go, before), _, (_, after) = self.disk
        if idle is None or before is None or after is None:
            return
        self.result.figures["disk KB/message"] = (after - before) / 1024 / self.plan.messages
        others = (before - idle) / 1024 / (go - start)
        if others > QUIET:
            self.result.notes.append(f"{others:.0f} KB/s went to the disk before the load began")


@dataclass
class Round:
    """A cell, a system, and the load that goes through it."""

    cell: Cell
    system: System
    load: Load

    def result(self) -> Result:
        """Run it."""
        load = self.load
        with load.stack:
            traces = SIGNED if self.cell.sign else 1
            next_hop = load.start_sink(traces) if self.cell.end_to_end else None

            self._run(load, next_hop)
        return load.result

    def _run(self, load: Load, next_hop: int | None) -> None:
        """Start the system, let the mail through, and add what the meter says to the figures."""
        result = load.result
        with self.system.start(self.cell, load.directory, next_hop) as running:
            result.notes = running.notes
            meter = load.attach(running)

            def check() -> None:
                running.check()
                meter.tick()

            os.sync()
            load.look_at_disk()
            load.transfer(running.port, check, lambda: self._drained(running, result))
            meter.sample()
            os.sync()
            load.look_at_disk()
            load.disk_figures()
        _consumption(result, meter)

    def _drained(self, running: Running, result: Result) -> None:
        """Check that the queue holds what it must: nothing in the end, or all with no next hop."""
        wanted = 0 if self.cell.end_to_end else self.cell.count
        end = time.monotonic() + EMPTY_WITHIN
        while (there := running.queued()) != wanted:
            if time.monotonic() > end:
                result.problems.append(f"{there} messages in the queue, wanted {wanted}")
                return
            time.sleep(0.05)


def _consumption(result: Result, meter: Meter) -> None:
    """Add the sums over a server's groups, and the parts of those that have several."""
    figures = result.figures
    spent = {name: figures.pop(f"CPU ms/message {name}", 0.0) for name in meter.groups}
    figures["CPU ms/message"] = sum(spent.values())
    figures["memory MB"] = meter.peak[""]
    for name, cpu_ms in spent.items():
        figures.pop(f"memory MB {name}", None)
        if len(spent) > 1:
            figures[f"CPU ms/message, {name}"] = cpu_ms
            figures[f"memory MB, {name}"] = meter.peak.get(name, 0.0)
