"""Files and folders of the embedded server, safe from other users of the machine."""

from __future__ import annotations

import fcntl
import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path

from pgmta.errors import ServerRefused

_PRIVATE_MODE = 0o700
_PASSABLE_MODE = 0o711
_SHARED_MODE = 0o755
_OPEN_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_NOTE_OCTETS = 200


def user_name(uid: int) -> str:
    """Return the name of a user of the system, or its number if it has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def make_parents(path: Path) -> None:
    """Make a folder and the missing folders above it; other users may pass through root's.

    Folders that exist stay as they are. Raises ServerRefused.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        try:
            folder.mkdir()
            if os.geteuid() == 0:
                folder.chmod(_PASSABLE_MODE)
        except FileExistsError:
            continue  # another process was faster
        except OSError as error:
            raise ServerRefused(f"can't make the folder {folder}: {error.strerror}") from None


def make_private(path: Path, uid: int, gid: int) -> None:
    """Make a folder that only the user `uid` enters, or check the existing one.

    No symbolic link is followed. Raises ServerRefused if the path is no folder, belongs to another
    user, or may be written by others.
    """
    _give(_open_folder(path, uid, _PRIVATE_MODE), uid, gid)


def open_shared(path: Path) -> int:
    """Open a folder that only this user writes and each user reads; make it if it is missing.

    Raises ServerRefused as `make_private` does.
    """
    return _open_folder(path, os.geteuid(), _SHARED_MODE)


def _open_folder(path: Path, uid: int, mode: int) -> int:
    with suppress(FileExistsError):
        os.mkdir(path, _PRIVATE_MODE)
    folder = _open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        status = os.fstat(folder)
        if status.st_uid not in (uid, os.geteuid()):
            raise ServerRefused(
                f"{path} belongs to the user {user_name(status.st_uid)}, not to {user_name(uid)}: "
                "remove it"
            )
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ServerRefused(
                f"{path} may be written by other users (mode {stat.S_IMODE(status.st_mode):o}): "
                "remove it"
            )
        os.fchmod(folder, mode)
    except BaseException:
        os.close(folder)
        raise
    return folder


def open_own(path: Path) -> int:
    """Open a file of this user for reading and writing, mode 0600; make it if it is missing.

    No symbolic link is followed. The folder is private, so nobody else has put a file there.
    Raises ServerRefused if it is no plain file, or has a second name.
    """
    number = _open(path, os.O_RDWR | os.O_CREAT)
    status = os.fstat(number)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(number)
        raise ServerRefused(f"{path} is not a plain file with one name: remove it")
    return number


def locked(number: int) -> bool:
    """Lock an open file exclusively; return False if another process has locked it."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def hold(path: Path, command: str, note: str) -> int:
    """Lock a file until its descriptor is closed, and write this process and `note` into it.

    Raises ServerRefused, which says that `command` runs already, and what it has written.
    """
    number = open_own(path)
    if not locked(number):
        other = (
            os.pread(number, _MAX_NOTE_OCTETS, 0).decode(errors="replace").strip() or "no pid yet"
        )
        os.close(number)
        raise ServerRefused(f"`{command}` already runs on {path.parent}: {other}")
    os.ftruncate(number, 0)
    os.pwrite(number, f"pid {os.getpid()}{note}\n".encode(), 0)
    return number


def make_file(path: Path, uid: int, gid: int) -> None:
    """Make an empty file of the user `uid`, mode 0600; an existing file is given to the user.

    Raises ServerRefused as `open_own` does.
    """
    _give(open_own(path), uid, gid)


def _give(number: int, uid: int, gid: int) -> None:
    """Make an open file or folder the user's, and close it."""
    try:
        if os.fstat(number).st_uid != uid:
            os.fchown(number, uid, gid)
    finally:
        os.close(number)


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | _OPEN_FLAGS, 0o600)
    except OSError as error:
        reason = "is a symbolic link" if path.is_symlink() else error.strerror
        raise ServerRefused(f"can't use {path}: {reason}") from None
