"""Files with secrets: rights, and files of other types."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pgmta.secret_file import read_secret


def test_regular_file_of_this_user(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"0123456789")
    for mode in (0o600, 0o640, 0o400):
        path.chmod(mode)
        assert read_secret(path, 4) == b"0123"
    for mode in (0o604, 0o660, 0o601, 0o610):
        path.chmod(mode)
        with pytest.raises(ValueError, match=f"{path} has the mode {mode:04o}: run"):
            read_secret(path, 4)


def test_nobody_waits_for_a_fifo(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path, 0o600)
    with pytest.raises(ValueError, match="fifo is no regular file"):
        read_secret(path, 4)
    with pytest.raises(ValueError, match="Is a directory|is no regular file"):
        read_secret(tmp_path, 4)
    with pytest.raises(ValueError, match="none: No such file"):
        read_secret(tmp_path / "none", 4)
