"""OpenAPI 3.1 of the API, made from its operations and their models."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema

from pgmta.http.answers import JSON_TYPE, PROBLEM_TYPE
from pgmta_features.http_api.operation import Operation
from pgmta_features.http_api.problem import ALWAYS, PROBLEMS, TYPE_PREFIX
from pgmta_features.http_api.scopes import SCOPES

_PUBLIC = ("insecure", "invalid")
_WITH_BODY = ("body-missing", "body-type", "body-size", "not-json", "busy")
_UNPROCESSABLE = 422  # of what a body says; a query gets 400
_VARIABLE = re.compile(r"\{(\w+)(?::[^{}]*)?\}")
_SCHEMAS = "#/components/schemas/"
_MIN_WAIT_S = 1
_UNTYPED = "about:blank"  # of a request that the server can't read as HTTP (RFC 9457, 4.2.1)

_INTRODUCTION = (
    "Mail by JSON, and what became of it. A key goes with each request, in the field Authorization."
    " Ids are strings, and times are RFC 3339 in UTC. Errors are problems (RFC 9457): `type` has"
    " their kind, `pointer` the place in the body. Unknown keys are refused."
)
_PROBLEM: dict[str, Any] = {
    "type": "object",
    "description": "An error (RFC 9457).",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {
            "type": "string", "format": "uri", "description": f"{TYPE_PREFIX}WORD, or {_UNTYPED}"
        },
        "title": {"type": "string", "description": "the kind in words"},
        "status": {"type": "integer", "description": "as of the answer"},
        "detail": {"type": "string", "description": "what is wrong here, and what would be right"},
        "pointer": {
            "type": "string", "format": "json-pointer",
            "description": "the first wrong place of the body (RFC 6901)",
        },
        "errors": {
            "type": "array",
            "description": "each mistake, up to 20",
            "items": {
                "type": "object",
                "required": ["detail"],
                "properties": {
                    "detail": {"type": "string"},
                    "pointer": {"type": "string", "description": "its place in the body"},
                    "parameter": {"type": "string", "description": "its name in the query"},
                },
            },
        },
    },
    "examples": [
        {
            "type": f"{TYPE_PREFIX}invalid", "title": PROBLEMS["invalid"][0],
            "status": _UNPROCESSABLE,
            "detail": "subjekt: Unknown key; did you mean 'subject'?", "pointer": "/subjekt",
            "errors": [
                {"pointer": "/subjekt", "detail": "Unknown key; did you mean 'subject'?"}
            ],
        }
    ],
}  # fmt: skip
_HEADERS: dict[str, Any] = {
    "RateLimit": {
        "description": "Requests that the key has left at once, and the seconds until it has all "
        "(draft-ietf-httpapi-ratelimit-headers). Without a limit there is no such field.",
        "schema": {"type": "string"}, "example": '"key";r=999;t=1',
    },
    "RateLimit-Policy": {
        "description": "Requests of the key in a second, at most.",
        "schema": {"type": "string"}, "example": '"key";q=1000;w=1',
    },
    "Retry-After": {
        "description": "Seconds to wait before the request is repeated.",
        "schema": {"type": "integer", "minimum": _MIN_WAIT_S},
    },
    "WWW-Authenticate": {"description": "`Bearer`.", "schema": {"type": "string"}},
    "Idempotency-Replayed": {
        "description": "`true`: an earlier request had this Idempotency-Key; this is its answer.",
        "schema": {"const": "true"},
    },
    "Location": {"description": "The URL of what was made.", "schema": {"type": "string"}},
}  # fmt: skip
_IDEMPOTENCY_KEY: dict[str, Any] = {
    "name": "Idempotency-Key", "in": "header",
    "description": "Names the request, for a day. A repetition with the same key and content gets "
    "the first answer, and nothing is done twice (draft-ietf-httpapi-idempotency-key-header).",
    "schema": {"type": "string", "pattern": "^[!#-~]{1,255}$"},
    "example": "order-4711",
}  # fmt: skip


def document(operations: Sequence[Operation], release: str, base: str = "") -> dict[str, Any]:
    """Return the document of a release. `base` is the path behind which the API is served."""
    schemas = _Schemas(operations)
    known = {(each.method, _path(each)) for each in operations}
    paths: dict[str, dict[str, Any]] = {}
    responses: dict[str, Any] = {}
    for each in operations:
        made = _operation(each, schemas, responses)
        if each.method == "POST" and any(
            method == "GET" and _VARIABLE.sub("", path) == f"{each.path}/" for method, path in known
        ):
            for status, answer in made["responses"].items():
                if status in ("201", "202"):
                    answer["headers"]["Location"] = _reference("headers", "Location")
        paths.setdefault(_path(each), {})[each.method.lower()] = made
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pgmta", "version": release, "description": _INTRODUCTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": base or "/"}],
        "security": [{"key": []}],
        "tags": [{"name": name} for name in dict.fromkeys(map(_tag, operations))],
        "paths": paths,
        "components": {
            "schemas": {**schemas.all, "Problem": _PROBLEM},
            "responses": dict(sorted(responses.items())),
            "headers": _HEADERS,
            "parameters": {"IdempotencyKey": _IDEMPOTENCY_KEY},
            "securitySchemes": {
                "key": {
                    "type": "http", "scheme": "bearer", "bearerFormat": "pgmta_ID_SECRET",
                    "description": "A key of `queuectl apikey new`. Its scopes: "
                    + "; ".join(f"`{name}`: {what}" for name, what in SCOPES.items()) + ".",
                }
            },
        },
    }  # fmt: skip


def words_of(operation: Operation) -> list[str]:
    """Return the words of all problems that an operation may have."""
    found = [*(_PUBLIC if operation.public else ALWAYS)]
    if operation.scope:
        found.append("scope-missing")
    found += _WITH_BODY if operation.takes_body else ["body-unexpected"]
    return [*dict.fromkeys([*found, *operation.problems])]


class _Schemas:
    """The schemas of all models; those of a body and of an answer may differ."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        wanted: dict[tuple[type[BaseModel], JsonSchemaMode], None] = {}
        for each in operations:
            for model in (each.body, each.query):
                if model:
                    wanted[model, "validation"] = None
            for answer in each.answers.values():
                if answer:
                    wanted[answer, "serialization"] = None
        generator = _Generator(ref_template=f"{_SCHEMAS}{{model}}")
        self._places, made = generator.generate_definitions(
            [(model, mode, model.__pydantic_core_schema__) for model, mode in wanted]
        )
        self.all: dict[str, dict[str, Any]] = {str(name): each for name, each in made.items()}
        self.all = {name: self._shared(name, each) for name, each in self.all.items()}
        answers = {
            place["$ref"].removeprefix(_SCHEMAS)
            for (_, mode), place in self._places.items()
            if mode == "serialization"
        }
        for name in self._reached(answers):
            _leave_nulls_out(self.all[name])
        queries = {each.query: None for each in operations if each.query}
        self._queries = {model: self.all[self._name(model, "validation")] for model in queries}
        for model in queries:
            if not any(model is each.body for each in operations):
                del self.all[self._name(model, "validation")]
        _tidy(self.all)

    def of(self, model: type[BaseModel], mode: JsonSchemaMode) -> dict[str, Any]:
        """Return what names the schema of a model."""
        return dict(self._places[model, mode])

    def parameters(self, model: type[BaseModel]) -> list[dict[str, Any]]:
        """Return the parameters of a query."""
        schema = self._queries[model]
        found = []
        for name, inner in schema.get("properties", {}).items():
            given = _without_null(inner)
            made = {"name": name, "in": "query", "required": name in schema.get("required", ())}
            if text := given.pop("description", ""):
                made["description"] = text
            given.pop("title", None)
            found.append({**made, "schema": given})
        return found

    def _name(self, model: type[BaseModel], mode: JsonSchemaMode) -> str:
        return str(self._places[model, mode]["$ref"]).removeprefix(_SCHEMAS)

    def _shared(self, own: str, schema: Any) -> Any:
        """Return a schema that names others which it has had as a whole."""
        if isinstance(schema, list):
            return [self._shared("", each) for each in schema]
        if not isinstance(schema, dict):
            return schema
        title = schema.get("title")
        if isinstance(title, str) and title != own and self.all.get(title) == schema:
            return {"$ref": f"{_SCHEMAS}{title}"}
        return {key: self._shared(own, each) for key, each in schema.items()}

    def _reached(self, names: set[str]) -> set[str]:
        """Return the names with all that their schemas name."""
        found, new = set(names), set(names)
        while new:
            new = {each for name in new for each in _references(self.all[name])} - found
            found |= new
        return found


