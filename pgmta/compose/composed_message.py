"""The composition of a message: its parts, or a template and its words, as the table has them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, NamedTuple

from pgmta.compose.mime import MessageIdentity, compose_header
from pgmta.compose.parts import Parts, mailboxes_of, parts_of, tail_of
from pgmta.compose.template import Template, TemplateSource, compile_template
from pgmta.compose.token import KeyRings, LinkNumbers
from pgmta.errors import TemplateError

UNSUBSCRIBE = "unsubscribe"
"""The word of a template whose value is the link that unsubscribes, and the key of such mail."""

_JSON = json.JSONDecoder(parse_int=str, parse_float=str)


class Composition(NamedTuple):
    """Of which a message is composed: `params` are parts, or the recipient and words of a template.

    Without a template `template_id` is None.
    """

    template_id: int | None
    params: dict[str, Any]


def read_composition(text: str) -> Composition:
    """Read a composition from JSON; a number of any length is a text. Raises ValueError.

    A row may be broken by hand, so that any JSON can be there.
    """
    try:
        template_id, params = _JSON.decode(text)
        if not isinstance(params, dict):
            raise ValueError("params is no object")
        return Composition(None if template_id is None else int(template_id), params)
    except RecursionError:
        raise ValueError("params is nested too deep") from None


def parts_for(
    params: dict[str, Any],
    template: Template | None,
    keys: KeyRings | None = None,
    *,
    row: LinkNumbers | None = None,
    masked: bool = False,
) -> Parts:
    """Return the parts of a message. Raises ValueError, which names words and no values.

    With `masked` the words of a template have their names in place of their values. `keys` sign the
    token of mail that has one. Raises UnknownKey if the key that its row names is not there. Mail
    from which its recipient can unsubscribe gets the fields of one click; the link of mail that is
    of no campaign names its `row`.
    """
    if template is None:
        if UNSUBSCRIBE not in params:
            return parts_of(params)
        parts = parts_of({key: value for key, value in params.items() if key != UNSUBSCRIBE})
        return parts if masked else _with_one_click(parts, _link(params, keys, row))
    to, tail = mailboxes_of(params, "to"), tail_of(params)
    if masked:
        return template.masked(to, tail)
    words = params.get("words")
    if not isinstance(words, dict):
        raise ValueError("words is no object")
    if "token" in params:
        words = words | _keys(keys).words(params["token"], template.words)
    if UNSUBSCRIBE not in params:
        return template.fill(words, to, tail)
    link = _link(params, keys, row)
    if UNSUBSCRIBE in template.words:
        words = words | {UNSUBSCRIBE: link}
    return _with_one_click(template.fill(words, to, tail), link)


def one_click_fields(link: str) -> dict[str, str]:
    """Return the fields of one click (RFC 2369, section 3.2; RFC 8058, section 3.1)."""
    return {"List-Unsubscribe": f"<{link}>", "List-Unsubscribe-Post": "List-Unsubscribe=One-Click"}


def _keys(keys: KeyRings | None) -> KeyRings:
    if keys is None:
        raise ValueError("it has a token, and there are no keys here")
    return keys


def _link(params: dict[str, Any], keys: KeyRings | None, row: LinkNumbers | None) -> str:
    """Return the link of a row, or of `campaign` and `number` in the part unsubscribe."""
    order, signer = params[UNSUBSCRIBE], _keys(keys)
    try:
        if row is None or not isinstance(order, str):
            row = LinkNumbers(int(order["campaign"]), int(order["number"]))
        return signer.unsubscription(row)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ValueError("the part unsubscribe is broken") from None


def _with_one_click(parts: Parts, link: str) -> Parts:
    """Return the parts with the fields, in place of own ones."""
    ours = one_click_fields(link)
    names = {name.lower() for name in ours}
    own = [each for each in parts.headers if each[0].lower() not in names]
    return replace(parts, headers=(*own, *ours.items()))


def composed_header(shown: str, identity: MessageIdentity) -> bytes:
    """Return the header of composed mail without its secrets: a word has its name for its value.

    `shown` is the answer of the function composition_shown() in the database. The header of mail
    that can't be composed is empty.
    """
    try:
        params, source = _JSON.decode(shown)
        template = None
        if source:
            names = "sender", "reply_to", "subject", "body", "html"
            texts = {name: source[name] for name in names}
            template = compile_template(
                TemplateSource(from_=source["from"], headers=source["headers"], **texts)
            )
        return compose_header(parts_for(params, template, masked=True), identity)
    except (TemplateError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return b""  # a row or template that was changed by hand
