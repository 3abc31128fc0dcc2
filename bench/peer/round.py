"""One round of a cell with one system: start it, load it, meter it, compare what arrived."""

import time

from bench import cpu
from bench.daemons import free_port
from bench.ledger import SIGNED_TRACES
from bench.peak import Peak
from bench.peer.cells import Cell
from bench.peer.system import Running, System
from bench.phases import Phase, Result

EMPTY_TIMEOUT_S = 30.0
MEMORY_LOOK_INTERVAL_S = 1.5
SETTLING_S = 30.0  # between the start and the watch of an idle server


def run(cell: Cell, system: System, load: Phase) -> Result:
    """Let the mail of a cell through a system on an empty queue."""
    result = load.result
    if cell.idle:
        with system.start(cell, load.directory, free_port()) as running:
            _watch_idle(running, cell.count, result)
        return result
    with load.stack:
        next_hop = load.start_sink(SIGNED_TRACES if cell.sign else 1) if cell.end_to_end else None
        with system.start(cell, load.directory, next_hop) as running:
            result.notes = running.notes
            load.groups |= running.groups
            peak = Peak(running.groups, MEMORY_LOOK_INTERVAL_S)
            peak.start()
            before, commits = cpu.written(running.groups), running.commits()
            load.transfer(running.port, running.check, lambda: _drained(cell, running, result))
            peak.end()
            _sum(result, running.groups, peak)
            octets = cpu.written(running.groups) - before
            result.figures["KB written/message"] = octets / 1000 / cell.count
            if cell.rate and commits:  # after a second, because PostgreSQL counts late
                result.figures["commits/message"] = (running.commits() - commits) / cell.count
    return result


def _watch_idle(running: Running, seconds: float, result: Result) -> None:
    """Let a server rest, and then watch what it takes without mail."""
    groups, figures = running.groups, result.figures
    time.sleep(SETTLING_S)
    octets, commits, before = cpu.written(groups), running.commits(), cpu.snapshot(groups)
    time.sleep(seconds)
    after = cpu.snapshot(groups)
    running.check()
    spent = {name: after.groups[name] - before.groups[name] for name in groups}
    passed = after.at - before.at
    figures["% of a core"] = 100 * sum(spent.values()) / passed
    figures["memory MB"] = sum(cpu.memory(groups).values())
    figures["KB written/s"] = (cpu.written(groups) - octets) / 1000 / passed
    if commits:
        figures["commits/s"] = (running.commits() - commits) / passed
    if len(groups) > 1:
        figures |= {f"% of a core, {name}": 100 * one / passed for name, one in spent.items()}


def _drained(cell: Cell, running: Running, result: Result) -> None:
    """Check that the queue holds what it must: nothing in the end, or all with no next hop."""
    wanted = 0 if cell.end_to_end else cell.count
    end = time.monotonic() + EMPTY_TIMEOUT_S
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
