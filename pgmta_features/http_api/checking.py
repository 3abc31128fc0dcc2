"""What a client sends, checked strictly: JSON (RFC 8259) within bounds, then its model."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, BeforeValidator, ValidationError
from pydantic_core import ErrorDetails, from_json

from pgmta.config.loader import reason_of
from pgmta_features.http_api.problem import Problem, pointer_of, sentences

MAX_DEPTH = 32
"""Arrays and objects within each other."""
STRANGE = "A text has NUL or half of a surrogate pair."
"""What is wrong with a text that PostgreSQL can't store."""

_MAX_ERRORS = 20  # that an answer names
_MAX_FIELDS = 1000  # of a header
_MAX_WORD_CHARACTERS = 100  # of an unknown key
_CONTAINERS = (dict, list)
_STRANGE = re.compile("[\0\ud800-\udfff]")
_MAX_TOKENS = 250_000  # texts, commas and brackets outside of them; a mail has some thirty
# a text without an end ends with the octets, a backslash too: else each quote reads them all again
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[,\[{]', re.DOTALL)
_STRANGE_ESCAPE = re.compile(rb"\\u(?:[dD][89a-fA-F]|0000)")

type Path = tuple[str | int, ...]


def _few(fields: Any) -> Any:
    """Return fields of a header unless there are so many that their mistakes would take seconds."""
    if isinstance(fields, dict) and len(fields) > _MAX_FIELDS:
        raise ValueError(f"there are more than {_MAX_FIELDS} fields")
    return fields


HeaderFields = Annotated[dict[str, str], BeforeValidator(_few)]
"""Further fields of a header, by name."""


class _Twice(Exception):
    """An object has a key twice."""


class _Doubled(dict[str, Any]):
    """An object that has the key `key` twice."""

    key: str


def read_json(octets: bytes, judged_singly: str = "") -> Any:
    """Return the value of a JSON text. Raises Problem, with the place where that is known.

    Refused are: other encodings than UTF-8, more than MAX_DEPTH levels, some 100,000 values, a key
    twice in an object, numbers beyond a double, NaN, lone surrogates, and NUL, which PostgreSQL
    can't store. A member of the list `judged_singly` with one of the last two becomes the Problem.
    """
    if _too_many(octets):
        raise Problem(400, "not-json", "The body has too many values: over some 100,000.")
    if (plain := _plain(octets)) is not None:
        return plain
    try:
        text = octets.decode()
        try:
            value = _DECODER.decode(text)
        except _Twice:
            raise _twice(text) from None
    except UnicodeDecodeError as error:
        raise _malformed(f"octet {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise _malformed(f"line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # a number
        raise _malformed(str(error).partition(":")[0]) from None
    # so few brackets are no deeper
    if octets.count(b"[") + octets.count(b"{") > MAX_DEPTH and _deep(value):
        raise _too_deep()
    if _STRANGE_ESCAPE.search(octets):
        if judged_singly and isinstance(value, dict) and isinstance(value.get(judged_singly), list):
            value[judged_singly] = [
                _strange_in(each, (judged_singly, place)) or each
                for place, each in enumerate(value[judged_singly])
            ]
        if found := _strange_in(value):
            raise found
    return value


def _plain(octets: bytes) -> Any:
    """Return the value of a JSON text in which nothing is wrong or odd, or None.

    This decoder takes a tenth of the time of the strict one, which says what is wrong.
    """
    if b"\\u0000" in octets:
        return None
    try:
        value = from_json(octets, allow_inf_nan=False)
        texts = _texts_in(value, MAX_DEPTH)
    except ValueError:
        return None
    # of two equal keys the value has only the last, so it has fewer texts than the octets
    quotes = octets.count(b'"')
    if quotes != 2 * texts and b"\\\\" not in octets:
        quotes -= octets.count(b'\\"')
    return value if quotes == 2 * texts else None


def _texts_in(value: Any, levels: int) -> int:
    """Return the number of texts in a value, its keys too.

    Raises ValueError if it has more levels, or a number beyond a double.
    """
    if isinstance(value, str):
        return 1
    if isinstance(value, _CONTAINERS):
        if not levels:
            raise ValueError("it is too deep")
        found, members = (len(value), value.values()) if isinstance(value, dict) else (0, value)
        for each in members:
            found += _texts_in(each, levels - 1)
        return found
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number is too large")
    return 0


def checked_body[M: BaseModel](value: Any, model: type[M], begin: Path = ()) -> M:
    """Return a body, or its value at `begin`, as its model.

    Raises Problem with a pointer for each mistake.
    """
    try:
        return model.model_validate(_with_few_unknown(value, model))
    except ValidationError as error:
        raise _invalid(error, model, value, begin) from None


def checked_query[M: BaseModel](fields: Mapping[str, str], model: type[M]) -> M:
    """Return the parameters of a query as their model. Raises Problem."""
    if strange := next((name for name, text in fields.items() if is_strange(text)), ""):
        raise Problem(400, "invalid", f"{strange}: {STRANGE}",
                      errors=[{"parameter": strange, "detail": STRANGE}])  # fmt: skip
    try:
        return model.model_validate_strings(fields)
    except ValidationError as error:
        found = [
            {
                "parameter": str(each["loc"][0]) if each["loc"] else "",
                "detail": _detail(each, model),
            }
            for each in error.errors(include_url=False, include_context=True)[:_MAX_ERRORS]
        ]
        first = found[0]
        detail = (
            f"{first['parameter']}: {first['detail']}" if first["parameter"] else first["detail"]
        )
        raise Problem(400, "invalid", detail, errors=found) from None


def _with_few_unknown(value: Any, model: type[BaseModel]) -> Any:
    """Return an object without most of its unknown keys, if it has more than an answer names."""
    if not isinstance(value, dict) or len(value) <= _MAX_ERRORS:
        return value
    known = {field.alias or name for name, field in model.model_fields.items()}
    unknown = [key for key in value if key not in known]
    for key in unknown[_MAX_ERRORS:]:
        del value[key]
    return value


def _invalid(error: ValidationError, model: type[BaseModel], value: Any, begin: Path) -> Problem:
    found = []
    # an unknown key first: it is often the one that another lacks
    errors = sorted(
        error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden"
    )
    for each in errors[:_MAX_ERRORS]:
        path = _short(_path_in(value, each["loc"]))
        found.append({"pointer": pointer_of(*begin, *path), "detail": _detail(each, model)})
    first = found[0]
    name = first["pointer"].removeprefix("/").replace("/", ".")
    detail = f"{name}: {first['detail']}" if name else first["detail"]
    return Problem(422, "invalid", detail, pointer=first["pointer"], errors=found)


def is_strange(text: str) -> bool:
    """Return whether PostgreSQL can't store a text: it has NUL, or half of a surrogate pair."""
    return bool(_STRANGE.search(text))


def _short(path: Path) -> Path:
    """Return a place, or the last one before a key that is too long for an answer."""
    for place, part in enumerate(path):
        if isinstance(part, str) and len(part) > _MAX_WORD_CHARACTERS:
            return path[:place]
    return path


def _detail(error: ErrorDetails, model: type[BaseModel]) -> str:
    reason = reason_of(error, error["loc"], model)
    if error["type"].startswith(("datetime_", "timezone_")):
        reason = "expected a time with its zone, such as 2026-12-24T18:00:00Z"
    elif error["type"].startswith("date_"):
        reason = "expected a day, such as 2026-12-24"
    elif error["type"] == "extra_forbidden" and len(error["loc"]) == 1:
        meant = getattr(model, "MEANT", {}).get(str(error["loc"][0]).lower())
        reason = f"unknown key; did you mean {meant!r}?" if meant else reason
    return sentences(reason)


def _path_in(value: Any, loc: Path) -> Path:
    """Return the place of an error in the value: pydantic also names members of unions."""
    path: list[str | int] = []
    for place, part in enumerate(loc):
        if isinstance(value, dict) and (part in value or place == len(loc) - 1):
            path.append(part)
            value = value.get(str(part))
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            path.append(part)
            value = value[part]
    return tuple(path)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Twice
    return found


def _marked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found, counts = _Doubled(pairs), Counter(key for key, _ in pairs)
    if len(found) == len(pairs):
        return dict(found)
    found.key = next(key for key in counts if counts[key] > 1)
    return found


def _twice(text: str) -> Problem:
    """Return the problem of a text with an object that has a key twice."""
    walk = _walk(json.loads(text, object_pairs_hook=_marked))
    path, key = next((path, each.key) for path, each in walk if isinstance(each, _Doubled))
    return Problem(400, "not-json", f"The object has the key {_shown(key)} twice.",
                   pointer=pointer_of(*_short((*path, key))))  # fmt: skip


def _too_many(octets: bytes) -> bool:
    """Return whether a JSON text would take the process for seconds.

    Memory too: a list has 64 octets, and its text two.
    """
    tokens = _TOKEN.finditer(octets) if len(octets) > _MAX_TOKENS else ()
    return next(islice(tokens, _MAX_TOKENS, None), None) is not None


def _deep(value: Any) -> bool:
    """Return whether a value has more than MAX_DEPTH levels."""
    level = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, _CONTAINERS)
        ]
        if not level:
            return False
    return True


def _walk(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield each value with its place, the outer ones first."""
    yield path, value
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _walk(each, (*path, key))
    elif isinstance(value, list):
        for place, each in enumerate(value):
            yield from _walk(each, (*path, place))


def _strange_in(value: Any, begin: Path = ()) -> Problem | None:
    for path, each in _walk(value, begin):
        # a strange key is not repeated: the pointer is that of its object
        texts = each if isinstance(each, dict) else [each] if isinstance(each, str) else []
        if any(map(is_strange, texts)):
            return Problem(422, "invalid", STRANGE, pointer=pointer_of(*_short(path)))
    return None


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError("a number is too large")
    return number


def _no_number(_: str) -> NoReturn:
    raise ValueError("NaN and Infinity are no numbers of JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_finite, parse_constant=_no_number
)


def _malformed(reason: str) -> Problem:
    return Problem(400, "not-json", f"The body is not JSON: {reason}.")


def _too_deep() -> Problem:
    return Problem(400, "not-json", f"The body has more than {MAX_DEPTH} levels.")


def _shown(word: str) -> str:
    return json.dumps(word[:_MAX_WORD_CHARACTERS])
