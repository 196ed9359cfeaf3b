"""From a path to the frame that reads it, by its ending and first bytes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from streamrf.data.locations import absolute, is_pattern, is_url, without_query
from streamrf.data.readers.frame import Frame
from streamrf.support.errors import StorageError

COMPRESSED = (".gz", ".bz2", ".xz")
CSV, JSON_LINES = (".csv", ".tsv", ".txt", ".data"), (".jsonl", ".ndjson")
ARROW, PARQUET = (".arrow", ".feather", ".ipc"), (".parquet", ".parq", ".pq")


def format_of(location: str) -> str | None:
    """``csv``, ``jsonl``, ``arrow`` or ``parquet``, by the ending; None for any other."""
    path = without_query(location).rstrip("/").lower()
    for ending in COMPRESSED:
        path = path.removesuffix(ending)
    kinds = {"csv": CSV, "jsonl": JSON_LINES, "arrow": ARROW, "parquet": PARQUET}
    return next((kind for kind, endings in kinds.items() if path.endswith(endings)), None)


def open_frame(
    location: str,
    *,
    kind: str | None = None,
    csv: dict[str, Any] | None = None,
    told: Callable[[int], None] = lambda rows: None,
) -> Frame | None:
    """The table with named columns at a location; None where it is in another format. ``csv`` is for CsvFrame."""
    place, kind = absolute(location), kind or format_of(location)
    if kind in ("csv", "jsonl", "arrow") and not is_url(place) and not os.path.exists(place):
        raise StorageError(f"{place} does not exist")
    if kind == "csv":
        from streamrf.data.readers.csv import CsvFrame

        return CsvFrame(place, told=told, **(csv or {}))
    if kind == "jsonl":
        from streamrf.data.readers.json_lines import JsonLinesFrame

        return JsonLinesFrame(place, told=told)
    if kind == "arrow":
        from streamrf.data.readers.arrow import ArrowFrame

        return ArrowFrame(place)
    return _open_parquet(place)


def _open_parquet(place: str) -> Frame | None:
    from streamrf.data.open import parquet_files

    if not (is_url(place) or is_pattern(place)) and not os.path.exists(place):
        raise StorageError(f"{place} does not exist")
    if os.path.isfile(place) and format_of(place) != "parquet":
        return None
    paths = parquet_files(place)
    if not paths:
        return None
    from streamrf.data.readers.parquet_frame import ParquetFrame

    return ParquetFrame(place, paths)
