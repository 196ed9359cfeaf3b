"""Text cut into blocks of whole lines, as it comes: the unit in which text is parsed, in constant memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, NamedTuple

from streamrf.support.errors import DataError

FILE_BLOCK = 1 << 20  # bytes of text that are parsed at a time
STREAM_BLOCK = 1 << 18  # of a stream, or less where less is there
LONGEST = 64 << 20  # a record longer than this is a quote that nobody closed
_BOM = b"\xef\xbb\xbf"


class Lines(NamedTuple):
    """Whole lines of a text, and the number of the first of them, from 1."""

    first: int
    text: bytes


def line_blocks(stream: IO[bytes], *, quotes: bool, size: int = FILE_BLOCK) -> Iterator[Lines]:
    """The stream in blocks of whole lines of about ``size`` bytes, or of what is there if that is less.

    With ``quotes`` a line break between two quotes does not end a record.
    """
    read = getattr(stream, "read1", stream.read)
    held, line, begun = b"", 1, False
    while data := read(size):
        held, begun = (data.removeprefix(_BOM) if not begun else held + data), True
        end = _last_end(held, quotes)
        if end:
            yield Lines(line, held[:end])
            line += held.count(b"\n", 0, end)
            held = held[end:]
        elif len(held) > LONGEST:
            raise DataError(f"line {line:,} does not end within {LONGEST >> 20} MB: is a quote in it never closed?")
    if held:
        yield Lines(line, held)


def _last_end(text: bytes, quotes: bool) -> int:
    """Where the last whole record ends; 0 where there is none."""
    end = text.rfind(b"\n") + 1
    while quotes and end and text.count(b'"', 0, end) % 2:  # inside quotes: look before the one that opened them
        end = text.rfind(b"\n", 0, text.rfind(b'"', 0, end)) + 1
    return end
