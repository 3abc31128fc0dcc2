"""The page that shows an OpenAPI document: HTML without scripts."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from pgmta_features.http_api.problem import TYPE_PREFIX

_FOLDER = Path(__file__).parent / "templates"
_STYLE = (_FOLDER / "openapi.css").read_text(encoding="utf-8")
_SCHEMAS = "#/components/schemas/"

POLICY = (
    f"default-src 'none'; style-src 'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'"
    "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of the page, which allows its style only."""


def page(document: Mapping[str, Any]) -> bytes:
    """Return the page of a document that openapi.document() has made."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "kind": _kind, "bounds": _bounds, "example": _example, "marked": _marked
    }  # fmt: skip
    operations: dict[str, list[dict[str, Any]]] = {}
    for path, methods in document["paths"].items():
        for method, each in methods.items():
            shown = {**each, "method": method.upper(), "path": path}
            shown["parameters"] = [
                _resolved(document, parameter) for parameter in each.get("parameters", ())
            ]
            shown["problems"] = _problems(document, each["responses"])
            operations.setdefault(each["tags"][0], []).append(shown)
    schemas = dict(sorted(document["components"]["schemas"].items()))
    text = environment.get_template("openapi.html").render(
        style=Markup(_STYLE),  # noqa: S704 - a file of ours
        document=document,
        operations=operations,
        schemas=schemas,
    )
    return text.encode()


def _resolved(document: Mapping[str, Any], part: Mapping[str, Any]) -> Any:
    """Return a part of the document, or what it names."""
    if "$ref" not in part:
        return part
    found: Any = document
    for name in part["$ref"].removeprefix("#/").split("/"):
        found = found[name]
    return found


def _problems(
    document: Mapping[str, Any], responses: Mapping[str, Any]
) -> list[tuple[str, list[str]]]:
    """Return the words of problems by status."""
    found = []
    for status, response in responses.items():
        for content in _resolved(document, response).get("content", {}).values():
            for part in content["schema"].get("allOf", ()):
                kinds = part.get("properties", {}).get("type", {}).get("enum", ())
                if words := [each.removeprefix(TYPE_PREFIX) for each in kinds]:
                    found.append((status, words))
    return found


def _marked(text: str) -> Markup:
    """Return a text whose words in backticks are code."""
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else part
        for place, part in enumerate(text.split("`"))
    )


def _kind(schema: Mapping[str, Any]) -> str:
    """Return a type in words, with links to the schemas that it names."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_SCHEMAS)
        return Markup('<a href="#{0}">{0}</a>').format(name)
    if choices := schema.get("anyOf"):
        return Markup(" or ").join(_kind(each) for each in choices)
    if schema.get("type") == "array":
        return Markup("list of {}").format(_kind(schema.get("items", {})))
    if "enum" in schema:
        return " or ".join(json.dumps(each) for each in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"])
    more = schema.get("additionalProperties")
    if schema.get("type") == "object" and isinstance(more, Mapping) and more:
        return Markup("object of {}").format(_kind(more))
    if schema.get("format") == "date-time":
        return "time"
    return str(schema.get("type", "any"))


def _bounds(schema: Mapping[str, Any]) -> str:
    """Return the bounds of a value in words; '' without any."""
    for each in schema.get("anyOf", ()):
        if found := _bounds(each):
            return found
    low, high = schema.get("minimum"), schema.get("maximum")
    most = schema.get("maxItems")
    if low is not None and high is not None:
        return f"{low} to {high}"
    if low is not None:
        return f"at least {low}"
    if high is not None:
        return f"at most {high}"
    return f"at most {most}" if most else ""


def _example(schema: Mapping[str, Any]) -> str:
    """Return the first example of a schema as JSON; '' without one."""
    examples = schema.get("examples") or ()
    return json.dumps(examples[0], indent=2, ensure_ascii=False) if examples else ""
