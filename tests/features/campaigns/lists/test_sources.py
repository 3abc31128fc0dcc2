"""Files with any octets: rows, bad rows by their lines, or one error that names the file."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pgmta.compose.template import TemplateSource, compile_template
from pgmta.errors import ConfigError
from pgmta_features.campaigns.lists.row_check import RowCheck
from pgmta_features.campaigns.lists.sources import csv_list

TEMPLATE = compile_template(TemplateSource(
    sender="", from_="a@a.example", subject="x", body="{{name}}"
))  # fmt: skip
OCTETS = st.lists(
    st.binary(max_size=3) | st.sampled_from([
        b"recipient,name\n", b"recipient;name\r\n", b"sep=;\n", b"a@x.example,Ann\n", b"\xff\xfe",
        b"\xfe\xff", b"\xef\xbb\xbf", b"\x00\xd8", b'"', b"\x81", "é".encode(),
        "recipient\tname\nb@x.example\tBé\n".encode("utf-16"),
    ]),
    max_size=9,
).map(b"".join)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(OCTETS, st.sampled_from([None, "utf-8", "utf-16", "utf-16-be", "windows-1252", "gb18030"]))
@example(b"\xff\xfer\0\n\0\x00", None)
@example(b"sep=;\n", None)
@example(b"\0\0", "utf-16")
def test_any_file_is_read_to_its_end_or_refused(
    tmp_path: Path, content: bytes, encoding: str | None
) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes(content)
    with suppress(ConfigError), csv_list(path, None, encoding) as found:
        check = RowCheck(TEMPLATE, found.columns, None, found.encoding)
        for row in found.rows:  # one with a problem has no cells
            try:
                words = check.read(row.cells)[2]
            except UnicodeError:
                raise
            except ValueError:
                continue
            json.loads(words)["name"].encode()


def test_a_header_without_a_line_end_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes(b"recipient," * (1 << 20))
    with pytest.raises(ConfigError, match="list.csv:1: the row is over"), csv_list(path):
        pass
