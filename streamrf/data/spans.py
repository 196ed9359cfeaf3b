"""Units of work: chunks joined or split so that each is worth a trip and fits in memory. Arithmetic only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from streamrf.data.source import Source, Span
from streamrf.data.table import even_spans
from streamrf.support.errors import InputError


def work_spans(source: Source, target_rows: int, max_bytes: int) -> tuple[Span, ...]:
    """Spans that cover every row once, in order, of about ``target_rows`` that need at most ``max_bytes`` to read.

    Small neighbours within a shard are joined. A chunk that is too large is split only where part of it can be read
    by itself; elsewhere it stays whole, above the limit, because decoding it needs all of it at once.
    """
    if target_rows < 1 or max_bytes < 1:
        raise InputError(
            f"a unit of work needs at least 1 row and 1 byte, not {target_rows} rows and {max_bytes} bytes"
        )

    def fits(span: Span) -> bool:
        return len(span) <= target_rows and source.read_bytes(span) <= max_bytes

    pieces = source.chunks()
    if source.has_partial_reads():
        pieces = tuple(piece for chunk in pieces for piece in _split(chunk, target_rows, max_bytes, source.read_bytes))
    return tuple(_joined(pieces, {shard.start for shard in source.shards()}, fits))


def _split(chunk: Span, target_rows: int, max_bytes: int, cost: Callable[[Span], int]) -> Iterator[Span]:
    """Near-equal pieces of a chunk, as few as the limits allow."""
    count = max(1, -(-len(chunk) // target_rows))
    while count < len(chunk) and cost(Span(chunk.start, chunk.start + -(-len(chunk) // count))) > max_bytes:
        count = min(2 * count, len(chunk))
    for piece in even_spans(len(chunk), -(-len(chunk) // count)):
        yield Span(chunk.start + piece.start, chunk.start + piece.stop)


def _joined(pieces: Iterable[Span], borders: set[int], fits: Callable[[Span], bool]) -> Iterator[Span]:
    """Greedy: a piece joins the one before it as long as both together fit and no shard begins between them."""
    current: Span | None = None
    for piece in pieces:
        if current is not None and piece.start not in borders and fits(Span(current.start, piece.stop)):
            current = Span(current.start, piece.stop)
            continue
        if current is not None:
            yield current
        current = piece
    if current is not None:
        yield current
