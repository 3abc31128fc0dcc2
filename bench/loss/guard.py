"""Removes hosts, with their processes and files, once standard input ends: also after a kill."""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from bench.loss.hosts import kill_all


def mounts(folder: str) -> list[str]:
    """Return what is mounted below a folder, the last one first."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [point for line in reversed(lines) if (point := line.split()[1]).startswith(folder)]


def main() -> None:
    """Wait, and remove; argument: JSON with the namespaces and the folder."""
    what = json.loads(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()
    for space in what["namespaces"]:
        with contextlib.suppress(OSError):
            kill_all(space)
        subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)
    for point in mounts(what["folder"]):
        subprocess.run(["umount", "--lazy", point], capture_output=True, check=False)
    shutil.rmtree(what["folder"], ignore_errors=True)


if __name__ == "__main__":
    main()
