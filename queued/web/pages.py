"""The pages: HTML in the language of the reader, without JavaScript."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

import jinja2
import yaml

from pgmta.mail.language import accepted, look_up

_HERE = Path(__file__).parent
_DEFAULT = "en"  # has every text


@cache
def page_texts() -> dict[str, dict[str, str]]:
    """Return the texts of the pages by language."""
    return {
        path.stem: cast(dict[str, str], yaml.safe_load(path.read_text(encoding="utf-8")))
        for path in sorted((_HERE / "texts").glob("*.yaml"))
    }


def stylesheet() -> bytes:
    """Return the one stylesheet."""
    return (_HERE / "templates" / "style.css").read_bytes()


class Pages:
    """Renders the pages; `base` is the path of public.url, with which their paths begin."""

    def __init__(self, base: str) -> None:
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            auto_reload=False,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.globals["base"] = base
        self._templates = {
            name: environment.get_template(f"{name}.html")
            for name in ("activate", "recover", "unsubscribe", "message")
        }

    def render(self, name: str, languages: str, **values: Any) -> tuple[bytes, Mapping[str, str]]:
        """Return a page, and its header fields about the language.

        `languages` is the field Accept-Language.
        """
        language = look_up(accepted(languages), page_texts()) or _DEFAULT
        text = self._templates[name].render(
            language=language, text=page_texts()[language], **values
        )
        return text.encode(), {"Content-Language": language, "Vary": "Accept-Language"}