class _Generator(GenerateJsonSchema):
    """Takes what a model has, where a function only finishes what becomes of it."""

    def ser_schema(
        self,
        schema: core_schema.SerSchema | core_schema.IncExSeqSerSchema
        | core_schema.IncExDictSerSchema,
    ) -> JsonSchemaValue | None:  # fmt: skip
        """Return the schema of what a function makes; None: as if there were none."""
        return None if schema["type"] == "function-wrap" else super().ser_schema(schema)


def _operation(
    operation: Operation, schemas: _Schemas, responses: dict[str, Any]
) -> dict[str, Any]:
    """Return an operation. Puts its problems into the responses of the components."""
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _VARIABLE.findall(operation.path)
    ]
    if operation.query:
        parameters += schemas.parameters(operation.query)
    if operation.stores:
        parameters.append(_reference("parameters", "IdempotencyKey"))
    made: dict[str, Any] = {
        "operationId": _id(operation), "summary": operation.summary, "tags": [_tag(operation)],
    }  # fmt: skip
    made["security"] = (
        [] if operation.public else [{"key": [operation.scope] if operation.scope else []}]
    )
    if parameters:
        made["parameters"] = parameters
    if operation.takes_body:
        content: dict[str, Any] = {}
        if operation.body:
            content[JSON_TYPE] = {"schema": schemas.of(operation.body, "validation")}
        for kind in operation.other_bodies:
            content[kind] = {"schema": {}}
        made["requestBody"] = {"required": operation.needs_body, "content": content}
        if texts := [f"{kind}: {text}" for kind, text in operation.other_bodies.items()]:
            made["requestBody"]["description"] = "\n\n".join(texts)
    made["responses"] = {
        **{str(s): _answer(operation, s, m, schemas) for s, m in operation.answers.items()},
        **_problems(operation, responses),
    }
    return made


