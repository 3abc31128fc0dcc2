"""Three network namespaces: a database, and two programs with a link to it each."""

import os
import secrets
import shutil
import subprocess
from contextlib import ExitStack
from typing import Self

PROGRAMS = ("producer", "consumer")


def possible() -> bool:
    """Return whether this process may make namespaces: Linux, root and iproute2."""
    return hasattr(os, "setns") and os.geteuid() == 0 and shutil.which("ip") is not None


def ip(*words: str) -> str:
    """Run ip(8), and return what it prints. Raises OSError."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Namespaces:
    """Makes the namespaces, and removes them at the end. Raises OSError if it can't."""

    def __init__(self) -> None:
        run = secrets.token_hex(3)
        self._names = {who: f"pgmta-{run}-{who}" for who in ("database", *PROGRAMS)}
        self._stack = ExitStack()
        self.database = self._names["database"]
        """The name of the namespace of the database."""
        self.addresses = {who: f"10.199.{place}.2" for place, who in enumerate(PROGRAMS)}
        """The address of the database, as each program sees it."""

    def __enter__(self) -> Self:
        """Make them."""
        with ExitStack() as stack:
            for name in self._names.values():
                ip("netns", "add", name)
                stack.callback(ip, "netns", "delete", name)
                ip("-n", name, "link", "set", "lo", "up")
            for who, address in self.addresses.items():
                name = self._names[who]
                peer = ["peer", "name", who, "netns", self.database]
                ip("-n", name, "link", "add", "net", "type", "veth", *peer)
                near = address.rpartition(".")[0] + ".1"
                for place, link, own in ((name, "net", near), (self.database, who, address)):
                    ip("-n", place, "address", "add", f"{own}/24", "dev", link)
                    ip("-n", place, "link", "set", link, "up")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove them."""
        self._stack.close()

    def words(self, who: str) -> list[str]:
        """Return the words before a command that run it in the namespace of this program."""
        return ["ip", "netns", "exec", self._names[who]]
