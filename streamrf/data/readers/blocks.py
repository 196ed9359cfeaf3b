"""Text cut into blocks of whole lines, as it comes: the unit in which text is parsed, in constant memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

from streamrf.data.failures import reading
from streamrf.data.locations import filesystem, is_url
from streamrf.support.errors import DataError

BLOCK_BYTES = 1 << 20
LONGEST = 64 << 20  # a record longer than this is a quote that nobody closed
_OPENERS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ": "lzma"}
_BOM = b"\xef\xbb\xbf"


class Lines(NamedTuple):
    """Whole lines of a text, and the number of the first of them, from 1."""

    first: int
    text: bytes


@contextmanager
def opened_text(location: str) -> Iterator[BinaryIO]:
    """The bytes of a file or URL, unpacked where they are compressed (gz, bz2, xz)."""
    with reading(location):
        raw = _open_raw(location)
        try:
            yield _unpacked(raw)
        finally:
            raw.close()


def _open_raw(location: str) -> Any:
    if is_url(location):
        system, path = filesystem(location)
        return system.open(path, "rb")
    return open(location, "rb")


def _unpacked(raw: Any) -> BinaryIO:
    import bz2
    import gzip
    import lzma

    start = raw.read(6)
    raw.seek(0)
    kind = next((name for magic, name in _OPENERS.items() if start.startswith(magic)), None)
    if kind is None:
        return raw
    opener: Callable[..., Any] = {"gzip": gzip.GzipFile, "bz2": bz2.BZ2File, "lzma": lzma.LZMAFile}[kind]
    return opener(fileobj=raw, mode="rb") if kind == "gzip" else opener(raw, mode="rb")


def line_blocks(stream: Any, *, quotes: bool, size: int = BLOCK_BYTES) -> Iterator[Lines]:
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
