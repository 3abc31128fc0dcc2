"""Proofs that a callback comes from its provider: signatures, logins and secret URLs."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from pgmta_features.callbacks.proof_keys import Verify, verifier
from pgmta_features.callbacks.settings import CallbackProof
from pgmta_features.providers.answer_path import find, parse_path, shown
from pgmta_features.providers.places import Text

_MAX_FIELDS = 1000  # of a form
_DEFAULT_PORTS = {"https": 443, "http": 80}


class BodyMalformed(ValueError):
    """A body is neither JSON nor a form, as it should be."""


@dataclass(frozen=True)
class CallbackRequest:
    """A request of a provider. `url` is as the provider called it; names of fields are lower-case.

    `secret` is the part of the path behind the name.
    """

    url: str
    secret: str
    headers: Mapping[str, str]
    body: bytes

    @cached_property
    def query(self) -> dict[str, str]:
        """Return the parameters of the URL."""
        return dict(parse_qsl(urlsplit(self.url).query, keep_blank_values=True))

    @cached_property
    def document(self) -> Any:
        """Return the JSON of the body. Raises BodyMalformed."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise BodyMalformed("no JSON") from None

    @cached_property
    def fields(self) -> list[tuple[str, str]]:
        """Return the fields of the form. Raises BodyMalformed."""
        try:
            text = self.body.decode()
            return parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS)
        except ValueError:
            raise BodyMalformed("no form") from None

    def value(self, place: str) -> str:
        """Return the text at header.NAME, query.NAME or json.PATH, '' if there is none."""
        kind, _, name = place.partition(".")
        if kind == "header":
            return self.headers.get(name.lower(), "")
        if kind == "query":
            return self.query.get(name, "")
        return shown(find(self.document, parse_path(name)))


class Prover:
    """Checks requests of one provider. Any of its keys proves."""

    def __init__(self, proof: CallbackProof) -> None:
        self._proof = proof
        self._keys = [key.octets for key in proof.keys]
        self._verify: list[Verify] = []
        if proof.message:
            self._parts = Text.parse(proof.message).parts
            self._verify = [
                verifier(proof.by, proof.algorithm, proof.key_encoding, key.path, key.octets)
                for key in proof.keys
            ]

    def proves_header(self, request: CallbackRequest) -> bool:
        """Return whether a request without its body is worth reading on."""
        if self._proof.by == "basic":
            given = _login(request.headers.get("authorization", ""))
        elif self._proof.by == "secret_url":
            given = _octets(request.secret)
        else:
            return not request.secret
        if self._proof.by == "basic" and request.secret:
            return False
        found = [hmac.compare_digest(given, key) for key in self._keys]
        return any(found)  # after all comparisons, so that the time tells nothing

    def proves(self, request: CallbackRequest, now: float) -> bool:
        """Return whether a whole request is signed, and not too old (`now`: seconds of Unix)."""
        proof = self._proof
        if not self._verify:
            return True
        try:
            if proof.timestamp and not self._fresh(request.value(proof.timestamp), now):
                return False
            signatures = self._signatures(request.value(str(proof.signature)))
            messages = self._messages(request)
        except (BodyMalformed, UnicodeEncodeError):  # for lone surrogates, which no provider signs
            return False
        found = [
            verify(signature, message)
            for verify in self._verify
            for signature in signatures
            for message in messages
        ]
        return any(found)

    def _fresh(self, text: str, now: float) -> bool:
        if not (text.isascii() and text.isdigit() and len(text) <= 13):
            return False
        seconds = int(text) / (1000 if len(text) == 13 else 1)
        return abs(now - seconds) <= self._proof.age

    def _signatures(self, text: str) -> list[bytes]:
        found = []
        for each in text.split()[:5]:
            if each.startswith(self._proof.prefix):
                digits = each.removeprefix(self._proof.prefix)
                try:
                    found.append(
                        bytes.fromhex(digits)
                        if self._proof.encoding == "hex"
                        else base64.b64decode(digits, validate=True)
                    )
                except (ValueError, binascii.Error):
                    continue
        return found

    def _messages(self, request: CallbackRequest) -> list[bytes]:
        """Return the octets that may be signed: a URL may have its port, or not."""
        urls = _spellings(request.url) if "url" in self._parts[1::2] else [""]
        return [
            b"".join(
                self._part(part, request, url) if n % 2 else part.encode()
                for n, part in enumerate(self._parts)
            )
            for url in urls
        ]

    def _part(self, word: str, request: CallbackRequest, url: str) -> bytes:
        match word:
            case "body":
                return request.body
            case "url":
                return _octets(url)
            case "form":
                return _octets("".join(map("".join, sorted(set(request.fields)))))
        return _octets(request.value(word))


def _octets(text: str) -> bytes:
    """Return the octets of a text. Those of a stranger may have lone surrogates."""
    try:
        # a header or URL may have octets that are no UTF-8
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")  # JSON may have lone surrogates


def _login(field: str) -> bytes:
    kind, _, text = field.partition(" ")
    if kind.lower() != "basic":
        return b""
    try:
        return base64.b64decode(text.strip(), validate=True)
    except (ValueError, binascii.Error):
        return b""


def _spellings(url: str) -> Sequence[str]:
    parts = urlsplit(url)
    host = parts.netloc.rpartition(":")[0] if parts.port else parts.netloc
    port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 443)
    return [
        urlunsplit(parts._replace(netloc=netloc)) for netloc in dict.fromkeys(
            [parts.netloc, host, f"{host}:{port}"])
    ]  # fmt: skip
