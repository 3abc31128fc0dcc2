"""Read a YAML file into its model; each mistake is reported with file, line, key and reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pgmta.config.types import FOLDER, SectionError, hint
from pgmta.errors import ConfigError

type Key = tuple[str | int, ...]

type Problem = tuple[Key, str]
"""The key of a mistake, and the reason."""
Lines = dict[Key, int]

_DEPTH = 16  # levels; without a limit an alias that contains itself would never end
_VALUES = 200_000  # of a file, at most, if its text is not longer than that
_MANY = "too many values; an alias (*NAME) repeats each value of its anchor (&NAME)"
_TAG = "tag:yaml.org,2002:"
_ANY = ".KEY"  # end of an alias whose keys are in the section itself
_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_BOOLEANS = yaml.SafeLoader.bool_values  # undocumented; checked with PyYAML 6.0.3


class _Mistakes:
    def __init__(self, path: Path | str) -> None:
        self.path = path
        self._problems: list[tuple[int, str]] = []
        self._keys: set[str] = set()  # of the mistakes so far

    def add(self, line: int | None, key: str, reason: str) -> None:
        if key and key in self._keys:
            return  # the first mistake of a key is the cause of the later ones
        self._keys.add(key)
        where = f"{self.path}:{line}" if line else f"{self.path}"
        text = ": ".join(filter(None, (where, key, reason)))
        self._problems.append((line or 0, " ".join(text.splitlines())))

    def __bool__(self) -> bool:
        return bool(self._problems)

    def error(self) -> ConfigError:
        """Return all mistakes as one error, in the order of the file."""
        return ConfigError([text for _, text in sorted(self._problems, key=lambda p: p[0])])


def load[M: BaseModel](path: Path, model: type[M], **context: Any) -> M:
    """Return the file's content as `model`, whose validators get the `context`.

    Raises ConfigError with all mistakes at once: an unreadable file, YAML syntax, duplicate keys,
    unknown keys (with the nearest valid one), wrong types and wrong values.
    """
    return load_lines(path, model, **context)[0]


def load_lines[M: BaseModel](path: Path, model: type[M], **context: Any) -> tuple[M, Lines]:
    """Return what `load` returns, and the lines of the keys. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise ConfigError([f"{path}: {reason}"]) from None
    return parse_lines(text, path, model, **context)


def parse_lines[M: BaseModel](
    text: str, path: Path, model: type[M], **context: Any
) -> tuple[M, Lines]:
    """Return the same for a text of the file. Raises ConfigError."""
    mistakes = _Mistakes(path)
    lines: Lines = {}
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = _Reader(text, lines, mistakes).read(node) if node is not None else None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        if reason == "mapping values are not allowed here":
            reason += "; a value with `: ` in it needs quotes"
        mistakes.add(mark.line + 1 if mark else None, "", f"YAML: {reason}")
        raise mistakes.error() from None
    except RecursionError:
        raise ConfigError([f"{path}: YAML: nested too deeply"]) from None
    except _TooMany as error:
        mistakes = _Mistakes(path)
        line, key = error.args
        mistakes.add(line, key, f"YAML: {_MANY}")
        raise mistakes.error() from None
    if data is None:
        data = {}
    if not isinstance(data, dict):
        mistakes.add(1, "", "expected a mapping of keys at the top")
        raise mistakes.error()
    result = _validate(data, model, lines, mistakes, {FOLDER: path.parent} | context)
    if mistakes:
        raise mistakes.error()
    return result, lines


def read_settings[M: BaseModel](settings: Mapping[str, Any], model: type[M]) -> M:
    """Return settings of a program as `model`. Raises ConfigError with all mistakes at once."""
    return _validate(dict(settings), model, {}, _Mistakes(""), {})


def _validate[M: BaseModel](
    data: dict[str, Any], model: type[M], lines: Lines, bad: _Mistakes, context: dict[str, Any]
) -> M:
    try:
        return model.model_validate(data, context=context)
    except ValidationError as error:
        _explain_all(error, model, lines, bad, ())
        raise bad.error() from None


def mistakes(path: Path, problems: Iterable[tuple[Key, str]]) -> ConfigError:
    """Return the error for mistakes that are found after `load`: keys and reasons."""
    found, lines = _Mistakes(path), Lines()
    with suppress(OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError, _TooMany):
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is not None:
            _Reader(text, lines, _Mistakes(path)).read(node)
    for key, reason in problems:
        found.add(_line_of(key, lines), dotted(key), reason)
    return found.error()


class _TooMany(Exception):
    """Has the line and the key at which the aliases of the file have made too many values."""


