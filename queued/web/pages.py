"""The pages: HTML in the language of the reader, without JavaScript."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import jinja2
import yaml

from pgmta.mail.language import accepted, look_up

_FOLDER = Path(__file__).parent
_COMPLETE_LANGUAGE = "en"  # has every text


def page_texts(folders: Iterable[Path] = ()) -> dict[str, dict[str, str]]:
    """Return the texts of the pages by language. `folders` are those of the features' pages."""
    found: dict[str, dict[str, str]] = {}
    for folder in (_FOLDER, *folders):
        for path in sorted((folder / "texts").glob("*.yaml")):
            found.setdefault(path.stem, {}).update(
                cast(dict[str, str], yaml.safe_load(path.read_text(encoding="utf-8")))
            )
    return found


def stylesheet() -> bytes:
    """Return the one stylesheet."""
    return (_FOLDER / "templates" / "style.css").read_bytes()


class Pages:
    """Renders the pages. `folders` are those of the features' pages.

    It reads all files at once: an upgrade may replace them while the process goes on.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        folders = list(folders)
        places = [folder / "templates" for folder in (_FOLDER, *folders)]
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(places),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            auto_reload=False,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._texts = page_texts(folders)
        self._templates = {
            name.removesuffix(".html"): environment.get_template(name)
            for name in environment.list_templates(["html"])
        }

    def render(
        self, name: str, languages: str, base: str, **values: Any
    ) -> tuple[bytes, Mapping[str, str]]:
        """Return a page, and its header fields about the language.

        `languages` is the field Accept-Language. `base` is the path of public.url, with which paths
        in the page begin.
        """
        language = look_up(accepted(languages), self._texts) or _COMPLETE_LANGUAGE
        text = self._templates[name].render(
            language=language, text=self._texts[language], base=base, **values
        )
        return text.encode(), {"Content-Language": language, "Vary": "Accept-Language"}
