"""Encodings of lists: recognised from all octets, and what is in none is named."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgmta.errors import ConfigError
from pgmta_features.campaigns.lists import text_encoding
from pgmta_features.campaigns.lists.text_encoding import Encoding, named, recognise

WINDOWS = st.text(st.sampled_from("aé ßöÜ,;\n"), min_size=1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def decoded(content: bytes, encoding: Encoding) -> str:
    return content.decode(encoding.codec, encoding.errors)


@given(TEXT, st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]), st.integers(1, 9))
def test_unicode_is_read_as_it_was_written(text: str, codec: str, chunk: int) -> None:
    content = text.removeprefix("\ufeff").encode(codec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_encoding, "_CHUNK_OCTETS", max(chunk, 3))
        found = recognise(io.BytesIO(content))
    assert decoded(content, found) == text.removeprefix("\ufeff")
    assert found.name == ("UTF-16" if codec == "utf-16" else "UTF-8")


@given(WINDOWS)
def test_octets_that_are_no_utf_8_are_windows_1252(text: str) -> None:
    content = text.encode("cp1252")
    found = recognise(io.BytesIO(content))
    assert found.name == ("UTF-8" if text.isascii() else "windows-1252")
    assert decoded(content, found) == text


@pytest.mark.parametrize("far", [0, 10, 900_000])
def test_one_octet_decides_wherever_it_is(far: int) -> None:
    """In a list of UTF-8 it makes no mojibake of the others."""
    ascii_rows = b"ann@x.example,Ann\n" * far
    assert recognise(io.BytesIO(ascii_rows + b"M\xfcller\n")).name == "windows-1252"
    mixed = "Köln\n".encode() * 2 + ascii_rows + b"M\xfcller\n"
    found = recognise(io.BytesIO(mixed))
    assert (found.name, found.mixed) == ("UTF-8", True)
    last = decoded(mixed, found).splitlines()[-1]
    assert found.fault(last) == "has the octet 0xFC, which is not in UTF-8"
    # a few names that were spoilt before
    spoilt = "Jörg\n".encode("cp1252") * 3 + ascii_rows + "Zoë".encode()
    assert decoded(spoilt, recognise(io.BytesIO(spoilt))).endswith("ZoÃ«")


def test_octets_without_a_character_are_named() -> None:
    assert recognise(io.BytesIO(b"\x81\xe4\n")).fault(b"\x81".decode("cp1252", "surrogateescape")) \
        == "has the octet 0x81, which is not in windows-1252"  # fmt: skip
    content = b"\xff\xfea\0\x01\xd8b\0"
    found = recognise(io.BytesIO(content))
    assert found.fault(decoded(content, found)) == "has half of a surrogate pair of UTF-16, 0xD801"


def test_encodings_by_name() -> None:
    for name, text in (("windows-1250", "Łódź"), ("UTF8", "\ufeffŁ"), ("macintosh", "ä"),
                       ("cp850", "ß"), ("shift_jis", "日本"), ("utf-16-le", "Łódź")):  # fmt: skip
        codec = {"UTF8": "utf-8", "macintosh": "mac_roman"}.get(name, name)
        assert decoded(text.encode(codec), named(name)) == text.removeprefix("\ufeff")
    for name, reason in (
        ("window-1252", "did you mean windows-1252?"), ("base64", "unknown; utf-8, windows"),
        ("rot13", "unknown; utf-8, windows"), ("zlib", "unknown; utf-8, windows"),
        ("idna", "ASCII as it is"), ("unicode_escape", "ASCII as it is"), ("utf-7", "ASCII as it"),
        ("cp037", "ASCII as it is"), ("", "it is unknown"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=reason):
            named(name)