class _Reader:
    """Reads nodes of YAML as plain values; notes the line of each key, and mistakes.

    Aliases may repeat values, but only some: a few lines can ask for any number.
    """

    def __init__(self, text: str, lines: Lines, bad: _Mistakes) -> None:
        self._lines = lines
        self._bad = bad
        self._left = max(_VALUES, len(text))  # without aliases no text has more values

    def read(self, node: yaml.Node, path: Key = ()) -> Any:
        """Return a node as plain values. Raises RecursionError and _TooMany."""
        line = node.start_mark.line + 1
        self._lines.setdefault(path, line)
        if len(path) > _DEPTH:
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
        kind = node.tag.removeprefix(_TAG)
        if kind in ("str", "timestamp", "value"):
            return text
        if kind == "null":
            return None
        if kind == "bool" and text.lower() in _BOOLEANS:
            return _BOOLEANS[text.lower()]
        if kind == "int" and _WHOLE.fullmatch(text):
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


def _line_of(key: Key, lines: Lines) -> int | None:
    """Return the line of a key, or that of the nearest section around it that the file has."""
    while key and key not in lines:
        key = key[:-1]
    return lines.get(key)


def _explain_all(
    error: ValidationError, model: type[BaseModel], lines: Lines, bad: _Mistakes, begin: Key
) -> None:
    """Note all mistakes of the section at `begin`."""
    for detail in error.errors():
        path = _as_written(detail["loc"])
        inner = detail.get("ctx", {}).get("error")
        if isinstance(inner, SectionError):
            _explain_all(inner.error, inner.model, lines, bad, (*begin, *path))
        else:
            reason = _reason(detail, path, model)
            bad.add(_line_of((*begin, *path), lines), dotted((*begin, *path)), reason)


def _reason(detail: ErrorDetails, path: Key, model: type[BaseModel]) -> str:
    reason = detail["msg"].removeprefix("Value error, ")
    for subject in ("Input ", "List ", "String "):
        reason = reason.removeprefix(subject)
    reason = reason.partition(" after valid")[0]
    if detail["type"] == "extra_forbidden":
        names = _fields_at(model, path[:-1])
        reason = f"unknown key; {hint(str(path[-1]), sorted(names))}"
    elif detail["type"] == "missing":
        reason = "is required"
    elif detail["type"] in ("literal_error", "enum"):
        words = re.findall(r"'([^']*)'", str(detail["ctx"]["expected"]))
        advice = hint(str(detail["input"]), words)
        if not advice.startswith("known"):  # else the reason has all words already
            reason += f"; {advice}"
    elif detail["type"] in ("model_type", "dict_type"):
        reason = "expected a mapping of keys"
    elif detail["type"] == "list_type":
        reason = "expected a list"
    elif detail["type"] in ("bool_type", "bool_parsing"):
        reason = "expected true or false"
    elif detail["type"] == "path_type":
        reason = "expected a path"
    return reason


def _as_written(loc: Key) -> Key:
    """Return where a value is in the file: `metadata.KEY` has one key for each KEY."""
    path: list[str | int] = []
    for part in loc:
        if path and str(path[-1]).endswith(_ANY):
            path[-1] = f"{str(path[-1]).removesuffix(_ANY)}.{part}"
        elif part != "[key]":
            path.append(part)
    return tuple(path)


def _sections(annotation: Any) -> list[Any]:
    """Sections inside of a list, a mapping or a union."""
    found = []
    for argument in getattr(annotation, "__args__", ()):
        found += [argument] if hasattr(argument, "model_fields") else _sections(argument)
    return found


def _holds_many(annotation: Any) -> bool:
    """Return whether a type is a list or a mapping, perhaps an optional one."""
    origin = getattr(annotation, "__origin__", None)
    inner = (*getattr(annotation, "__args__", ()), *([origin] if origin else []))
    return origin in (list, dict) or any(map(_holds_many, inner))


def _fields_at(model: type[BaseModel], path: tuple[str | int, ...]) -> list[str]:
    """Return the keys that the section at `path` knows."""
    current: Any = model
    inside = False  # of a list of sections, or of sections by any key
    for part in path:
        if inside or isinstance(part, int):
            inside = False
            continue
        if not hasattr(current, "model_fields") or part not in current.model_fields:
            return []
        current = current.model_fields[part].annotation
        arguments = _sections(current)
        inside = bool(arguments) and _holds_many(current)
        current = arguments[0] if arguments else current
    fields = getattr(current, "model_fields", {})
    return [field.alias or name for name, field in fields.items()]
