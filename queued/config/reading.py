"""Read queued.yaml together with the shaping.yaml that it names."""

from __future__ import annotations

from pathlib import Path

from pgmta.config.loader import load, mistakes
from queued.config.file import QueuedConfig
from queued.config.shaping import Shaping


def read_config(path: Path, *, passwords: bool = True) -> QueuedConfig:
    """Return the configuration with its shaping, and with the passwords of its logins.

    Raises ConfigError with the mistakes.
    """
    config = load(path, QueuedConfig)
    if problems := [(("retry", *keys), reason) for keys, reason in config.retry.problems()]:
        raise mistakes(path, problems)
    if config.shaping is None:
        return config
    file = path.parent / config.shaping
    try:
        file.open("rb").close()
    except OSError as error:
        raise mistakes(path, [(("shaping",), f"{file}: {error.strerror}")]) from None
    shaping = load(file, Shaping).with_retry(config.retry)
    problems = shaping.problems()
    if passwords:
        problems += shaping.read_passwords(file.parent)
    if problems:
        raise mistakes(file, problems)
    return config.with_routing(shaping)
