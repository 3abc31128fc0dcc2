"""Read a YAML file into its model; each mistake is reported with file, line, key and reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pgmta.config.types import FOLDER, SectionError, hint
from pgmta.config.yaml_file import Key, KeyLines, Mistakes, read_file, read_text
from pgmta.errors import ConfigError

type Problem = tuple[Key, str]
"""The key of a mistake, and the reason."""

# `routes.KEY` in an alias stands for any key of `routes`, which the mistake then names.
_ANY_KEY = ".KEY"

_KEY_PATH = re.compile(r"([a-z_]+(?:\.[a-z_]+|\[\d+\])*): ")
_KEY_PART = re.compile(r"[a-z_]+|\d+")


def load[M: BaseModel](path: Path, model: type[M], **context: Any) -> M:
    """Return the file's content as `model`, whose validators get the `context`.

    Raises ConfigError with all mistakes at once: an unreadable file, YAML syntax, duplicate keys,
    unknown keys (with the nearest valid one), wrong types and wrong values.
    """
    return load_lines(path, model, **context)[0]


def load_lines[M: BaseModel](path: Path, model: type[M], **context: Any) -> tuple[M, KeyLines]:
    """Return what `load` returns, and the lines of the keys. Raises ConfigError."""
    return _checked(read_file(path), path, model, context)


def parse_lines[M: BaseModel](
    text: str, path: Path, model: type[M], **context: Any
) -> tuple[M, KeyLines]:
    """Return the same for a text of the file, which includes no others. Raises ConfigError."""
    return _checked(read_text(text, path), path, model, context)


def _checked[M: BaseModel](
    read: tuple[dict[str, Any], KeyLines, Mistakes],
    path: Path,
    model: type[M],
    context: dict[str, Any],
) -> tuple[M, KeyLines]:
    data, lines, mistakes = read
    result = _validate(data, model, lines, mistakes, {FOLDER: path.parent} | context)
    if mistakes:
        raise mistakes.error()
    return result, lines


def read_settings[M: BaseModel](settings: Mapping[str, Any], model: type[M]) -> M:
    """Return settings of a program as `model`. Raises ConfigError with all mistakes at once."""
    return _validate(dict(settings), model, KeyLines(), Mistakes(""), {})


def _validate[M: BaseModel](
    data: dict[str, Any], model: type[M], lines: KeyLines, bad: Mistakes, context: dict[str, Any]
) -> M:
    try:
        return model.model_validate(data, context=context)
    except ValidationError as error:
        _explain_all(error, model, lines, bad, ())
        raise bad.error() from None


def mistakes(path: Path, problems: Iterable[tuple[Key, str]]) -> ConfigError:
    """Return the error for mistakes that are found after `load`: keys and reasons."""
    found, lines = Mistakes(path), KeyLines()
    with suppress(ConfigError):
        lines = read_file(path)[1]
    for key, reason in problems:
        found.add_key(key, lines, reason)
    return found.error()


def placed(path: Path, warning: str) -> str:
    """Return a warning behind its file, and the line of the key that it begins with, if any."""
    named = _KEY_PATH.match(warning)
    if not named:
        return f"{path}: {warning}"
    key = [int(part) if part.isdecimal() else part for part in _KEY_PART.findall(named[1])]
    return mistakes(path, [(tuple(key), warning[named.end() :])]).problems[0]


def _explain_all(
    error: ValidationError, model: type[BaseModel], lines: KeyLines, bad: Mistakes, begin: Key
) -> None:
    """Note all mistakes of the section at `begin`."""
    for detail in error.errors():
        path = _as_written(detail["loc"])
        inner = detail.get("ctx", {}).get("error")
        if isinstance(inner, SectionError):
            _explain_all(inner.error, inner.model, lines, bad, (*begin, *path))
        else:
            bad.add_key((*begin, *path), lines, reason_of(detail, path, model))


def reason_of(detail: ErrorDetails, path: Key, model: type[BaseModel]) -> str:
    """Return what is wrong with a value at a path of a model, with the nearest valid word."""
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
        if not advice.startswith("known"):  # otherwise the reason lists all values already
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
        if path and str(path[-1]).endswith(_ANY_KEY):
            path[-1] = f"{str(path[-1]).removesuffix(_ANY_KEY)}.{part}"
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
    inside = False  # a list of sections, or sections by any key
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
