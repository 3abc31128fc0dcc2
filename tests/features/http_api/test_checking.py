"""JSON and models: what is refused, and the place that the problem names."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from pgmta_features.http_api.checking import MAX_DEPTH, checked_body, checked_query, read_json
from pgmta_features.http_api.operation import Received
from pgmta_features.http_api.problem import Problem


class Part(Received):
    name: str
    kind: Literal["text", "html"] = "text"


class Mail(Received):
    subject: str
    to: list[str] | str
    parts: list[Part] = Field(default=[])
    limit: int = 10


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=20,
)


@given(VALUES)
def test_what_is_json_is_read(value: Any) -> None:
    assert read_json(json.dumps(value).encode()) == value
    assert read_json(json.dumps(value, ensure_ascii=False).encode()) == value


WRITTEN_TEXTS = st.lists(
    st.sampled_from(["a", "\\u0061", " ", '\\"', "\\\\", "\\n", "\\u0022", "{", ":", "é"]),
    max_size=3,
).map(lambda parts: f'"{"".join(parts)}"')
WRITTEN_VALUES = st.recursive(
    st.sampled_from(["null", "true", "1", "-2.5e3"]) | WRITTEN_TEXTS,
    lambda inner: (
        st.lists(inner).map(lambda each: f"[{', '.join(each)}]")
        | st.lists(st.tuples(WRITTEN_TEXTS, inner)).map(
            lambda pairs: f"{{{','.join(f'{key} : {value}' for key, value in pairs)}}}"
        )
    ),
    max_leaves=12,
)


@given(WRITTEN_VALUES)
def test_a_key_that_is_there_twice_is_found_however_it_is_written(text: str) -> None:
    lost = []

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        lost.append(len(pairs) - len(dict(pairs)))
        return dict(pairs)

    value = json.loads(text, object_pairs_hook=members)
    if any(lost):
        with pytest.raises(Problem, match="twice"):
            read_json(text.encode())
    else:
        assert read_json(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "status", "pointer"),
    [
        (b"", 400, ""),
        (b"{", 400, ""),
        (b'{"a": 1} x', 400, ""),
        (b"\xff", 400, ""),
        (b'{"a": NaN}', 400, ""),
        (b'{"a": -Infinity}', 400, ""),
        (b'{"a": 1e999}', 400, ""),
        (b'{"a": ' + b"9" * 5000 + b"}", 400, ""),
        (b'{"x": [0, {"a": 1, "b": {}, "a": 2}]}', 400, "/x/1/a"),
        (b'{"a": ["\\ud800"]}', 422, "/a/0"),
        (b'{"a/b": {"~": "\\u0000"}}', 422, "/a~1b/~0"),
        (b'{"a": {"\\udfff": 1}}', 422, "/a"),
        (b'{"a": "\x00"}', 400, ""),
        (b"[" * 100_000, 400, ""),
        # the texts have no end, so that each quote could begin one that reads all the rest
        (b'"\\' * 500_000, 400, ""),
        (b'"\\\\' * 300_000 + b"\\", 400, ""),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), 400, ""),
        (b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), 400, ""),
    ],
)
def test_bad_json_has_a_problem(text: bytes, status: int, pointer: str) -> None:
    with pytest.raises(Problem) as caught:
        read_json(text)
    assert (caught.value.status, caught.value.pointer) == (status, pointer)


def test_many_brackets_that_are_not_deep_are_read() -> None:
    assert read_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    assert len(read_json(b"[" + b'[{"a": "]]}[["}],' * 1000 + b"[]]")) == 1001
    assert read_json(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


@pytest.mark.parametrize(
    ("body", "pointer", "word"),
    [
        ({"to": "x"}, "/subject", "required"),
        ({"subject": "x", "to": "x", "sujbect": 1}, "/sujbect", "'subject'"),
        ({"subject": "x", "to": [1]}, "/to/0", "string"),
        ({"subject": "", "to": "", "parts": [{"name": "", "kind": "htm"}]}, "/parts/0/kind",
         "'html'"),
        ({"subject": "", "to": "", "parts": [{"name": "", "knd": ""}]}, "/parts/0/knd", "'kind'"),
        ([], "", "mapping"),
    ],
)  # fmt: skip
def test_a_mistake_names_its_place_and_the_nearest_word(body: Any, pointer: str, word: str) -> None:
    with pytest.raises(Problem) as caught:
        checked_body(body, Mail)
    problem = caught.value
    assert (problem.status, problem.pointer) == (422, pointer)
    assert word in problem.detail


def test_all_mistakes_are_named() -> None:
    with pytest.raises(Problem) as caught:
        checked_body({"subject": 1, "to": "x", "parts": [{}], "limit": "many"}, Mail)
    assert [each["pointer"] for each in caught.value.errors] == [
        "/subject",
        "/parts/0/name",
        "/limit",
    ]


def test_parameters_are_read_as_text() -> None:
    class Query(Received):
        limit: int = 100
        state: str = ""

    assert checked_query({"limit": "7"}, Query).limit == 7
    for fields, name in [({"limit": "x"}, "limit"), ({"limt": "7"}, "limt")]:
        with pytest.raises(Problem) as caught:
            checked_query(fields, Query)
        assert caught.value.status == 400
        assert caught.value.errors[0]["parameter"] == name
