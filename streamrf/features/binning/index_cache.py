"""A cache of slots by ranges of rows, in memory or in a temporary file, up to so many bytes.

What is not in it is made again by whoever asks: it never changes a result. The file has no name, so that nothing is
left of it when the process ends, however it ends.
"""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Lock
from typing import IO

import numpy as np

from streamrf.data.source import Span
from streamrf.support.errors import StorageError

MEMORY, DISK, NOWHERE = "memory", "disk", "nowhere"
PLACES = (MEMORY, DISK, NOWHERE)
MOST_READ = 1 << 30  # bytes at a time


@dataclass(frozen=True)
class Kept:
    """Slots (P, n) of the usable rows of a span; ``index`` numbers them, None where every row of the span is usable."""

    span: Span
    slots: Callable[[], np.ndarray]
    index: np.ndarray | None

    def part(self, span: Span) -> tuple[np.ndarray, np.ndarray]:
        """Slots and row numbers of a span within this one; views, where the slots are in memory."""
        slots = self.slots()
        if self.index is None:
            rows = slice(span.start - self.span.start, span.stop - self.span.start)
            return slots[:, rows], np.arange(span.start, span.stop)
        rows = slice(*np.searchsorted(self.index, [span.start, span.stop]))
        return slots[:, rows], self.index[rows]


class SlotCache:
    """Spans that do not overlap, each with its slots."""

    def __init__(self, place: str, limit: int) -> None:
        self.place, self.limit, self.bytes = place, limit if place != NOWHERE else 0, 0
        self._kept: list[Kept] = []  # in row order
        self._lock = Lock()
        self._file: IO[bytes] | None = None

    def put(self, span: Span, slots: np.ndarray, index: np.ndarray | None = None) -> None:
        """Keep the slots of a span, if there is room and none of its rows is here yet."""
        size = slots.nbytes + (0 if index is None else index.nbytes)
        with self._lock:
            at = self._after(span.start)
            free = (at == 0 or self._kept[at - 1].span.stop <= span.start) and (
                at == len(self._kept) or span.stop <= self._kept[at].span.start
            )
            if free and self.bytes + size <= self.limit and (fetch := self._stored(slots)):
                self._kept.insert(at, Kept(span, fetch, index))
                self.bytes += size

    def parts(self, span: Span) -> Iterator[tuple[Span, Kept | None]]:
        """The span in parts that are kept and gaps that are not, in row order."""
        with self._lock:
            first = max(0, self._after(span.start) - 1)
            inside = [kept for kept in self._kept[first : self._after(span.stop)] if kept.span.stop > span.start]
        row = span.start
        for kept in inside:
            if kept.span.start >= span.stop:
                break
            if row < kept.span.start:
                yield Span(row, kept.span.start), None
            row = max(row, kept.span.start)
            yield Span(row, min(kept.span.stop, span.stop)), kept
            row = min(kept.span.stop, span.stop)
        if row < span.stop:
            yield Span(row, span.stop), None

    def clear(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._kept, self.bytes = [], 0
            if self._file is not None:
                self._file.close()
                self._file = None

    def _after(self, row: int) -> int:
        return bisect_right(self._kept, row, key=lambda kept: kept.span.start)

    def _stored(self, slots: np.ndarray) -> Callable[[], np.ndarray] | None:
        if self.place == MEMORY:
            return lambda: slots
        try:
            return self._written(slots)
        except OSError:  # the disk is full: what is on it is used, the rest is made anew
            self.limit = 0
            return None

    def _written(self, slots: np.ndarray) -> Callable[[], np.ndarray]:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="streamrf-slots-")  # noqa: SIM115 (closed by clear)
        file, shape, dtype = self._file, slots.shape, slots.dtype
        offset = file.seek(0, os.SEEK_END)
        file.write(np.ascontiguousarray(slots).data)
        file.flush()

        def fetch() -> np.ndarray:
            out = np.empty(shape, dtype)
            _read_into(file.fileno(), offset, out.reshape(-1).view(np.uint8))
            return out

        return fetch


def _read_into(number: int, offset: int, room: np.ndarray) -> None:
    """One call reads 2 GB at most."""
    done = 0
    while done < len(room):
        count = os.preadv(number, [room[done : done + MOST_READ].data], offset + done)
        if not count:
            raise StorageError(f"the cache of slots ends {len(room) - done:,} bytes too early: train again")
        done += count
