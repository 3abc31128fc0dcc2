"""Content of a message as a file, for hooks: above `hook_limits.content` it is not in memory."""

from __future__ import annotations

import asyncio
import io
import os
import tempfile
from typing import IO, Any


class ContentFile(io.BufferedReader):
    """The content of one message, as a binary file that can be read and sought.

    Each hook gets its own, which begins at the start of the content.
    """

    def again(self) -> ContentFile:
        """Return another one of the same content, at its start."""
        raw: Any = self.raw
        return ContentFile(_Octets(raw.fileno(), raw.size))

    @property
    def size(self) -> int:
        """Octets of the content."""
        raw: Any = self.raw
        return int(raw.size)


class _Octets(io.RawIOBase):
    """Reads from a file with its own position, so that a late hook disturbs no other one."""

    def __init__(self, descriptor: int, size: int) -> None:
        super().__init__()
        self._descriptor = os.dup(descriptor)
        self._at = 0
        self.size = size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def readinto(self, buffer: Any) -> int:
        if self.closed:
            raise ValueError("the file is closed")
        count = os.preadv(self._descriptor, [buffer], self._at)
        self._at += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        if start + offset < 0:
            raise ValueError("a position before the start of the file")
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()


class Spool:
    """The file of a message on its way in, in the folder for temporary files. It has no name.

    The methods that write are called one after the other.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self.size = 0

    async def write(self, octets: bytes) -> None:
        """Append octets. Raises OSError."""
        await asyncio.to_thread(self._write, octets)

    def _write(self, octets: bytes) -> None:
        if not self._file:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - until the message ends
        view = memoryview(octets)
        while view:
            view = view[self._file.write(view) :]
        self.size += len(octets)

    def open_content(self) -> ContentFile:
        """Return the content so far."""
        assert self._file  # noqa: S101 - it was written before
        return ContentFile(_Octets(self._file.fileno(), self.size))

    def __del__(self) -> None:
        """Forget the content; files that are open still have it."""
        if self._file:
            self._file.close()
