"""A bare Debian 13 below a folder, made from the mirror of this machine, and programs in it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.daemons import ROOT

SUITE = "trixie"
PACKAGES = "python3,python3-venv,adduser,ca-certificates"
_WITHIN = 600.0  # seconds


def make_root(folder: Path) -> Path:
    """Return the folder with the system."""
    sources = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    mirrors = sources.stdout.split()  # of the machine
    if not mirrors:
        pytest.skip("apt of this machine has no mirror")
    mirror = mirrors[0]
    root = folder / "root"
    done = subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=minbase", "--mode=root",
         f"--include={PACKAGES}", SUITE, root, f"deb {mirror} {SUITE} main"],
        capture_output=True, text=True, timeout=_WITHIN, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"the mirror of this machine has no {SUITE}: {done.stderr[-300:]}")
    return root


def build_package(tree: Path, folder: Path, version: str) -> Path:
    """Return the package of a tree, built by its own script."""
    done = subprocess.run(
        [tree / "scripts" / "deb"],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(Path.home()),
             "DIST": str(folder), "PGMTA_DEB_VERSION": version},
        capture_output=True, text=True, timeout=_WITHIN, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.split()[-1])


def run_in(root: Path, script: str, *options: str) -> str:
    """Run a shell script in the system, with its network; return its output."""
    done = subprocess.run(
        ["bwrap", "--bind", root, "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/run",
         "--unshare-pid", "--unshare-net", "--die-with-parent", "--cap-add", "ALL", "--clearenv",
         "--setenv", "PATH", "/usr/sbin:/usr/bin:/sbin:/bin", "--setenv", "LC_ALL", "C.UTF-8",
         "--chdir", "/", *options, "sh", "-e"],
        input=script, capture_output=True, text=True, timeout=_WITHIN, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def previous_tree(folder: Path) -> Path:
    """Return the tree of the commit before, if it makes packages; else this one."""
    there = subprocess.run(
        ["git", "cat-file", "-e", "HEAD~1:scripts/deb"], cwd=ROOT, capture_output=True, check=False
    )
    if there.returncode:
        return ROOT
    folder.mkdir()
    archive = subprocess.run(
        ["git", "archive", "HEAD~1"], cwd=ROOT, capture_output=True, check=True
    )
    subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    return folder
