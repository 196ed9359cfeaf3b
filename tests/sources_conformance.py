"""What every source must do. A format subclasses ``SourceConformance`` and says how a table is stored."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

from streamrf.data.open import open_source
from streamrf.data.source import Source, Span, work_spans
from streamrf.support.errors import DataError, InputError

ROWS, COLUMNS = 97, 5
X_TYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"]
NAMES = tuple("abcde")
Y_KINDS = ["float", "int", "small", "bool", "text", "two"]


def make_X(dtype: str = "f4", rows: int = ROWS, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=(rows, COLUMNS)) * 40
    return (values > 0) if dtype == "?" else np.abs(values).astype(dtype) if dtype[0] == "u" else values.astype(dtype)


def make_y(kind: str, rows: int = ROWS, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if kind == "text":
        return rng.choice(["cat", "zebra", "a very long label", "ä ö"], size=rows)
    if kind == "two":
        return rng.normal(size=(rows, 2))
    return (rng.normal(size=rows) * 5).astype({"float": "f8", "int": "i8", "small": "i2", "bool": "?"}[kind])


def write_zarr(
    store: Any, X: np.ndarray, y: np.ndarray | None, chunk_rows: int, version: int = 3, **options: Any
) -> None:
    group = zarr.create_group(store, zarr_format=version)
    x_chunks = options.pop("x_chunks", (chunk_rows, X.shape[1]))
    config = {"write_empty_chunks": True}
    group.create_array("X", data=X, chunks=x_chunks, config=config, **options)
    if y is None:
        return
    if y.dtype.kind == "U":
        labels = group.create_array("y", shape=y.shape, dtype=str, chunks=(chunk_rows,))
        labels[:] = y
    else:
        group.create_array("y", data=y, chunks=(chunk_rows + 3, *y.shape[1:]), config=config)


def write_parquet(
    path: Any, X: np.ndarray, y: np.ndarray | None, rows: int, names: tuple[str, ...] = NAMES
) -> dict[str, Any]:
    columns = {name: X[:, i] for i, name in enumerate(names)}
    targets = {} if y is None else {f"y{j}": column for j, column in enumerate((y if y.ndim == 2 else y[:, None]).T)}
    pq.write_table(pa.table({**columns, **targets}), path, row_group_size=rows)
    return {"data": str(path), "target": list(targets) or "y0"}


class SourceConformance:
    """``store`` writes a table and says how ``open_source`` is to be called; the rest is the same for all."""

    supports_spec = True
    x_types = X_TYPES
    y_kinds = Y_KINDS
    names: tuple[str, ...] | None = None

    def store(self, folder: Path, X: np.ndarray, y: np.ndarray | None, chunk_rows: int) -> dict[str, Any]:
        raise AssertionError("a subclass says how")

    def open(self, folder: Path, X: np.ndarray, y: np.ndarray | None, chunk_rows: int = 40, **options: Any) -> Source:
        folder.mkdir(exist_ok=True)
        return open_source(**{**self.store(folder, X, y, chunk_rows), **options})

    @pytest.mark.parametrize("chunk_rows", [13, 40, ROWS, 1000])
    def test_chunks_cover_every_row_in_order_and_read_back_equal(self, tmp_path: Path, chunk_rows: int) -> None:
        X, y = make_X(), make_y("int")
        source = self.open(tmp_path, X, y, chunk_rows)
        chunks = source.chunks()
        assert chunks[0].start == 0
        assert chunks[-1].stop == ROWS
        assert all(a.stop == b.start for a, b in pairwise(chunks))
        blocks = [source.read(chunk) for chunk in chunks]
        assert np.array_equal(np.concatenate([block.X for block in blocks]), X)
        assert np.array_equal(np.concatenate([block.y for block in blocks]), y)
        assert np.array_equal(np.concatenate([block.index for block in blocks]), np.arange(ROWS))

    def test_every_numeric_type_is_read_as_stored(self, tmp_path: Path) -> None:
        for i, dtype in enumerate(self.x_types):
            X = make_X(dtype)
            source = self.open(tmp_path / str(i), X, make_y("int"), ROWS)
            block = source.read(Span(0, ROWS))
            assert source.x_dtype == block.X.dtype == X.dtype
            assert block.X.flags.c_contiguous
            assert np.array_equal(block.X, X)

    def test_every_kind_of_target_is_read_as_stored(self, tmp_path: Path) -> None:
        for kind in self.y_kinds:
            y = make_y(kind)
            source = self.open(tmp_path / kind, make_X(), y)
            assert source.n_outputs == (2 if kind == "two" else 1)
            assert source.y_dtype == (np.dtype("U") if kind == "text" else y.dtype)
            for span in (Span(0, ROWS), Span(39, 81)):
                for got in (source.read(span).y, source.read_targets(span)):
                    assert got is not None
                    assert got.dtype.kind == y.dtype.kind
                    assert np.array_equal(got, y[span.start : span.stop])

    def test_any_span_reads_its_own_rows(self, tmp_path: Path) -> None:
        X, y = make_X("f8"), make_y("float")
        source = self.open(tmp_path, X, y)
        for span in [(0, 0), (ROWS, ROWS), (3, 4), (39, 41), (40, 80), (5, 90), (0, ROWS)]:
            block = source.read(Span(*span))
            assert block.X.shape == (span[1] - span[0], COLUMNS)
            assert block.y is not None
            assert np.array_equal(block.X, X[slice(*span)])
            assert np.array_equal(block.y, y[slice(*span)])
            assert block.index.tolist() == list(range(*span))

    def test_rows_that_do_not_exist_are_refused(self, tmp_path: Path) -> None:
        source = self.open(tmp_path, make_X(), make_y("int"))
        for span in [(-1, 3), (0, ROWS + 1), (5, 4)]:
            with pytest.raises(InputError, match=str(ROWS)):
                source.read(Span(*span))

    def test_without_targets(self, tmp_path: Path) -> None:
        X = make_X()
        source = self.open(tmp_path, X, None, need_targets=False)
        assert (source.n_outputs, source.has_targets, source.y_dtype) == (0, False, None)
        block = source.read(Span(2, 90))
        assert block.y is None
        assert np.array_equal(block.X, X[2:90])
        with pytest.raises(DataError, match="without targets"):
            source.read_targets(Span(0, 1))
        with pytest.raises((DataError, InputError)):
            self.open(tmp_path / "again", X, None)

    def test_targets_only_where_there_are_any(self, tmp_path: Path) -> None:
        with_y = self.open(tmp_path / "with", make_X(), make_y("int"), need_targets=None)
        without = self.open(tmp_path / "without", make_X(), None, need_targets=None)
        ignored = self.open(tmp_path / "ignored", make_X(), make_y("int"), need_targets=False)
        assert [source.n_outputs for source in (with_y, without, ignored)] == [1, 0, 0]
        assert ignored.n_features == COLUMNS

    def test_names(self, tmp_path: Path) -> None:
        assert self.open(tmp_path, make_X(), make_y("int")).feature_names == self.names

    def test_spec_opens_the_same_source(self, tmp_path: Path) -> None:
        source = self.open(tmp_path, make_X(), make_y("text"))
        if not self.supports_spec:
            with pytest.raises(InputError, match="path"):
                source.spec()
            return
        again = open_source(**json.loads(json.dumps(source.spec())))
        assert type(again) is type(source)
        assert again.fingerprint() == source.fingerprint()
        assert again.spec() == source.spec()
        assert again.chunks() == source.chunks()

    def test_fingerprint_is_of_the_content_alone(self, tmp_path: Path) -> None:
        X, y = make_X(), make_y("text")
        first = self.open(tmp_path / "a", X, y, 40).fingerprint()
        assert self.open(tmp_path / "b", X, y, 11).fingerprint() == first
        assert len(first) == 64

    def test_fingerprint_shows_a_change(self, tmp_path: Path) -> None:
        X, y = make_X("f4"), make_y("int")
        tables = [(X, y), (X.astype("f8"), y), (X[:-1], y[:-1]), (X, y + (np.arange(ROWS) == ROWS - 1))]
        for row in (0, ROWS - 1):
            changed = X.copy()
            changed[row, 3] += 1
            tables.append((changed, y))
        digests = [self.open(tmp_path / str(i), *table, ROWS).fingerprint() for i, table in enumerate(tables)]
        assert len(set(digests)) == len(tables)

    def test_read_bytes_counts_at_least_what_is_handed_over(self, tmp_path: Path) -> None:
        source = self.open(tmp_path, make_X("f8"), make_y("float"))
        sizes = [source.read_bytes(Span(0, stop)) for stop in (1, 40, 41, 81, ROWS)]
        assert sizes == sorted(sizes)
        assert sizes[-1] >= self.handed_over(source)
        assert source.block_bytes(Span(0, ROWS)) == ROWS * (COLUMNS + 2) * 8

    def handed_over(self, source: Source) -> int:
        return source.block_bytes(Span(0, ROWS))

    def test_two_threads_read_the_same_rows(self, tmp_path: Path) -> None:
        X, y = make_X(), make_y("text")
        source = self.open(tmp_path, X, y, 13)
        spans = [Span(a, min(a + 9, ROWS)) for a in range(0, ROWS, 9)] * 2
        with ThreadPoolExecutor(2) as pool:
            for span, block in zip(spans, pool.map(source.read, spans), strict=True):
                assert block.y is not None
                assert np.array_equal(block.X, X[span.start : span.stop])
                assert np.array_equal(block.y, y[span.start : span.stop])

    def test_units_of_work_cover_it(self, tmp_path: Path) -> None:
        source = self.open(tmp_path, make_X(), make_y("int"), 13)
        spans = work_spans(source, 30, 1 << 30)
        assert [row for span in spans for row in range(*span)] == list(range(ROWS))

    def test_describes_itself_in_a_line(self, tmp_path: Path) -> None:
        text = self.open(tmp_path, make_X(), make_y("int")).describe()
        assert f"{ROWS} rows x {COLUMNS} float32" in text
        assert "\n" not in text
