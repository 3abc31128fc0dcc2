"""Debian packages unpacked into a scratch place: nothing is installed on the machine."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path


class Unavailable(Exception):
    """A peer cannot run here; the text names the missing part in one line."""


def need_root() -> None:
    """Raise Unavailable unless the user is root: peers have separate users and mounts."""
    if os.geteuid():
        raise Unavailable("needs root, because it has separate users")
    if not shutil.which("unshare"):
        raise Unavailable("needs unshare (util-linux)")


def run(command: Sequence[str | Path], within: float = 180.0, cwd: Path | None = None) -> str:
    """Run a command and return its output; Unavailable with its last line when it fails."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]}: {error}") from error
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise Unavailable(f"{command[0]}: {lines[-1][:300] if lines else done.returncode}")
    return done.stdout


def unpack(name: str, directory: Path) -> Path:
    """Fetch a Debian package with whatever it lacks here, and return the root it is unpacked to."""
    root = directory / name
    if (root / "usr").is_dir():
        return root
    for tool in ("apt-get", "dpkg"):
        if not shutil.which(tool):
            raise Unavailable(f"no {tool} here to fetch the Debian package {name}")
    archives = directory / f"{name}.archives"
    (archives / "partial").mkdir(parents=True, exist_ok=True)
    # --download-only resolves missing dependencies too, and installs nothing
    run(
        [
            *("apt-get", "install", "--download-only", "--reinstall", "--yes"),
            *("--no-install-recommends", "-o", f"Dir::Cache::archives={archives}"),
            *("-o", "Debug::NoLocking=true", "-o", "APT::Sandbox::User=root", name),
        ]
    )
    fetched = sorted(archives.glob("*.deb"))
    if not fetched:
        raise Unavailable(f"apt-get fetched no {name}")
    partial = directory / f"{name}.partial"
    for path in fetched:
        if not path.name.startswith("libc6"):  # libc has to be that of the machine's loader
            run(["dpkg", "-x", path, partial])
    partial.rename(root)
    return root


def libraries(root: Path) -> str:
    """Return a value for LD_LIBRARY_PATH with the libraries in an unpacked root."""
    places = [*root.glob("usr/lib/*-linux-gnu*"), *root.glob("lib/*-linux-gnu*")]
    return ":".join(str(place) for place in places)


def version(name: str, directory: Path) -> str:
    """Return the version of a package fetched into the directory."""
    for path in (directory / f"{name}.archives").glob(f"{name}_*.deb"):
        return run(["dpkg-deb", "-f", path, "Version"]).strip()
    return "?"
