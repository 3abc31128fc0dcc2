"""One round of a cell with one system: start it, load it, meter it, compare what arrived."""

import time

from bench import cpu
from bench.ledger import SIGNED
from bench.peak import Peak
from bench.peer.cells import Cell
from bench.peer.system import Running, System
from bench.phases import Phase, Result

EMPTY_WITHIN = 30.0
LOOK = 1.5  # seconds between samples of memory


def run(cell: Cell, system: System, load: Phase) -> Result:
    """Let the mail of a cell through a system on an empty queue."""
    result = load.result
    with load.stack:
        next_hop = load.start_sink(SIGNED if cell.sign else 1) if cell.end_to_end else None
        with system.start(cell, load.directory, next_hop) as running:
            result.notes = running.notes
            load.groups |= running.groups
            peak = Peak(running.groups, LOOK)
            peak.start()
            load.transfer(running.port, running.check, lambda: _drained(cell, running, result))
            peak.end()
            _sum(result, running.groups, peak)
    return result


def _drained(cell: Cell, running: Running, result: Result) -> None:
    """Check that the queue holds what it must: nothing in the end, or all with no next hop."""
    wanted = 0 if cell.end_to_end else cell.count
    end = time.monotonic() + EMPTY_WITHIN
    while (there := running.queued()) != wanted:
        if time.monotonic() > end:
            result.problems.append(f"{there} messages in the queue, wanted {wanted}")
            return
        time.sleep(0.05)


def _sum(result: Result, groups: cpu.Groups, peak: Peak) -> None:
    """Add the sums over a server's groups, and the parts of those that have several."""
    figures = result.figures
    spent = {name: figures.pop(f"CPU ms/message {name}", 0.0) for name in groups}
    figures["CPU ms/message"] = sum(spent.values())
    figures["memory MB"] = peak.figures().get("peak MB product", 0.0)
    for name, cpu_ms in spent.items():
        figures.pop(f"memory MB {name}", None)
        if len(spent) > 1:
            figures[f"CPU ms/message, {name}"] = cpu_ms
