"""OpenAPI of the API, and its page."""

from __future__ import annotations

import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pgmta_features.http_api.api import Api
from pgmta_features.http_api.openapi_document import words_of
from pgmta_features.http_api.openapi_page import POLICY
from pgmta_features.http_api.problem import PROBLEMS
from pgmta_features.http_api.scopes import SCOPES
from tests.features.http_api.served import ServedApi
from tests.support.packages import folder


def references(part: Any) -> set[str]:
    """All references of a part of a document."""
    if isinstance(part, dict):
        own = {part["$ref"]} if isinstance(part.get("$ref"), str) else set()
        return own.union(*map(references, part.values()))
    return set().union(*map(references, part)) if isinstance(part, list) else set()


def test_each_operation_and_its_problems_are_described(api: ServedApi) -> None:
    served = api.ask("GET", "/v1/openapi.json")
    assert (served.status, served.headers["content-type"]) == (200, "application/json")
    document = served.members
    operations = Api.unserved().operations
    paths = {re.sub(r"\{(\w+):[^}]*\}", r"{\1}", each.path) for each in operations}
    assert set(document["paths"]) == paths
    names = [m["operationId"] for path in document["paths"].values() for m in path.values()]
    assert len(names) == len(set(names)) == len(operations)
    for each in operations:
        assert each.scope in {"", *SCOPES}, each.path
        assert not [w for w in words_of(each) if w not in PROBLEMS], each.path
    for reference in references(document):
        place = document
        for name in reference.removeprefix("#/").split("/"):
            place = place[name]
    schemas = document["components"]["schemas"]
    assert schemas["Batch"]["properties"]["messages"]["items"]["$ref"].endswith("/Message")
    # an answer leaves out what is null
    assert schemas["Stored"]["properties"]["suppressed"]["type"] == "array"


class Page(HTMLParser):
    """The tags, anchors and links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.ids: set[str] = set()
        self.links: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        fields = dict(attrs)
        self.tags.add(tag)
        self.ids |= {fields["id"] or ""} if "id" in fields else set()
        self.links |= {fields["href"] or ""} if "href" in fields else set()


def test_the_page_shows_all_without_scripts(api: ServedApi) -> None:
    answer = api.ask("GET", "/v1/docs")
    assert answer.headers["content-security-policy"] == POLICY
    page = Page()
    page.feed(answer.body.decode())
    document = api.ask("GET", "/v1/openapi.json").members
    operations = [m for path in document["paths"].values() for m in path.values()]
    shown = {each["operationId"] for each in operations} | set(document["components"]["schemas"])
    assert shown <= page.ids
    assert page.links <= {f"#{name}" for name in page.ids} | {"openapi.json"}
    assert not page.tags & {"script", "img", "link", "iframe", "form"}


@pytest.mark.needs("schemathesis")
def test_the_document_is_valid(api: ServedApi, tmp_path: Path) -> None:
    path = tmp_path / "openapi.json"
    path.write_bytes(api.ask("GET", "/v1/openapi.json").body)
    python = folder() / "schemathesis" / "bin" / "python"
    done = subprocess.run(
        [python, "-m", "openapi_spec_validator", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