def _answer(
    operation: Operation, status: int, model: type[BaseModel] | None, schemas: _Schemas
) -> dict[str, Any]:
    headers = [] if operation.public else ["RateLimit", "RateLimit-Policy"]
    if operation.stores:
        headers.append("Idempotency-Replayed")
    content: dict[str, Any] = {}
    if model:
        content[JSON_TYPE] = {"schema": schemas.of(model, "serialization")}
    if status == min(operation.answers):
        content |= {kind: {"schema": {}} for kind in operation.other_answers}
    texts = [f"{kind}: {text}" for kind, text in operation.other_answers.items()]
    about = model.__doc__ if model and model.__doc__ else operation.summary
    made: dict[str, Any] = {
        "description": "\n\n".join([" ".join(about.split()), *texts]),
        "headers": {name: _reference("headers", name) for name in headers},
    }
    return {**made, "content": content} if content else made


def _problems(operation: Operation, responses: dict[str, Any]) -> dict[str, Any]:
    """Return the problems of an operation by status."""
    by_status: dict[int, list[str]] = {}
    for word in words_of(operation):
        for status in PROBLEMS[word][1]:
            if status != _UNPROCESSABLE or operation.takes_body:
                by_status.setdefault(status, []).append(word)
    found = {}
    for status, words in sorted(by_status.items()):
        headers = [] if operation.public else ["RateLimit", "RateLimit-Policy"]
        if status in (409, 429, 503):
            headers.append("Retry-After")
        if status == 401:
            headers.append("WWW-Authenticate")
        name = "-".join([str(status), *words, *(["public"] if operation.public else [])])
        kinds = [TYPE_PREFIX + word for word in words] + [_UNTYPED] * (status == 400)
        responses[name] = {
            "description": ". ".join(PROBLEMS[word][0] for word in words) + ".",
            "headers": {each: _reference("headers", each) for each in headers},
            "content": {
                PROBLEM_TYPE: {
                    "schema": {
                        "allOf": [
                            {"$ref": f"{_SCHEMAS}Problem"},
                            {"properties": {"type": {"enum": kinds}, "status": {"const": status}}},
                        ]
                    }
                }
            },
        }
        found[str(status)] = _reference("responses", name)
    return found


def _reference(kind: str, name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/{kind}/{name}"}


def _path(operation: Operation) -> str:
    """Return the path without the patterns of its variable parts."""
    return _VARIABLE.sub(r"{\1}", operation.path)


def _tag(operation: Operation) -> str:
    return operation.path.removeprefix("/v1/").partition("/")[0].partition(".")[0]


def _id(operation: Operation) -> str:
    """Return a name such as `postMessagesByIdCancel`, for functions of generated clients."""
    named = _VARIABLE.sub(r"by_\1", operation.path.removeprefix("/v1/"))
    words = re.split(r"\W+|_", named)
    return operation.method.lower() + "".join(each.capitalize() for each in words if each)


def _references(schema: Any) -> Iterable[str]:
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield str(schema["$ref"]).removeprefix(_SCHEMAS)
        for each in schema.values():
            yield from _references(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from _references(each)


def _leave_nulls_out(schema: dict[str, Any]) -> None:
    """Let no property be null that may be absent: an answer leaves it out then."""
    for name, inner in schema.get("properties", {}).items():
        if name not in schema.get("required", ()):
            schema["properties"][name] = _without_null(inner)


def _without_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(schema)
    if "anyOf" in found:
        choices = [each for each in found.pop("anyOf") if each != {"type": "null"}]
        found = {**choices[0], **found} if len(choices) == 1 else {**found, "anyOf": choices}
    if found.get("default", "") is None:
        del found["default"]
    return found


def _tidy(schemas: Mapping[str, dict[str, Any]]) -> None:
    """Leave out titles of keys, which repeat their names, and that null is the default of some."""
    for schema in schemas.values():
        for inner in schema.get("properties", {}).values():
            inner.pop("title", None)
            if inner.get("default", "") is None:
                del inner["default"]
