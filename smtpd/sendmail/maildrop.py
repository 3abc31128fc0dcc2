"""The directory in which mail waits while smtpd is away."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Iterator

from smtpd.sendmail.exits import TEMPORARY, Exit
from smtpd.sendmail.submitted_envelope import SubmittedEnvelope

_SUFFIX = ".mail"
_NAME = re.compile(r"[0-9A-Za-z.-]+\.mail")  # other names may be made up to mislead a reader
_UNSAFE = re.compile(r"[^0-9A-Za-z.-]")
_REFUSED_SUFFIX = ".refused"
_MAX_STEM_CHARACTERS = 100  # of a refused file's name, before `.refused`
# of links, devices and the like
_LASTING_ERRORS = (errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EACCES, errno.EPERM)
_MAX_HEAD_OCTETS = 1 << 22  # of the first line, which has the envelope
_MAX_WORD_CHARACTERS = 2000  # of an address or a parameter
_MAX_MESSAGE_OCTETS = 1 << 28  # unless smtpd gives another number
_OLD_S = 86400.0  # afterwards a half-written file is removed


class Maildrop:
    """Files of one message each: a line of JSON with the envelope, then the content.

    Users may add files and can't list them, if the directory has mode 1733. The names are long
    and random, so users can't guess those of others.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def keep_message(
        self, envelope: SubmittedEnvelope, content: bytes, reason: str, name: str = ""
    ) -> str:
        """Write the message and return its name; it is durable then. Raises Exit with code 75.

        With the `name` of a message it replaces that one.
        """
        name = name.removesuffix(_SUFFIX) or f"{time.time_ns():x}-{os.urandom(16).hex()}"
        path = os.path.join(self.directory, name)
        head = {**vars(envelope), "size": len(content), "uid": os.getuid(), "reason": reason}
        line = json.dumps(head, ensure_ascii=True).encode()
        try:
            fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            with open(fd, "wb") as file:
                os.fchmod(fd, 0o644)
                file.write(line + b"\n" + content)
                file.flush()
                os.fsync(fd)
            os.rename(path + ".new", path + _SUFFIX)
            self._sync()
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(path + ".new")
            raise Exit(
                TEMPORARY, f"{reason}; the message can't wait in {self.directory}: {error.strerror}"
            ) from None
        return name + _SUFFIX

    def _sync(self) -> None:
        with contextlib.suppress(PermissionError):  # raised if this user may not read the directory
            fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def check_owner(self) -> None:
        """Raise Exit with code 75 if this user can't remove the messages of others.

        They would be sent again and again.
        """
        found = os.stat(self.directory)
        if found.st_mode & stat.S_ISVTX and os.geteuid() not in (0, found.st_uid):
            raise Exit(TEMPORARY, f"only the owner of {self.directory} can send what waits there")

    def names(self) -> list[str]:
        """Return the names of the messages that wait, the oldest first. Raises OSError."""
        found = [name for name in os.listdir(self.directory) if _NAME.fullmatch(name)]
        return sorted(found, key=lambda name: (len(name.partition("-")[0]), name))

    def misnamed(self) -> list[str]:
        """Return the names that look like those of messages, and are none. Raises OSError."""
        found = os.listdir(self.directory)
        return [name for name in found if name.endswith(_SUFFIX) and not _NAME.fullmatch(name)]

    @contextlib.contextmanager
    def take_message(
        self, name: str, largest: int = _MAX_MESSAGE_OCTETS
    ) -> Iterator[tuple[SubmittedEnvelope, bytes] | None]:
        """Yield envelope and content of a message.

        The file is locked meanwhile; None if another command has it. Any user may have written it.
        Raises ValueError if it is no file of a message, or has over `largest` octets of content,
        and OSError.
        """
        path = os.path.join(self.directory, name)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _LASTING_ERRORS:
                raise ValueError(f"it can't be opened: {error.strerror}") from None
            raise
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            os.close(fd)
            raise ValueError("it is no regular file, or it has another link")
        with open(fd, "rb") as file:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
                return
            if not os.path.exists(path):  # the mail was sent a moment ago
                yield None
                return
            line = file.readline(_MAX_HEAD_OCTETS)
            content = b"" if found.st_size - len(line) > largest else file.read(largest + 1)
            if found.st_size - len(line) > largest or len(content) > largest:
                raise ValueError(f"it has over {largest} octets")
            yield _read(line, content)

    def remove_message(self, name: str) -> None:
        """Remove a message that smtpd has taken."""
        os.unlink(os.path.join(self.directory, name))

    def set_aside(self, name: str) -> str:
        """Rename a message that smtpd refuses for good, so that it is not tried again.

        Returns the new name, which is none that another file has. Any user may have made the old
        one. Raises OSError.
        """
        stem = name.removesuffix(_SUFFIX)
        new = _UNSAFE.sub("_", stem)[:_MAX_STEM_CHARACTERS]
        if (
            new != stem
            or not new
            or os.path.lexists(os.path.join(self.directory, new + _REFUSED_SUFFIX))
        ):
            new += f"-{os.urandom(8).hex()}"
        new += _REFUSED_SUFFIX
        os.rename(os.path.join(self.directory, name), os.path.join(self.directory, new))
        return new

    def tidy(self) -> None:
        """Remove files whose writers died long ago."""
        for name in os.listdir(self.directory):
            path = os.path.join(self.directory, name)
            with contextlib.suppress(OSError):
                if name.endswith(".new") and os.lstat(path).st_mtime < time.time() - _OLD_S:
                    os.unlink(path)


def _read(line: bytes, content: bytes) -> tuple[SubmittedEnvelope, bytes]:
    try:
        head = json.loads(line)
        known = {key: head[key] for key in vars(SubmittedEnvelope())}
        size = head["size"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"its first line can't be read: {error}") from None
    except RecursionError:
        raise ValueError("its first line can't be read") from None
    _check(known)
    if size != len(content):
        raise ValueError(f"it has {len(content)} octets of content instead of {size}")
    return SubmittedEnvelope(**known), content


def _check(known: dict[str, object]) -> None:
    """Raise ValueError for what can't be an envelope."""
    recipients = known["recipients"]
    if not isinstance(recipients, list) or not recipients:
        raise ValueError("its first line has no list of recipients")
    for word in [*recipients, *(value for key, value in known.items() if key != "recipients")]:
        if not isinstance(word, str) or len(word) > _MAX_WORD_CHARACTERS:
            raise ValueError("its first line has something else in place of a word")
