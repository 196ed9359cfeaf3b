"""Reading ahead of the summing: in order, as many at once as waiting makes worthwhile, and out of the page cache."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tables import smooth, write_zarr

from streamrf.data import locations
from streamrf.data.open import open_source
from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Block, Source, Span
from streamrf.engines import local
from streamrf.engines.local import Pace, read_ahead
from streamrf.support import memory
from streamrf.support.errors import DataError

SPANS = [Span(start, start + 10) for start in range(0, 200, 10)]


class Slow(ArraySource):
    """As from afar: every read takes a while, and some may be under way at once."""

    readers = 4  # type: ignore[assignment]

    def __init__(self, bad: int | None = None) -> None:
        super().__init__(np.arange(200.0)[:, None], np.zeros(200))
        self.bad, self.now, self.most, self._lock = bad, 0, 0, threading.Lock()

    def read(self, span: Span) -> Block:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.03)
        with self._lock:
            self.now -= 1
        if span.start == self.bad:
            raise DataError("a page is damaged")
        return super().read(span)


def test_blocks_come_in_order_and_more_are_under_way_where_reading_is_slow() -> None:
    source = Slow()
    read = [block.X[0, 0] for block, _, _ in read_ahead(source, SPANS, "error")]
    assert read == [span.start for span in SPANS]
    assert source.most == source.readers


def test_no_more_are_under_way_than_wait_to_be_summed_where_that_takes_longer() -> None:
    source = Slow()
    for _ in read_ahead(source, SPANS[:5], "error"):
        time.sleep(0.3)
    assert source.most <= 1 + local.AHEAD


def test_an_error_is_raised_at_its_block_and_no_reader_is_left() -> None:
    source = Slow(bad=50)
    blocks = read_ahead(source, SPANS, "error")
    assert [next(blocks)[2].start for _ in range(5)] == [0, 10, 20, 30, 40]
    with pytest.raises(DataError, match="damaged"):
        next(blocks)
    assert source.now == 0


def test_one_that_stops_early_leaves_no_reader_behind() -> None:
    source = Slow()
    blocks = read_ahead(source, SPANS, "error")
    next(blocks)
    blocks.close()
    assert source.now == 0


def test_the_pace_follows_what_reading_and_summing_take() -> None:
    pace = Pace(8)
    assert pace.readers == 1
    pace.took(0.3, 0.1)
    assert pace.readers == 3
    for _ in range(20):
        pace.took(10.0, 0.1)
    assert pace.readers == 8
    for _ in range(20):
        pace.took(0.01, 0.1)
    assert pace.readers == 1


def stored(form: str, folder: Path) -> Source:
    X, y = smooth(1000)
    if form == "zarr":
        return open_source(write_zarr(folder / "rows.zarr", X, y, chunk=100))
    if form == "npy":
        np.save(folder / "X.npy", X)
        np.save(folder / "y.npy", y)
        return open_source(str(folder))
    table = pa.table({f"x{j}": X[:, j] for j in range(X.shape[1])} | {"y": y})
    pq.write_table(table, folder / "rows.parquet", row_group_size=100)
    return open_source(str(folder / "rows.parquet"), target="y")


@pytest.mark.parametrize("form", ["npy", "zarr", "parquet"])
def test_a_large_table_that_is_read_once_leaves_the_page_cache_to_others(form, tmp_path, monkeypatch) -> None:
    source, dropped = stored(form, tmp_path), {}

    def note(path: str, start: int = 0, length: int = 0) -> None:
        dropped[path] = dropped.get(path, 0) + (length or Path(path).stat().st_size)

    monkeypatch.setattr(f"streamrf.data.readers.{form}.drop_pages", note)
    spans = [Span(0, 400), Span(400, 1000)]
    for _ in read_ahead(source, spans, "error", is_only=True):
        pass
    assert dropped == {}  # it is small
    monkeypatch.setattr(memory, "installed", lambda: 50_000)
    for _ in read_ahead(source, spans, "error"):
        pass
    assert dropped == {}  # another pass may find it there: it would fit
    for _ in read_ahead(source, spans, "error", is_only=True):
        pass
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name not in ("zarr.json", ".zattrs")]
    assert sum(dropped.values()) > 0.8 * sum(path.stat().st_size for path in files)
    assert {Path(path) for path in dropped} <= set(files)


def test_dropping_pages_is_a_hint_that_may_fail(tmp_path) -> None:
    locations.drop_pages(str(tmp_path / "gone"))
    (tmp_path / "here").write_bytes(b"1234")
    locations.drop_pages(str(tmp_path / "here"), 1, 2)
    assert (tmp_path / "here").read_bytes() == b"1234"


def test_a_table_of_one_block_is_read_without_a_thread(monkeypatch) -> None:
    monkeypatch.setattr(local, "ThreadPoolExecutor", None)
    source = ArraySource(np.zeros((10, 2)), np.zeros(10))
    assert [len(block) for block, _, _ in read_ahead(source, [Span(0, 10)], "error")] == [10]
