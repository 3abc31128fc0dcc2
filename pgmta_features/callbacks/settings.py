"""The section `callbacks` of web.yaml: how a provider's words are proven and read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from pgmta.config.types import (
    FOLDER,
    Period,
    Section,
    Size,
    each_by,
    hint,
    listed,
    parse_host_port,
    some_listed,
)
from pgmta.mail.answer_class import HARD_BOUNCES, AnswerClass
from pgmta.secret_file import read_secret
from pgmta_features.callbacks.proof_keys import verifier
from pgmta_features.providers.answer_path import parse_list_path, parse_path
from pgmta_features.providers.places import Text
from queued.web.web_config import WebConfig

_INTERFACES = Path(__file__).parent / "interfaces"
_MAX_KEY_OCTETS = 4096
_MIN_SECRET_OCTETS = 16
_LOCATION = re.compile(r"header\.[A-Za-z0-9-]{1,64}|query\.[\w-]{1,64}|json\.(?P<path>.+)")
_SIGNED_WORDS = ("body", "url", "form")
_SEGMENT = re.compile(rb"[A-Za-z0-9_-]+")
_NEEDS = {
    "hmac": ("message", "signature"),
    "public_key": ("message", "signature"),
    "basic": (),
    "secret_url": (),
}
_LOCATED_PARTS = ("message", "signature", "timestamp")

type Kind = Literal["delivered", "bounced", "failed", "complained"]


@dataclass(frozen=True, slots=True)
class ProofKey:
    """The path of a file with a key, and the octets in it."""

    path: str
    octets: bytes = field(repr=False)


def _path(given: Any) -> str:
    parse_path(given if isinstance(given, str) else "")
    return str(given)


def _soft(given: AnswerClass) -> AnswerClass:
    if given in HARD_BOUNCES:
        raise ValueError(f"{given} is the kind bounced, by `kinds`")
    return given


def _list_path(given: Any) -> str:
    parse_list_path(given if isinstance(given, str) else "")
    return str(given)


def _location(given: Any) -> str:
    text = given if isinstance(given, str) else ""
    found = _LOCATION.fullmatch(text)
    if not found:
        raise ValueError(f"{given!r} is no place; write header.NAME, query.NAME or json.PATH")
    if found["path"]:
        parse_path(found["path"])
    return text


def _message(given: Any) -> str:
    text = given if isinstance(given, str) else ""
    for word in Text.parse(text).words:
        if word in _SIGNED_WORDS:
            continue
        if not _LOCATION.fullmatch(word):
            known = [*_SIGNED_WORDS, "header.NAME", "query.NAME", "json.PATH"]
            raise ValueError(f"no word {word!r}; {hint(word, known)}")
        _location(word)
    return text


type _Path = Annotated[str, BeforeValidator(_path)]
type _Paths = Annotated[list[_Path], BeforeValidator(listed), Field(max_length=4)]
type _Location = Annotated[str, BeforeValidator(_location)]


class CallbackProof(Section):
    """How a request proves that it comes from the provider."""

    by: Literal["hmac", "public_key", "basic", "secret_url"] = Field(
        description="hmac, public_key (ECDSA with SHA-256, or Ed25519), basic (a login), or "
        "secret_url (the last part of the path)"
    )
    keys: Annotated[
        list[ProofKey], WithJsonSchema({"type": ["string", "array"], "items": {"type": "string"}})
    ] = Field(
        description="one to five files, relative to this one, that others can't read: key, public "
        "key, USER:PASSWORD, or secret; each of them proves",
    )
    message: Annotated[str, BeforeValidator(_message)] | None = Field(
        default=None,
        description="the octets that are signed, with the words body, url, form (its fields in "
        "order), header.NAME, query.NAME and json.PATH",
    )
    signature: _Location | None = Field(
        default=None, description="place of the signature: header.NAME, query.NAME or json.PATH"
    )
    timestamp: _Location | None = Field(
        default=None, description="place of the time that is signed; without it any age counts"
    )
    age: Period = Field(default=86400.0, description="difference of that time from now, at most")
    algorithm: Literal["sha256", "sha1"] = Field(default="sha256", description="of hmac")
    encoding: Literal["hex", "base64"] = Field(default="base64", description="of the signature")
    prefix: str = Field(
        default="",
        max_length=20,
        description="text before a signature; one place may have several with blanks between",
    )
    key_encoding: Literal["text", "base64"] = Field(
        default="text", description="of the keys of hmac; base64 may come after whsec_"
    )

    @field_validator("keys", mode="before")
    @classmethod
    def _read(cls, given: Any, info: ValidationInfo) -> list[ProofKey]:
        found = []
        for each in some_listed(given):
            if not isinstance(each, str) or not each:
                raise ValueError("expected the path of a file, or a list of them")
            found.append(_key(each, info, info.data.get("by")))
        if len(found) > 5:
            raise ValueError("at most five keys")
        return found

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in _LOCATED_PARTS:
            value, needed = getattr(self, name), name in _NEEDS[self.by]
            if needed and not value:
                raise ValueError(f"{self.by} needs {name}")
            if value and not _NEEDS[self.by]:
                raise ValueError(f"{name}: {self.by} signs nothing")
        for key in self.keys if _NEEDS[self.by] else ():
            verifier(self.by, self.algorithm, self.key_encoding, key.path, key.octets)
        return self


def _key(name: str, info: ValidationInfo, by: str | None) -> ProofKey:
    """Return the key in a file, relative to the folder of web.yaml. Raises ValueError."""
    folder = (info.context or {}).get(FOLDER)
    path = str(folder / name) if folder else name
    return ProofKey(path, _octets(path, by))


def _octets(path: str, by: str | None) -> bytes:
    """Return the only line of a key file. Raises ValueError, whose text names the path."""
    octets = read_secret(path, _MAX_KEY_OCTETS + 1).strip()
    if len(octets) > _MAX_KEY_OCTETS:
        raise ValueError(f"{path} has more than {_MAX_KEY_OCTETS} octets")
    if by == "public_key":
        return octets
    if len(octets) < _MIN_SECRET_OCTETS or b"\n" in octets:
        raise ValueError(f"{path} has no line of at least {_MIN_SECRET_OCTETS} octets")
    if by == "basic" and b":" not in octets:
        raise ValueError(f"{path} has no USER:PASSWORD")
    if by == "secret_url" and not _SEGMENT.fullmatch(octets):
        raise ValueError(f"{path} has other characters than letters, digits, - and _")
    return octets


class CallbackChallenge(Section):
    """How a provider tries the URL: it sends a GET with a token, and wants a text of it back."""

    key: Annotated[ProofKey, WithJsonSchema({"type": "string"})] | None = Field(
        default=None,
        description="file with the token, relative to this one, that others can't read; without "
        "it no GET is answered",
    )
    token: str = Field(min_length=1, description="parameter of the URL with the token")
    answer: str = Field(min_length=1, description="parameter of the URL with the text to answer")

    @field_validator("key", mode="before")
    @classmethod
    def _read(cls, given: Any, info: ValidationInfo) -> ProofKey | None:
        if given is None:
            return None
        if not isinstance(given, str) or not given:
            raise ValueError("expected the path of a file")
        return _key(given, info, None)


class CallbackEvents(Section):
    """How the events of a request are read. A path is one as messages[0].status."""

    body: Literal["json", "form"] = Field(default="json", description="form of the body")
    each: Annotated[str, BeforeValidator(_list_path)] | None = Field(
        default=None,
        description="path of the list of events, with [] behind each list around it, as "
        "entry[].events; without it the body is an event or a list",
    )
    key: _Paths = Field(default=[], description="paths of {{key}} in an event: the first with one")
    query: str | None = Field(
        default=None, description="parameter of the URL with {{key}}, in place of `key`"
    )
    kind: _Paths = Field(
        min_length=1,
        description="path of the provider's word; of several paths the words count together, with "
        "blanks between",
    )
    kinds: dict[str, Kind] = Field(
        min_length=1,
        description="words of the provider: delivered, bounced, failed or complained; if one is "
        "not there, the same without the last part; others are ignored",
    )
    code: _Paths = Field(default=[], description="paths of an error code: the first with a value")
    classes: dict[str, Annotated[AnswerClass, AfterValidator(_soft)]] = Field(
        default={},
        description="answer class of a failure by its code; default: other. That a mailbox does "
        "not exist, is the kind bounced",
    )
    sub_type: _Paths = Field(default=[], description="of a word that says more, likewise")
    text: _Paths = Field(default=[], description="of a text for the log, likewise")
    time: _Paths = Field(
        default=[], description="of the time, as ISO 8601, seconds or milliseconds, likewise"
    )

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if bool(self.key) == bool(self.query):
            raise ValueError("either key or query has to name the place of {{key}}")
        return self


def _tenants(given: Any) -> Any:
    return [str(each) if isinstance(each, int) else each for each in some_listed(given)]


class CallbackSettings(Section):
    """One provider, at `POST /callbacks/NAME`."""

    interface: str | None = Field(
        default=None, description="a shipped description, over which the other keys go"
    )
    hosts: Annotated[list[str], each_by(lambda value: str(parse_host_port(value, 443)).lower())] = (
        Field(description="next hops of the mail that it may speak of, as the log has them: "
              "HOST or HOST:PORT (443)")
    )  # fmt: skip
    tenants: Annotated[list[str], BeforeValidator(_tenants)] | None = Field(
        default=None, description="tenants of the mail that it may speak of; null: all"
    )
    proof: CallbackProof = Field(description="how it is proven")
    challenge: CallbackChallenge | None = Field(
        default=None, description="how the provider tries the URL by GET; null: it does not"
    )
    events: CallbackEvents = Field(description="how its events are read")

    @model_validator(mode="before")
    @classmethod
    def _described(cls, given: Any) -> Any:
        name = given.get("interface") if isinstance(given, dict) else None
        if name is None:
            return given
        known = interface_files()
        if name not in known:
            raise ValueError(f"no interface {name!r}; {hint(str(name), known)}")
        return _over(shipped_callback(name), given)


def _some(size: int) -> int:
    if size > 16 << 20:
        raise ValueError("a size of a callback is at most 16MB")
    return size


class CallbackLimits(Section):
    """A bound on providers."""

    callback: Annotated[Size, AfterValidator(_some)] = Field(
        default=1 << 20, description="octets of the body of a callback, at most; up to 16MB"
    )


type _Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]

CALLBACKS: tuple[Any, Any] = (
    dict[_Name, CallbackSettings],
    Field(default={}, description="providers that say later what became of mail, by name"),
)
"""The key `callbacks` of web.yaml."""


def callbacks_of(config: WebConfig) -> Mapping[str, CallbackSettings]:
    """Return the providers of a configuration by name."""
    found: Mapping[str, CallbackSettings] = config.value("callbacks")
    return found


def interface_files() -> list[str]:
    """Return the names of the descriptions that are shipped."""
    return sorted(path.stem for path in _INTERFACES.glob("*.yaml"))


@cache
def shipped_callback(name: str) -> dict[str, Any]:
    """Return a description that is shipped."""
    found = yaml.safe_load((_INTERFACES / f"{name}.yaml").read_text(encoding="utf-8"))
    return dict(found)


def _over(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description with the given keys over it, and with their sections merged.

    Words of `kinds` are merged too. If `by` changes, nothing of the described proof stays.
    """
    made = dict(base)
    for key, each in given.items():
        before = made.get(key)
        if not (isinstance(before, dict) and isinstance(each, dict)) or (
            key == "proof" and each.get("by", before.get("by")) != before.get("by")
        ):
            made[key] = each
        else:
            made[key] = _over(before, each)
    return made
