"""Read a YAML file into its model; every mistake is told with file, line, key and reason."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from queued.errors import ConfigError

Lines = dict[tuple[str | int, ...], int]


class _Mistakes:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []

    def add(self, line: int | None, key: str, reason: str) -> None:
        where = f"{self.path}:{line}" if line else f"{self.path}"
        self.problems.append(f"{where}: {key}: {reason}" if key else f"{where}: {reason}")


def load[M: BaseModel](path: Path, model: type[M]) -> M:
    """Return the file's content as `model`.

    Raises ConfigError with all mistakes at once: unreadable file, YAML syntax, duplicate or
    unknown keys (with the nearest valid one), wrong types and values.
    """
    mistakes = _Mistakes(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise ConfigError([f"{path}: {reason}"]) from None
    lines: Lines = {}
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = _plain(node, (), lines, mistakes) if node is not None else {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or str(error)
        mistakes.add(mark.line + 1 if mark else None, "", f"YAML: {reason}")
        raise ConfigError(mistakes.problems) from None
    if not isinstance(data, dict):
        mistakes.add(1, "", "expected a mapping of keys at the top")
        raise ConfigError(mistakes.problems)
    try:
        result = model.model_validate(data)
    except ValidationError as error:
        for detail in error.errors():
            _explain(detail, model, lines, mistakes)
        raise ConfigError(mistakes.problems) from None
    if mistakes.problems:
        raise ConfigError(mistakes.problems)
    return result


def _plain(node: yaml.Node, path: tuple[str | int, ...], lines: Lines, bad: _Mistakes) -> Any:
    """Turn a YAML node into plain values, noting lines and duplicate keys."""
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(child, (*path, i), lines, bad) for i, child in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            line = key_node.start_mark.line + 1
            if key in result:
                first = lines[(*path, key)]
                bad.add(line, _dotted((*path, key)), f"stands twice, first on line {first}")
            lines[(*path, key)] = line
            result[key] = _plain(value_node, (*path, key), lines, bad)
        return result
    loader = yaml.SafeLoader("")
    return loader.construct_object(node)


def _dotted(path: tuple[str | int, ...]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _explain(detail: ErrorDetails, model: type[BaseModel], lines: Lines, bad: _Mistakes) -> None:
    path = tuple(detail["loc"])
    known = path
    while known and known not in lines:
        known = known[:-1]
    reason = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        names = _fields_at(model, path[:-1])
        close = difflib.get_close_matches(str(path[-1]), names, n=1)
        reason = "unknown key" + (
            f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(sorted(names))}"
        )
    elif detail["type"] == "missing":
        reason = "is required"
    elif detail["type"] in ("model_type", "dict_type"):
        reason = "expected a mapping of keys"
    bad.add(lines.get(known), _dotted(path), reason)


def _fields_at(model: type[BaseModel], path: tuple[str | int, ...]) -> list[str]:
    """Keys that the section at `path` knows."""
    current: Any = model
    for part in path:
        if isinstance(part, int):
            continue
        if not hasattr(current, "model_fields") or part not in current.model_fields:
            return []
        current = current.model_fields[part].annotation
        arguments = [a for a in getattr(current, "__args__", ()) if hasattr(a, "model_fields")]
        current = arguments[0] if arguments else current
    return list(getattr(current, "model_fields", []))
