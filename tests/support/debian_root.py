"""A bare Debian 13 below a folder, made from the mirror of this machine, and programs in it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.support.daemons import ROOT
from tests.support.trees import tree_of

SUITE = "trixie"
PACKAGES = "python3,python3-venv,adduser,ca-certificates,libnss-wrapper,pipx,systemd"
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_WITHIN = 600.0  # seconds
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def make_root(folder: Path, factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the system, a copy of one that all tests of a run share.

    The first one to ask makes it, because that takes a minute.
    """
    shared = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # it has a folder in that of the run
        shared = shared.parent
    model = shared / "debian"
    with open(shared / "debian.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not model.exists():
            _bootstrap(shared / "debian.new")
            (shared / "debian.new").rename(model)
    root = folder / "root"
    subprocess.run(["cp", "-a", model, root], check=True, timeout=_WITHIN)
    return root


def _bootstrap(root: Path) -> None:
    sources = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    mirrors = sources.stdout.split()  # of the machine
    if not mirrors:
        pytest.skip("apt of this machine has no mirror")
    mirror = mirrors[0]
    shutil.rmtree(root, ignore_errors=True)
    done = subprocess.run(
        # with mounts of its own, which end with it even if it is killed: it mounts /dev/shm of this
        # machine in the root, and who removes that root would remove what others have there
        ["unshare", "--mount", "mmdebstrap", "--quiet", "--variant=minbase", "--mode=root",
         f"--include={PACKAGES}", SUITE, root, f"deb {mirror} {SUITE} main"],
        capture_output=True, text=True, timeout=_WITHIN, check=False,
    )  # fmt: skip
    if done.returncode:
        if not _has_suite(mirror):
            pytest.skip(f"the mirror of this machine does not answer, or has no {SUITE}")
        pytest.fail(f"mmdebstrap: {done.stderr[-1000:]}")


def _has_suite(mirror: str) -> bool:
    """Return whether apt of this machine gets the list of the suite."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"{mirror.rstrip('/')}/dists/{SUITE}/InRelease"
        return subprocess.run(
            ["/usr/lib/apt/apt-helper", "download-file", url, f"{folder}/list"],
            capture_output=True, timeout=_WITHIN, check=False,
        ).returncode == 0  # fmt: skip


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


def run_in(root: Path, script: str, *options: str | Path, network: bool = False) -> str:
    """Run a shell script in the system; return its output.

    Without `network` it has its own one. With it, it has that of this machine, and finds
    what apt and pip of this machine use.
    """
    done = subprocess.run(
        ["bwrap", "--bind", root, "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/run",
         "--unshare-pid", "--die-with-parent", "--cap-add", "ALL", "--clearenv",
         "--setenv", "PATH", PATH, "--setenv", "LC_ALL", "C.UTF-8",
         *(registries() if network else ["--unshare-net"]), "--chdir", "/", *options, "sh", "-e"],
        input=script, capture_output=True, text=True, timeout=_WITHIN, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def registries() -> list[str]:
    """Return options of bubblewrap by which apt and pip find what those of this machine find."""
    options = ["--setenv", "DEBIAN_FRONTEND", "noninteractive"]
    for name, value in os.environ.items():
        if name.startswith("PIP_") or name.lower().endswith("_proxy"):
            options += ["--setenv", name, value]
    if _CERTIFICATES.exists():
        options += ["--ro-bind", str(_CERTIFICATES), "/run/certificates"]
        options += ["--setenv", "PIP_CERT", "/run/certificates"]
    for path in ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf"):
        if Path(path).exists():
            options += ["--ro-bind", path, path]
    return options


def previous_tree(folder: Path) -> Path:
    """Return the tree of the commit before, if its schema is the same; else this one.

    Before the first release nothing migrates a database to another schema.
    """
    same = subprocess.run(
        ["git", "diff", "--quiet", "HEAD~1", "--", "sql/schema", "pgmta_features/*.sql"],
        cwd=ROOT, capture_output=True, check=False,
    )  # fmt: skip
    if same.returncode:
        return ROOT
    tree_of("HEAD~1", folder)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    return folder
