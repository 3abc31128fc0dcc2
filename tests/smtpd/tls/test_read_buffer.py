"""Reads of a TLS session are short, and memory that they do not use goes back."""

from __future__ import annotations

import asyncio

from smtpd.tls.read_buffer import ReadBuffer

RECORD = 16 << 10


class Tls(asyncio.BufferedProtocol):
    """A protocol with a large buffer that other content has used."""

    def __init__(self) -> None:
        self.buffer = bytearray(b"x" * (256 << 10))
        self.got = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.got += nbytes


def test_reads_have_a_record_and_the_rest_is_not_in_memory() -> None:
    tls = Tls()
    reads = ReadBuffer(tls)
    room = reads.get_buffer(65536)
    assert len(room) == RECORD
    room[:3] = b"abc"
    reads.buffer_updated(3)
    assert tls.got == 3
    assert tls.buffer.startswith(b"abc")
    assert tls.buffer[3:RECORD] == b"x" * (RECORD - 3)
    # whole pages are new; the first and the last may have other content as well
    assert tls.buffer[RECORD:].count(b"\0") >= (256 << 10) - RECORD - 2 * 4096
