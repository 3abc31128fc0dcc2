"""The section `parameters` of a route with the transport `http`."""

from __future__ import annotations

import hashlib
import json
import secrets as random_secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from pgmta.config.types import Period, Section, SectionError, Whole, hint, listed
from pgmta_features.providers.answer_path import parse_path
from pgmta_features.providers.interface import described
from pgmta_features.providers.mail_words import FILE_LISTS, KNOWN_WORDS, LISTS, PREFIXES
from pgmta_features.providers.places import Text, UsedWord, check_words, parse_json, words_of
from queued.delivery.dns.hop import Hop
from queued.delivery.dns.hosts import host_name
from queued.delivery.transport.secret_parts import SecretParts

# With it nobody can try secrets on the key of a destination.
_KEY = random_secrets.token_bytes(16)
_FIELD = r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}"
_OUR_FIELDS = {
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "expect",
    "upgrade",
    "te",
}


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise ValueError("expected a text")
    Text.parse(given)
    return given


def _path(given: Any) -> str:
    parse_path(given if isinstance(given, str) else "")
    return str(given)


def _header(name: str) -> str:
    if name.lower() in _OUR_FIELDS:
        raise ValueError(f"{name} is set by pgmta")
    return name


def _field_value(given: Any) -> str:
    text = _text(given)
    if not text.isascii() or not text.isprintable():
        raise ValueError("a header field is printable ASCII")
    return text


type Worded = Annotated[str, BeforeValidator(_text)]
type FieldText = Annotated[str, BeforeValidator(_field_value)]
type AnswerPath = Annotated[str, BeforeValidator(_path)]
type FieldName = Annotated[str, Field(pattern=f"^{_FIELD}$"), AfterValidator(_header)]
type Status = Annotated[Whole, Field(ge=200, le=599)]


class HttpEndpoint(Section):
    """A URL that takes requests; a text is short for a mapping with the key url."""

    url: Worded = Field(description="https://host/path; words in the path and query only")
    weight: Whole = Field(default=1, ge=1, le=1000, description="of 2: used twice as often")

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"url": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        text = Text.parse(self.url)
        parts = urlsplit(text.parts[0])
        try:
            port = parts.port
        except ValueError:
            raise ValueError(f"{self.url!r}: the port is no number") from None
        whole = len(text.parts) == 1 or "/" in text.parts[0].partition("://")[2]
        host = parts.hostname or ""
        if parts.scheme not in ("http", "https") or not whole or "@" in parts.netloc or port == 0:
            raise ValueError(f"{self.url!r}: expected https://host/path, without a login")
        if not host_name(host) and ":" not in host and not host.replace(".", "").isdigit():
            raise ValueError(f"{host!r} is no name of a host")
        plain = "".join(text.parts[::2])
        if not plain.isascii() or not plain.isprintable() or " " in self.url:
            raise ValueError(f"{self.url!r}: has a blank, or is not ASCII")
        if parts.fragment:
            raise ValueError(f"{self.url!r} has a fragment")
        return self

    @property
    def hop(self) -> Hop:
        """The host and port, with the weight."""
        parts = urlsplit(Text.parse(self.url).parts[0])
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return Hop(parts.hostname or "", port, self.weight)


