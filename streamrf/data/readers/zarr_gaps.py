"""Chunks a zarr store does not hold.

Zarr reads a missing chunk as the fill value without a word. That is right for a chunk that held nothing else, which by
default is never written, and wrong for one whose file was lost; the store cannot tell the two apart. So:

- rows of X with no chunk at all are refused: rows in which every feature is the fill value teach nothing, and a lost
  file is the likelier reason; a store that really holds such rows can be written with ``write_empty_chunks=True``;
- where only some column chunks of X are missing (sparse columns), or a chunk of numeric targets (a rare class), the
  fill value is believed, with one warning for each array;
- missing string targets are refused: the empty string is nobody's label.

Looking is free: the store is asked only about chunks whose rows all came back as the fill value.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
from zarr.core.sync import sync

from streamrf.data.source import Span


class Gap(NamedTuple):
    """Rows with a chunk that is not stored."""

    rows: Span
    is_whole_band: bool  # no chunk of these rows is stored, in any column


class Gaps:
    """Which chunks of one array are missing."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self._grid: tuple[int, ...] = array.shards or array.chunks  # one stored file each
        self._columns = list(
            product(*(range(-(-n // c)) for n, c in zip(array.shape[1:], self._grid[1:], strict=True)))
        )
        self._fill = _fill_value(array)
        self._is_stored: dict[tuple[int, ...], bool] = {}

    def within(self, span: Span, values: np.ndarray) -> list[Gap]:
        """Gaps among these rows, which were read as ``values``."""
        if not len(values):
            return []
        rows = self._grid[0]
        bands = range(span.start // rows, -(-span.stop // rows))
        found = (self._gap(band, span, values) for band in bands)
        return [gap for gap in found if gap is not None]

    def _gap(self, band: int, span: Span, values: np.ndarray) -> Gap | None:
        start, stop = band * self._grid[0], (band + 1) * self._grid[0]
        part = values[max(start - span.start, 0) : stop - span.start]
        missing = [column for column in self._columns if self._is_missing((band, *column), part)]
        if not missing:
            return None
        return Gap(Span(start, min(stop, self._array.shape[0])), len(missing) == len(self._columns))

    def _is_missing(self, chunk: tuple[int, ...], part: np.ndarray) -> bool:
        inner = tuple(slice(i * size, (i + 1) * size) for i, size in zip(chunk[1:], self._grid[1:], strict=True))
        return self._is_filled(part[(slice(None), *inner)]) and not self._stored(chunk)

    def _is_filled(self, part: np.ndarray) -> bool:
        return self._equal_fill(part[:1]) and self._equal_fill(part)

    def _equal_fill(self, part: np.ndarray) -> bool:
        same = part == self._fill
        return bool(np.all(same | (part != part)) if self._fill != self._fill else np.all(same))

    def _stored(self, chunk: tuple[int, ...]) -> bool:
        if chunk not in self._is_stored:
            key = self._array.metadata.encode_chunk_key(chunk)
            self._is_stored[chunk] = sync((self._array.store_path / key).exists())
        return self._is_stored[chunk]


def _fill_value(array: Any) -> Any:
    if array.fill_value is None:  # format 2 may leave it out; zarr then gives the zero of the type
        return "" if array.dtype.kind in "TOU" else np.zeros((), array.dtype)[()]
    return array.fill_value
