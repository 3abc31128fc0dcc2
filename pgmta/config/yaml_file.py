"""Read YAML files as plain values, with the line of each key, and the files that they include."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from pgmta.errors import ConfigError

type Key = tuple[str | int, ...]

INCLUDE_KEY = "include"
"""The key whose files a file includes."""

_MAX_FILES = 100  # that a file includes, each time that one is read
_MAX_FILE_OCTETS = 1_000_000
_MAX_DEPTH = 16  # without a limit an alias that contains itself would never end
_MAX_VALUES = 200_000  # of a file that has fewer characters
_TOO_MANY_VALUES = "too many values; an alias (*NAME) repeats each value of its anchor (&NAME)"
_TAG_PREFIX = "tag:yaml.org,2002:"
_WHOLE_NUMBER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
# the name may be the text of another file, and is not repeated
_NAMED_IN_PROBLEM = re.compile(r"(alias|anchor|handle) '.*?'")
_BOOLEANS = yaml.SafeLoader.bool_values  # undocumented; checked with PyYAML 6.0.3


class KeyLines(dict[Key, int]):
    """The line of each key, and the file of a key that another file has included."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[Key, Path] = {}

    def nearest(self, key: Key) -> Key:
        """Return the key, or the nearest section around it that a file has."""
        while key and key not in self:
            key = key[:-1]
        return key

    def take_key(self, key: Key, other: KeyLines) -> None:
        """Take the place of a key from other lines."""
        if key in other:
            self[key] = other[key]
            self.files.pop(key, None)
            if key in other.files:
                self.files[key] = other.files[key]

    def drop(self, key: Key) -> None:
        """Forget a key, and all keys in it."""
        for each in [each for each in self if each[: len(key)] == key]:
            del self[each]
            self.files.pop(each, None)


class Mistakes:
    """Mistakes of a file and of those that it includes, in the order of their lines."""

    def __init__(self, path: Path | str) -> None:
        self.path = path
        self._problems: list[tuple[str, int, str]] = []  # file, line, text
        self._keys: set[str] = set()  # keys with a mistake so far

    def add(self, line: int | None, key: str, reason: str, file: Path | None = None) -> None:
        """Note a mistake; `file` is that of the key if another file has included it."""
        if key and key in self._keys:
            return  # the first mistake of a key is the cause of the later ones
        self._keys.add(key)
        path = file or self.path
        where = f"{path}:{line}" if line else f"{path}"
        text = ": ".join(filter(None, (where, key, reason)))
        self._problems.append((str(file or ""), line or 0, " ".join(text.splitlines())))

    def take(self, others: Mistakes) -> None:
        """Add the mistakes of an included file."""
        self._problems += [(str(others.path), line, text) for _, line, text in others._problems]
        self._keys |= others._keys

    def add_key(self, key: Key, lines: KeyLines, reason: str) -> None:
        """Note a mistake of a key, at the line that it has."""
        near = lines.nearest(key)
        self.add(lines.get(near), dotted(key), reason, lines.files.get(near))

    def __bool__(self) -> bool:
        return bool(self._problems)

    def error(self) -> ConfigError:
        """Return all mistakes as one error, in the order of the files."""
        return ConfigError([text for *_, text in sorted(self._problems, key=lambda p: p[:2])])


def read_file(path: Path) -> tuple[dict[str, Any], KeyLines, Mistakes]:
    """Return the values of a file and of those that it includes, their lines, and mistakes.

    Its own keys go before those of included files, and later files before earlier ones. Mappings
    are merged, and other values replaced. Raises ConfigError.
    """
    try:
        with path.open("rb") as file:  # the path may be a pipe, as in `-c <(program)`
            text, identity = _bounded(file), _same(os.fstat(file.fileno()))
    except (OSError, ValueError) as error:
        raise ConfigError([f"{path}: {_reason(error)}"]) from None
    data, lines, mistakes = read_text(text, path)
    if INCLUDE_KEY in data:
        data, lines = _Included(identity, mistakes).join(data, lines, path)
    return data, lines, mistakes


