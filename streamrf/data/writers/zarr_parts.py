"""Predictions as a zarr group whose chunks are written by many processes."""

from __future__ import annotations

import os
from typing import Any

import zarr

from streamrf.data.source import Span
from streamrf.data.writers.base import RowBuffer
from streamrf.data.writers.parts import Parts
from streamrf.data.writers.zarr import ZarrSink


class ZarrParts(Parts, ZarrSink):
    kind = "zarr"

    @property
    def step(self) -> int:  # type: ignore[override]
        """Nobody shares a chunk with anybody."""
        return next(iter(self._arrays.values())).chunks[0]


def store_blocks(place: str, blocks: Any) -> None:
    """Blocks that follow one another, joined so that each chunk is written once."""
    with zarr.config.set({"array.write_empty_chunks": True}):  # a chunk of zeros must not look like a lost one
        arrays = dict(zarr.open_group(place, mode="r+").arrays())
    buffer = RowBuffer(next(iter(arrays.values())).chunks[0])

    def store(run: Span, values: Any) -> None:
        if not os.path.exists(place):  # writing a chunk would bring it back
            raise FileNotFoundError(2, "the output is gone: the run is over", place)
        for name, array in arrays.items():
            array[run.start : run.stop] = values[name]

    for start, values in blocks:
        for run, columns in buffer.add(Span(start, start + len(next(iter(values.values())))), values):
            store(run, columns)
    for run, columns in buffer.drain():
        store(run, columns)
