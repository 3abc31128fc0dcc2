"""Read queued.yaml together with the files that it names."""

from __future__ import annotations

from pathlib import Path

from pgmta.config.loader import load, mistakes
from queued.config.bounce_texts import read_texts
from queued.config.file import QueuedConfig
from queued.config.shaping import Shaping


def read_config(path: Path, *, passwords: bool = True) -> QueuedConfig:
    """Return the configuration with its shaping, and with the passwords of its logins.

    Raises ConfigError with the mistakes.
    """
    config = _with_texts(path, load(path, QueuedConfig))
    if config.shaping is None:
        return config
    file = path.parent / config.shaping
    try:
        file.open("rb").close()
    except OSError as error:
        raise mistakes(path, [(("shaping",), f"{file}: {error.strerror}")]) from None
    shaping = load(file, Shaping)
    problems = shaping.problems()
    if passwords:
        problems += shaping.read_passwords(file.parent)
    if problems:
        raise mistakes(file, problems)
    return config.with_routing(shaping)


def _with_texts(path: Path, config: QueuedConfig) -> QueuedConfig:
    """Return the configuration with the texts of DSNs. Raises ConfigError with their mistakes."""
    folder = config.bounces.templates
    if folder is not None:
        folder = path.parent / folder
        if not folder.is_dir():
            raise mistakes(path, [(("bounces", "templates"), f"{folder}: no such folder")])
        if not any(folder.glob("*.txt")):
            reason = f"{folder}: has no text, such as en.txt"
            raise mistakes(path, [(("bounces", "templates"), reason)])
    try:
        return config.with_texts(read_texts(folder, config.bounces.language))
    except ValueError as error:
        raise mistakes(path, [(("bounces", "language"), str(error))]) from None