class _Included:
    """Joins a file with those that it includes, at most 100, each a regular one of at most 1 MB."""

    def __init__(self, first: tuple[int, int], mistakes: Mistakes) -> None:
        self._mistakes = mistakes
        self._way = [first]  # the files whose `include` led to the present one
        self._left = _MAX_FILES

    def join(
        self, own: dict[str, Any], own_lines: KeyLines, path: Path
    ) -> tuple[dict[str, Any], KeyLines]:
        """Return the values of the file `path` upon those of the files that it includes.

        Raises ConfigError.
        """
        data, lines = dict[str, Any](), KeyLines()
        names = own.pop(INCLUDE_KEY)
        for number, name in enumerate(names if isinstance(names, list) else [names]):
            key: Key = (INCLUDE_KEY, number) if isinstance(names, list) else (INCLUDE_KEY,)
            try:
                _merge(data, lines, *self._read(path, name))
            except _NotIncluded as error:
                file = path if len(self._way) > 1 else None
                self._mistakes.add(own_lines[key], dotted(key), str(error), file)
                if self._left < 0:
                    raise self._mistakes.error() from None
        own_lines.drop((INCLUDE_KEY,))
        _merge(data, lines, own, own_lines)
        return data, lines

    def _read(self, path: Path, name: Any) -> tuple[dict[str, Any], KeyLines]:
        """Return the values of an included file. Raises _NotIncluded and ConfigError."""
        if not isinstance(name, str) or not name:
            raise _NotIncluded("expected the path of a file, or a list of paths")
        self._left -= 1
        if self._left < 0:
            raise _NotIncluded(f"over {_MAX_FILES} files are included")
        other = path.parent / name
        try:
            text, identity = _regular(other)
        except (OSError, ValueError) as error:
            raise _NotIncluded(f"{other}: {_reason(error)}") from None
        if identity in self._way:
            raise _NotIncluded(f"{other} includes itself")
        data, lines, found = read_text(text, other)
        self._mistakes.take(found)
        if INCLUDE_KEY in data:
            self._way.append(identity)
            data, lines = self.join(data, lines, other)
            self._way.pop()
        for each in lines:
            lines.files.setdefault(each, other)
        return data, lines


class _NotIncluded(Exception):
    """Has the reason why a file is not included."""


def _regular(path: Path) -> tuple[str, tuple[int, int]]:
    """Return the text of a regular file, and which one it is. Raises OSError, ValueError."""
    with open(path, "rb", opener=_at_once) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise _Refused("is no regular file")
        return _bounded(file), _same(found)


def _bounded(file: BinaryIO) -> str:
    """Return the text of a file that is not too long. Raises OSError, ValueError."""
    octets = file.read(_MAX_FILE_OCTETS + 1)
    if len(octets) > _MAX_FILE_OCTETS:
        raise _Refused(f"has over {_MAX_FILE_OCTETS // 1_000_000} MB")
    return octets.decode()


