"""Where predictions go: written as they come, and either complete under their name or not there at all."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from streamrf.data.writers.base import UNKNOWN, Sink
from streamrf.support.errors import InputError

ENDINGS = (".zarr", ".parquet", ".npy", ".csv", ".jsonl", ".arrow")

__all__ = ["ENDINGS", "UNKNOWN", "Sink", "open_sink"]


def open_sink(
    path: str | os.PathLike[str],
    n_rows: int,
    columns: Sequence[tuple[str, np.dtype]],
    *,
    overwrite: bool = False,
) -> Sink:
    """The sink for an output path, by its ending; refuses at once what could not be finished.

    ``n_rows`` may be UNKNOWN for formats that are written in order: parquet, CSV, JSON lines, Arrow.
    """
    location = os.fspath(path)
    kind = _kind(location)
    if n_rows == UNKNOWN and not kind.ordered:
        raise InputError(
            f"{location} needs the number of rows beforehand, which a stream does not tell: write .parquet"
        )
    return kind(location, n_rows, columns, overwrite=overwrite)


def _kind(location: str) -> type[Sink]:
    """Storage libraries are imported only for a sink of their kind."""
    if "://" in location:
        raise InputError(f"predictions are written to local disks only, not to {location}: write a file, then copy it")
    ending = os.path.splitext(location.rstrip("/"))[1].lower()
    if ending == ".zarr":
        from streamrf.data.writers.zarr import ZarrSink

        return ZarrSink
    if ending == ".parquet":
        from streamrf.data.writers.parquet import ParquetSink

        return ParquetSink
    if ending in (".csv", ".jsonl", ".arrow"):
        from streamrf.data.writers.encoded import ArrowSink, CsvSink, JsonLinesSink

        kinds: dict[str, type[Sink]] = {".csv": CsvSink, ".jsonl": JsonLinesSink, ".arrow": ArrowSink}
        return kinds[ending]
    if ending == ".npy":
        from streamrf.data.writers.npy import NpySink

        return NpySink
    raise InputError(f"the output's ending says its format: one of {', '.join(ENDINGS)}, not '{ending}' ({location})")
