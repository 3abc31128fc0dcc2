"""Shipped descriptions of providers' interfaces, and the parameters that a route makes of one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import yaml
from pydantic import Field

from pgmta.config.types import Section, hint
from pgmta.mail.text import unsafe
from pgmta_features.providers.places import Text

_FOLDER = Path(__file__).parent / "interfaces"
_SECRET_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LEFT_OUT = object()
_KEYS = ("interface", "secrets", "values")

type Meaning = Annotated[str, Field(min_length=1)]


class Interface(Section):
    """A description: parameters of a route with words for what differs between accounts.

    A key of `parameters` whose text has a value of `optional` is left out without the value.
    """

    about: str
    secrets: dict[str, Meaning] = Field(default={})
    values: dict[str, Meaning] = Field(default={})
    optional: dict[str, Meaning] = Field(default={})
    parameters: dict[str, Any]


def interface_names() -> list[str]:
    """Return the names of the descriptions that are shipped."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


@cache
def read_interface(name: str) -> Interface:
    """Return a description. Raises ValueError if there is none of this name."""
    known = interface_names()
    if name not in known:
        raise ValueError(f"no interface {name!r}; {hint(name, known)}")
    return Interface.model_validate(yaml.safe_load((_FOLDER / f"{name}.yaml").read_text("utf-8")))


def described(given: Any) -> Any:
    """Return the parameters of a route: those of its `interface`, and its other keys over them.

    A mapping is merged with one, anything else replaces, and null takes a key away. Raises
    ValueError.
    """
    if not isinstance(given, dict) or "interface" not in given:
        return given
    own = {
        key: each for key, each in given.items() if key not in ("interface", "secrets", "values")
    }
    interface = read_interface(str(given["interface"]))
    secrets = _mapping("secrets", given.get("secrets"), interface.secrets)
    values = _mapping("values", given.get("values"), [*interface.values, *interface.optional])
    for name, meaning in interface.values.items():
        if name not in values:
            raise ValueError(f"values.{name} is required: {meaning}")
    for name in secrets.values():
        if not _SECRET_NAME.fullmatch(name):
            raise ValueError(f"secrets: {name!r} is no name of a secret")
    filled = {
        key: _filled(each, secrets, values, url=key == "url")
        for key, each in interface.parameters.items()
    }
    return _merged({key: each for key, each in filled.items() if each is not _LEFT_OUT}, own)


def _mapping(key: str, given: Any, known: Iterable[str]) -> dict[str, str]:
    """Return a mapping of texts whose keys are known. Raises ValueError."""
    known = list(known)
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise ValueError(f"{key}: expected a mapping")
    for name, text in given.items():
        if name not in known:
            advice = hint(str(name), known) if known else "the interface has none"
            raise ValueError(f"{key}.{name} is not known; {advice}")
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"{key}.{name}: expected a text that is not empty, in quotes")
        if "{{" in text or "}}" in text or any(unsafe(char) for char in text):
            raise ValueError(f"{key}.{name}: has a word, a line end or a control character")
    return {str(name): text for name, text in given.items()}


def _filled(part: Any, secrets: Mapping[str, str], values: Mapping[str, str], *, url: bool) -> Any:
    """Return a part of a description without words of values, and with the route's secrets."""
    if isinstance(part, dict):
        pairs = ((key, _filled(each, secrets, values, url=url)) for key, each in part.items())
        return {key: each for key, each in pairs if each is not _LEFT_OUT}
    if isinstance(part, list):
        each_made = (_filled(each, secrets, values, url=url) for each in part)
        return [each for each in each_made if each is not _LEFT_OUT]
    if not isinstance(part, str):
        return part
    made = []
    for n, text in enumerate(Text.parse(part).parts):
        kind, _, name = text.partition(".") if n % 2 else ("", "", "")
        if kind == "values":
            if name not in values:
                return _LEFT_OUT
            made.append(quote(values[name], safe="") if url else values[name])
        elif kind == "secrets":
            made.append(f"{{{{secrets.{secrets.get(name, name)}}}}}")
        else:
            made.append(f"{{{{{text}}}}}" if n % 2 else text)
    return "".join(made)


def _merged(base: Mapping[str, Any], over: Mapping[Any, Any]) -> dict[Any, Any]:
    made = dict(base)
    for key, each in over.items():
        before = made.get(key)
        if each is None:
            made.pop(key, None)
        elif isinstance(before, dict) and isinstance(each, dict):
            made[key] = _merged(before, each)
        else:
            made[key] = each
    return made