def _at_once(path: str, flags: int) -> int:
    """Open a file, also a FIFO without a writer. Raises OSError."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _same(found: os.stat_result) -> tuple[int, int]:
    """Return by what a file is known, whatever its path."""
    return found.st_dev, found.st_ino


def _merge(
    data: dict[str, Any],
    lines: KeyLines,
    upper: dict[str, Any],
    upper_lines: KeyLines,
    at: Key = (),
) -> None:
    """Put the values of `upper` into `data`, with their lines."""
    for name, value in upper.items():
        key = (*at, name)
        below = data.get(name)
        if isinstance(below, dict) and isinstance(value, dict):
            lines.take_key(key, upper_lines)
            _merge(below, lines, value, upper_lines, key)
            continue
        lines.drop(key)
        data[name] = value
        for each in [each for each in upper_lines if each[: len(key)] == key]:
            lines.take_key(each, upper_lines)
    if not at:
        lines.take_key((), upper_lines)


def read_text(text: str, path: Path) -> tuple[dict[str, Any], KeyLines, Mistakes]:
    """Return the same of the text of a file, whose `include` is a key as any other.

    Raises ConfigError.
    """
    mistakes = Mistakes(path)
    lines = KeyLines()
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(node, yaml.MappingNode | None) and node.tag != f"{_TAG_PREFIX}null":
            # the text is left out, because it may be a file with a password
            mistakes.add(1, "", "expected a mapping of keys at the top")
            raise mistakes.error()
        data = _Reader(text, lines, mistakes).read(node) if node is not None else None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        reason = _NAMED_IN_PROBLEM.sub(r"\1", reason)
        if reason == "mapping values are not allowed here":
            reason += "; a value with `: ` in it needs quotes"
        mistakes.add(mark.line + 1 if mark else None, "", f"YAML: {reason}")
        raise mistakes.error() from None
    except RecursionError:
        raise ConfigError([f"{path}: YAML: nested too deeply"]) from None
    except _TooMany as error:
        mistakes = Mistakes(path)
        line, key = error.args
        mistakes.add(line, key, f"YAML: {_TOO_MANY_VALUES}")
        raise mistakes.error() from None
    return data or {}, lines, mistakes


class _Refused(ValueError):
    """Has the reason why a file is not read."""


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, _Refused):
        return str(error)
    return "is not UTF-8" if isinstance(error, UnicodeDecodeError) else "is no path"


class _TooMany(Exception):
    """Has the line and the key at which the aliases of the file have made too many values."""


class _Reader:
    """Reads nodes of YAML as plain values; notes the line of each key, and mistakes.

    Aliases may repeat values, but only some: a few lines can ask for any number.
    """

    def __init__(self, text: str, lines: KeyLines, bad: Mistakes) -> None:
        self._lines = lines
        self._bad = bad
        self._left = max(_MAX_VALUES, len(text))  # without aliases no text has more values

    def read(self, node: yaml.Node, path: Key = ()) -> Any:
        """Return a node as plain values. Raises RecursionError and _TooMany."""
        line = node.start_mark.line + 1
        self._lines.setdefault(path, line)
        if len(path) > _MAX_DEPTH:
            raise RecursionError
        self._left -= 1
        if self._left < 0:
            raise _TooMany(self._lines[path[:1]], dotted(path[:1]))
        if isinstance(node, yaml.SequenceNode):
            return [self.read(child, (*path, i)) for i, child in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            return self._scalar(node, path)
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._bad.add(line, dotted(path), "a key is a single word")
                continue
            key = str(key_node.value)
            inner = (*path, key)
            if key in result:
                first = self._lines[inner]
                self._bad.add(line, dotted(inner), f"is written twice, first on line {first}")
            self._lines[inner] = line
            result[key] = self.read(value_node, inner)
        return result

    def _scalar(self, node: yaml.Node, path: Key) -> Any:
        """Return a value, without YAML's surprising readings of 0525, 1:30 and 2025-01-31."""
        text = str(node.value)
        kind = node.tag.removeprefix(_TAG_PREFIX)
        if kind in ("str", "timestamp", "value"):
            return text
        if kind == "null":
            return None
        if kind == "bool" and text.lower() in _BOOLEANS:
            return _BOOLEANS[text.lower()]
        if kind == "int" and _WHOLE_NUMBER.fullmatch(text):
            return int(text)
        if kind == "float":
            with suppress(ValueError):
                return float(text)
        word = {"int": "decimal number", "float": "decimal number", "bool": "boolean"}.get(
            kind, f"{kind} value"
        )
        reason = f"{text[:60]!r} is no plain {word}; write a text in quotes"
        self._bad.add(node.start_mark.line + 1, dotted(path), reason)
        return None


def dotted(path: Key) -> str:
    """Return a key as a text: `workers[0].where`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
