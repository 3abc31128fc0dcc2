"""Files whose sections and keys are those of the core and of the features."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import Field, create_model

from pgmta.config.types import Section
from pgmta.features import features, import_paths, load


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
    """
    fields: dict[str, Any] = {}
    for key, path in import_paths("more_keys"):
        if name := _in_file(key, file):
            now: Any = fields[name][0] if name in fields else model.model_fields[name].annotation
            more: Any = create_model(now.__name__, __base__=(load(path), now), __doc__=now.__doc__)
            fields[name] = (more, Field(default=more()))
    for key, path in import_paths("sections"):
        if name := _in_file(key, file):
            found = load(path)
            fields[name] = found if isinstance(found, tuple) else (found, Field(default=found()))
    return create_model(model.__name__, __base__=model, __doc__=model.__doc__, **fields)


def fixed_sections(file: str = "") -> list[str]:
    """Return the features' sections that a running process does not take from a changed file."""
    keys = (key for feature in features().values() for key in feature.fixed)
    return [name for key in keys if (name := _in_file(key, file))]


def _in_file(key: str, file: str) -> str:
    """Return the name of a key that stands in a file, '' if it stands in another."""
    there, _, name = key.rpartition("/")
    return name if there == file else ""
