"""The templates that a worker has read. Versions never change, so nothing here grows old."""

from __future__ import annotations

from collections import OrderedDict

from pgmta.compose.template import Template, TemplateSource, compile_template
from pgmta.errors import TemplateError

_MAX_SOURCE_OCTETS = 64 << 20  # of all templates in memory, about


class TemplateCache:
    """Compiled templates by their id: those that were used last, up to 64 MB of their sources."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[Template | str, int]] = OrderedDict()
        self._size = 0

    def find(self, template_id: int) -> Template | str | None:
        """Return a template, or why it can't be used; None if it has to be read."""
        kept = self._kept.get(template_id)
        if kept is None:
            return None
        self._kept.move_to_end(template_id)
        return kept[0]

    def add(self, template_id: int, source: TemplateSource | None) -> Template | str:
        """Keep a template that was read, None if it is not in the database.

        Return what `find` does from then on, while it is kept.
        """
        compiled: Template | str = "there is no such template"
        size = 100
        if source:
            size += sum(map(len, (source.subject, source.body or "", source.html or "")))
            try:
                compiled = compile_template(source)
            except TemplateError as error:  # the row was not written by a command of ours
                compiled = str(error)
        # because two readers may have read it at one time
        _, before = self._kept.pop(template_id, ("", 0))
        self._kept[template_id] = compiled, size
        self._size += size - before
        while self._size > _MAX_SOURCE_OCTETS and len(self._kept) > 1:
            _, (_, gone) = self._kept.popitem(last=False)
            self._size -= gone
        return compiled
