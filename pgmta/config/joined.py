"""Files whose sections and keys are those of the core and of the features."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from inspect import get_annotations
from typing import Any, get_args

from pydantic import Field, create_model

from pgmta.config.types import Section
from pgmta.features import Givers, import_paths, load, named_paths


class JoinedFile(Section):
    """A file to which features add sections, and keys of its own sections."""

    def section[S: Section](self, model: type[S]) -> S:
        """Return the section that a feature has added, or the one whose keys it has extended."""
        values = (getattr(self, name) for name in type(self).model_fields)
        return next((value for value in values if isinstance(value, model)), model())

    def value(self, name: str) -> Any:
        """Return the value of a key that a feature has added, and that is no section."""
        return getattr(self, name)


@cache
def joined[F: JoinedFile](model: type[F], file: str = "") -> type[F]:
    """Return the model of a file with the sections and the keys of the features.

    `file` is the word before the keys of these, as in `web/callbacks`; '' for queued.yaml. A path
    leads to a model, or the type and the field of a key that is no mapping of its own.

    Raises FeatureError if two give the same section or key.
    """
    more_keys: dict[str, list[tuple[str, type[Section]]]] = {}
    for feature, key, path in import_paths("more_keys"):
        if name := _in_file(key, file):
            more_keys.setdefault(name, []).append((feature, load(path)))
    fields: dict[str, Any] = {}
    for name, parts in more_keys.items():
        section: Any = model.model_fields[name].annotation
        more = extended(section, parts, f"key of section {name}")
        fields[name] = (more, Field(default=more()))
    core = (f"{file}/{name}" if file else name for name in model.model_fields)
    for key, path in named_paths("sections", core, "section").items():
        if name := _in_file(key, file):
            found = load(path)
            fields[name] = found if isinstance(found, tuple) else (found, Field(default=found()))
    return create_model(model.__name__, __base__=model, __doc__=model.__doc__, **fields)


def extended[S: Section](
    model: type[S], parts: Iterable[tuple[str, type[Section]]], what: str
) -> type[S]:
    """Return a model with the keys of others, each with the feature that gives them.

    `what` each of them is, for the error. Raises FeatureError if two give the same key.
    """
    givers = Givers(model.model_fields)
    bases: list[type[Section]] = [model]
    for feature, more in parts:
        own = (get_annotations(each) for each in more.__mro__ if not issubclass(model, each))
        for key in set().union(*own).intersection(more.model_fields):
            givers.note(feature, key, what)
        bases.insert(0, more)
    made: Any = create_model(model.__name__, __base__=tuple(bases), __doc__=model.__doc__)
    return made  # type: ignore[no-any-return]


def lasting_sections(model: type[JoinedFile]) -> list[str]:
    """Return the sections that a running process does not take from a changed file."""
    return [
        name
        for name, field in model.model_fields.items()
        for each in (field.annotation, *get_args(field.annotation))
        if isinstance(each, type) and issubclass(each, Section) and each.needs_restart
    ]


def _in_file(key: str, file: str) -> str:
    """Return the name of a key that stands in a file, '' if it stands in another."""
    there, _, name = key.rpartition("/")
    return name if there == file else ""
