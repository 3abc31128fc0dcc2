"""An image as its Containerfile makes it in a made root, and its containers by bubblewrap.

Each instruction does what a container tool does. An instruction without an equal here is an error.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.support.debian_root import PATH, run_in
from tests.support.waiting import PATIENCE

UID = 12345
"""Of all containers: the image knows no such user."""

_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")  # that setpriv gives up


class Image:
    """The result of a Containerfile: a root, and what a container has by default."""

    def __init__(self, file: Path, context: Path, root: Path) -> None:
        self.root = root
        self._context = context
        self.environment = {"PATH": PATH}
        self.folder = "/"
        self.volumes: list[str] = []
        self.entrypoint: list[str] = []
        self.command: list[str] = []
        self.user = ""
        self.base = ""
        self._arguments: dict[str, str] = {}
        text = re.sub(r"^\s*#.*\n", "", file.read_text(), flags=re.MULTILINE)
        for line in re.sub(r"\\\n", " ", text).splitlines():
            if line.strip():
                verb, _, rest = line.partition(" ")
                getattr(self, f"_{verb.lower()}")(rest.strip())

    def _arg(self, text: str) -> None:
        name, _, value = text.partition("=")
        self._arguments[name] = value

    def _from(self, text: str) -> None:
        """Take the made root for the named one."""
        assert not self.base, "one stage"
        self.base = re.sub(r"\$\{(\w+)\}", lambda found: self._arguments[found[1]], text)

    def _run(self, text: str) -> None:
        options = ["--chdir", self.folder]
        for name, value in self.environment.items():
            options += ["--setenv", name, value]
        run_in(self.root, text, *options, network=True)

    def _copy(self, text: str) -> None:
        """Copy files, or the content of a folder, as COPY does."""
        *sources, target = text.split()
        place = self.root / os.path.normpath(os.path.join(self.folder, target)).lstrip("/")
        for name in sources:
            source = self._context / name
            assert self._in_context(name), f".dockerignore leaves out {name}"
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, place, dirs_exist_ok=True, ignore=ignored)
            else:
                to_folder = target.endswith("/") or len(sources) > 1
                (place if to_folder else place.parent).mkdir(parents=True, exist_ok=True)
                shutil.copy(source, place)

    def _in_context(self, name: str) -> bool:
        kept = False
        for pattern in (self._context / ".dockerignore").read_text().splitlines():
            wanted = pattern.startswith("!")
            above = [name, *(str(path) for path in Path(name).parents)][:-1] or [name]
            if any(fnmatch.fnmatch(each, pattern.removeprefix("!")) for each in above):
                kept = wanted
        return kept

    def _workdir(self, text: str) -> None:
        self.folder = text
        (self.root / text.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def _env(self, text: str) -> None:
        self.environment |= dict(word.split("=", 1) for word in shlex.split(text))

    def _volume(self, text: str) -> None:
        self.volumes.append(text)

    def _expose(self, text: str) -> None:
        assert int(text) >= 1024

    def _user(self, text: str) -> None:
        self.user = text

    def _entrypoint(self, text: str) -> None:
        self.entrypoint = json.loads(text)

    def _cmd(self, text: str) -> None:
        self.command = json.loads(text)


class Container:
    """A process of an image: read-only root, no capability, uid 12345, own processes.

    It is in the network namespace `network`. `mounts` has folders by their places in the container.
    """

    def __init__(
        self,
        image: Image,
        network: str,
        words: Sequence[str],
        mounts: Mapping[str, Path],
        environment: Mapping[str, str],
        log: Path,
    ) -> None:
        options = ["--ro-bind", str(image.root), "/", "--proc", "/proc", "--dev", "/dev"]
        for place in ("/tmp", "/dev/shm"):
            options += ["--perms", "1777", "--tmpfs", place]
        for place, path in mounts.items():
            if path.is_dir():
                (image.root / place.lstrip("/")).mkdir(parents=True, exist_ok=True)
            options += ["--bind" if place in image.volumes else "--ro-bind", str(path), place]
        for name, value in (image.environment | dict(environment)).items():
            options += ["--setenv", name, value]
        for each in _CAPABILITIES:
            options += ["--cap-add", each]
        # setuid takes the signal of --die-with-parent away
        drop = [
            f"--reuid={UID}",
            f"--regid={UID}",
            "--clear-groups",
            "--no-new-privs",
            "--pdeathsig=SIGKILL",
        ]
        reading, writing = os.pipe()
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", network,
                 "bwrap", "--unshare-pid", "--unshare-ipc", "--as-pid-1", "--die-with-parent",
                 "--clearenv", "--info-fd", str(writing), "--cap-drop", "ALL", *options,
                 "--chdir", image.folder, "setpriv", *drop, "--inh-caps=-all",
                 "--bounding-set=-all", *words],
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                pass_fds=[writing],
            )  # fmt: skip
        os.close(writing)
        with open(reading) as info:
            self.pid = int(json.load(info)["child-pid"]) if self._process.poll() is None else 0
        self.log = log

    def wait(self, timeout: float = PATIENCE) -> str:
        """Wait for the end of a command, which has to succeed; return what it said."""
        status = self.ended(timeout)
        said = self.log.read_text()
        assert status == 0, said
        return said

    def ended(self, timeout: float = PATIENCE) -> int:
        """Wait for the end of a command; return its status."""
        return self._process.wait(timeout)

    def stop(self) -> None:
        """SIGTERM to its first process, which has to end with 0, as `stop` of a container tool."""
        os.kill(self.pid, signal.SIGTERM)
        self.wait()

    def kill(self) -> None:
        """End it by force: its first process, without which none of it lives."""
        with suppress(ProcessLookupError):
            if self._process.poll() is None:
                os.kill(self.pid, signal.SIGKILL)
        self._process.wait()
