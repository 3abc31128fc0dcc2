"""The text of a reply as the rules of answers.yaml see it (pure)."""

from __future__ import annotations

import re

from pgmta.model import Reply

MAX_SEARCHED_CHARACTERS = 1024
"""Patterns are searched in so much of a reply."""

_CODE = re.compile(r"\s*([245]\d\d)(?:[ -]|$)")
_LINE = re.compile(r"\s*\n\s*(?:[245]\d\d[ -]?)?")
_ENHANCED = re.compile(r"[\[(<#\s]*([245]\.\d{1,3}\.\d{1,3})(?!\.?\d)[\])>:,.;-]*\s*")


def plain_words(text: str) -> tuple[str, str]:
    """Return a reply's text as patterns see it, and its enhanced code or ''.

    The text is in lower case with single spaces. The enhanced code is left out wherever a line of
    the reply began with it; hosts write it in brackets, too, or with a # before it.
    """
    normal = " ".join(text.lower().split())
    found = _ENHANCED.match(normal)
    if not found:
        return normal, ""
    enhanced = found[1]
    return normal[found.end() :].replace(f" {enhanced} ", " "), enhanced


def parse_reply(text: str) -> Reply:
    """Return a reply as people quote it: with its code, on one line or on several.

    Without a code it is the text of an error without a reply, with code 0.
    """
    found = _CODE.match(text)
    if not found:
        return Reply(0, " ".join(text.split()))
    code = found[1]
    rest = _LINE.sub(" ", text[found.end() :].strip())
    # Some hosts quote several lines in one: 550-5.1.1 The account 550 5.1.1 does not exist
    rest = re.sub(rf" {code}[ -](?=[245]\.\d+\.\d+ )", " ", rest)
    return Reply(int(code), " ".join(rest.split()))


def enhanced_forms(enhanced: str) -> frozenset[str]:
    """Return the forms with * by which rules may name an enhanced code."""
    if not enhanced:
        return frozenset()
    forms = [""]
    for part in enhanced.split("."):
        forms = [f"{form}.{word}" for form in forms for word in (part, "*")]
    return frozenset(form[1:] for form in forms)