class HttpSuccess(Section):
    """Which answers say that the provider has the mail."""

    status: Annotated[list[Status], BeforeValidator(listed)] = Field(
        default=[], description="a status or a list; default: all from 200 to 299"
    )
    path: AnswerPath | None = Field(
        default=None,
        description="value in the JSON answer, as messages[0].status; without it the "
        "status alone counts",
    )
    values: Annotated[list[str | bool | int], BeforeValidator(listed)] = Field(
        default=[], description="values at the path that mean yes; default: any but null"
    )
    later: Annotated[list[str | bool | int], BeforeValidator(listed)] = Field(
        default=[], description="values at the path that mean: not now, try again"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("values", "later"):
            if getattr(self, name) and not self.path:
                raise ValueError(f"{name}: needs the path")
        return self


class HttpTimeouts(Section):
    """How long each phase of a request may take."""

    connect: Period = Field(default=30.0, description="a connection to one address, with TLS")
    request: Period = Field(default=60.0, description="until the request is out")
    answer: Period = Field(default=60.0, description="from then on until the end of the answer")


class HttpLogin(Section):
    """Basic authentication (RFC 7617)."""

    user: Worded
    password: Worded = Field(description="a word such as {{secrets.key}}")


class HttpField(Section):
    """Fields of multipart/form-data, one for each element of a list."""

    each: str = Field(description="a word whose value is a list, such as files, inline or headers")
    value: Worded | None = Field(
        default=None, description="value of the field; without it the field is a file"
    )
    name: Worded = Field(default="{{name}}", description="name of the file")
    type: Worded = Field(default="{{type}}", description="its media type")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.value is None and self.each not in FILE_LISTS:
            raise ValueError(f"{self.each!r} has no files; {hint(self.each, FILE_LISTS)}")
        return self

    def words(self, field: str) -> list[UsedWord]:
        """Return its words; `field` is the name of the field."""
        texts = (field, self.name, self.type) if self.value is None else (field, self.value)
        inner = (word for text in texts for word in Text.parse(text).words)
        return [UsedWord(word, self.each) for word in ("", *inner)]


class HttpSettings(Section):
    """Keys of `parameters`."""

    url: Annotated[list[HttpEndpoint], BeforeValidator(listed)] = Field(
        min_length=1, max_length=20, description="a URL, or a list of them, each with a weight"
    )
    method: Literal["POST", "PUT", "GET"] = "POST"
    headers: dict[FieldName, FieldText] = Field(default={}, description="fields, with words")
    basic: HttpLogin | None = Field(default=None, description="user and password")
    json_: Any = Field(default=None, alias="json", description="document, whose texts have words")
    form: dict[str, Worded] | None = Field(
        default=None, description="names and values, as a browser sends them"
    )
    multipart: dict[str, HttpField | Worded] | None = Field(
        default=None,
        description="the same as multipart/form-data; {{message}} is a file; a mapping with the "
        "key each makes a field or file of each element of a list, whose names may have its words",
    )
    body: Worded | None = Field(default=None, description="a text, such as {{message}}")
    success: HttpSuccess = Field(default=HttpSuccess())
    defer: Annotated[list[Status], BeforeValidator(listed)] = Field(
        default=[401, 403, 404, 405, 407, 408, 425, 429],
        description="statuses from 400 to 499 that say nothing about the mail: it is tried again",
    )
    id: AnswerPath | None = Field(default=None, description="the provider's id in the answer")
    id_header: FieldName | None = Field(default=None, description="or the field that has it")
    error: AnswerPath | None = Field(default=None, description="error code in the answer")
    error_sub_type: AnswerPath | None = Field(default=None, description="what it says more exactly")
    error_text: Annotated[list[AnswerPath], BeforeValidator(listed)] = Field(
        default=[], description="what it says in words: a path, or a list; the first with a value"
    )
    error_later: Annotated[list[str | bool | int], BeforeValidator(listed)] = Field(
        default=[],
        description="values of `error` with a status from 400 to 499 that say nothing about the "
        "mail: it is tried again",
    )
    segments: Whole = Field(
        default=10, ge=1, le=255, description="of the text for a telephone number, at most"
    )
    timeouts: HttpTimeouts = Field(default=HttpTimeouts())
    private: bool = Field(
        default=False, description="addresses of `delivery.forbidden` may be asked too"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        bodies = [name for name in ("json", "form", "multipart", "body")
                  if getattr(self, "json_" if name == "json" else name) is not None]  # fmt: skip
        if len(bodies) > 1:
            raise ValueError(f"{' and '.join(bodies)}: a request has one body")
        if bodies and self.method == "GET":
            raise ValueError(f"{bodies[0]}: a GET has no body")
        if self.basic and any(name.lower() == "authorization" for name in self.headers):
            raise ValueError("basic and headers.Authorization: one of them is enough")
        parse_json(self.json_)
        check_words(self.words, KNOWN_WORDS, PREFIXES, LISTS)
        if self.error_later and not self.error:
            raise ValueError("error_later: needs the path `error`")
        plain = [each for each in self.url if each.url.startswith("http:")]
        if plain and self.secret_names:
            raise ValueError(f"{plain[0].url}: a secret goes over https only")
        return self

    @property
    def words(self) -> list[UsedWord]:
        """All words that a request needs."""
        texts = [each.url for each in self.url] + list(self.headers.values())
        texts += [self.body or "", *(self.form or {}).values()]
        texts += [self.basic.user, self.basic.password] if self.basic else []
        found = [UsedWord(word) for text in texts for word in Text.parse(text).words]
        for name, each in (self.multipart or {}).items():
            if isinstance(each, str):
                found += map(UsedWord, Text.parse(each).words)
            else:
                found += each.words(name)
        return found + list(words_of(parse_json(self.json_)))

    @property
    def secret_names(self) -> frozenset[str]:
        """The names of the secrets among its words."""
        begin = "secrets."
        return frozenset(w.name[len(begin) :] for w in self.words if w.name.startswith(begin))


@dataclass(frozen=True)
class HttpParameters:
    """The parameters of a destination; `secrets` are the values of the words `secrets.NAME`."""

    settings: HttpSettings
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    @cached_property
    def key(self) -> str:
        """Return a text that differs between parameters and shows no secret."""
        used = {name: self.secrets.get(name, "") for name in sorted(self.secret_names)}
        words = json.dumps([self.settings.model_dump(mode="json"), used]).encode()
        digest = hashlib.blake2s(words, key=_KEY, digest_size=12).hexdigest()
        return f"{self} {digest}"

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HttpParameters) and self.key == other.key

    def __str__(self) -> str:
        return ",".join(dict.fromkeys(str(each.hop) for each in self.settings.url))

    @cached_property
    def secret_parts(self) -> SecretParts:
        """Return what finds parts of its secrets in answers."""
        return SecretParts(self.secrets.values())

    @cached_property
    def secret_names(self) -> frozenset[str]:
        """Return the names of the secrets that its words need."""
        return self.settings.secret_names

    def with_secrets(self, secrets: Mapping[str, str]) -> HttpParameters:
        """Return the same with the secrets that it needs."""
        return replace(self, secrets={name: secrets[name] for name in self.secret_names})


def parse_parameters(given: Any) -> HttpParameters:
    """Read the section, with the description that its key `interface` names. Raises ValueError."""
    try:
        settings = HttpSettings.model_validate(described(given))
    except ValidationError as error:
        raise SectionError(HttpSettings, error) from None
    return HttpParameters(settings)
