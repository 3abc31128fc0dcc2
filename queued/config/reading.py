"""Read queued.yaml together with the files that it names."""

from __future__ import annotations

from pathlib import Path

from pgmta.config.loader import Problem, load, load_lines, mistakes
from pgmta.config.types import is_address
from queued.config.answers import Answers, shipped_answers
from queued.config.bounce_texts import read_texts
from queued.config.file import QueuedConfig
from queued.config.shaping import Shaping


def read_config(path: Path, *, passwords: bool = True) -> QueuedConfig:
    """Return the configuration with its shaping, its answers and the passwords of its logins.

    Raises ConfigError with the mistakes.
    """
    config = _with_texts(path, load(path, QueuedConfig))
    problems = _wrong_dane(config)
    problems += ((("retry", *keys), reason) for keys, reason in config.retry.problems())
    if problems:
        raise mistakes(path, problems)
    if config.shaping is not None:
        shaping = _shaping(path, config.shaping, config, passwords=passwords)
        config = config.with_routing(shaping)
    if config.answers is not None:
        config = config.with_answering(_answers(path, config.answers))
    return config


def _wrong_dane(config: QueuedConfig) -> list[Problem]:
    """Return the routes that ask for TLSA records of an address."""
    if config.delivery.tls.mode != "dane":
        return []
    found = {name: to.host for name, to in config.routes.items() if to != "mx"}
    return [
        (("routes", name), f"delivery.tls.mode is dane, but no TLSA record can be for {host}; "
         "write the host's name, or a route with tls: verify in shaping.yaml")
        for name, host in found.items() if is_address(host)
    ]  # fmt: skip


def _shaping(path: Path, name: Path, config: QueuedConfig, *, passwords: bool) -> Shaping:
    file = _file(path, "shaping", name)
    shaping = load(file, Shaping).with_retry(config.retry)
    problems = shaping.problems(config.delivery.tls.mode)
    if passwords:
        problems += shaping.read_passwords(file.parent)
    if problems:
        raise mistakes(file, problems)
    return shaping


def _answers(path: Path, name: Path) -> Answers:
    file = _file(path, "answers", name)
    answers, lines = load_lines(file, Answers)
    groups = {name for book in shipped_answers() for name in book.providers}
    if problems := answers.problems(groups):
        raise mistakes(file, problems)
    numbers = range(len(answers.rules))
    return answers.found_at([f"{name}:{lines['rules', number]}" for number in numbers])


def _file(path: Path, key: str, name: Path) -> Path:
    """Return the file that a key names, relative to `path`. Raises ConfigError."""
    file = path.parent / name
    try:
        file.open("rb").close()
    except OSError as error:
        raise mistakes(path, [((key,), f"{file}: {error.strerror}")]) from None
    return file


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
