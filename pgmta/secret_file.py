"""Files with passwords and private keys, which other users can't read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

# Others may have no right at all, and the group may only read.
_FORBIDDEN_MODE = stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP


def read_secret(path: str | Path, most: int) -> bytes:
    """Return up to `most` octets of a file.

    Raises ValueError if the file can't be read, gives others too many rights, or is no regular
    file. The text names the path. A FIFO is not waited for.
    """
    try:
        with open(path, "rb", opener=_open) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise ValueError(f"{path} is no regular file")
            if mode & _FORBIDDEN_MODE:
                shown = f"{stat.S_IMODE(mode):04o}"
                raise ValueError(f"{path} has the mode {shown}: run `chmod 0640` or `chmod 0600`")
            return file.read(most)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
