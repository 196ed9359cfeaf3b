"""Units of work and reading ahead: arithmetic on rows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrf.data.columns import Handling
from streamrf.data.open import open_source
from streamrf.data.readers.memory import ArraySource
from streamrf.data.readers.parquet import ParquetFiles
from streamrf.data.readers.zarr import ReadAhead
from streamrf.data.source import Span, work_spans
from streamrf.support.errors import InputError


class FakeSource(ArraySource):
    """Any chunks, any shards, a row costs ten bytes."""

    def __init__(self, chunk_rows: list[int], shard_ends: set[int], partial: bool) -> None:
        ends = np.cumsum([0, *chunk_rows]).tolist()
        super().__init__(np.zeros((ends[-1], 1)))
        self._spans = tuple(map(Span, ends, ends[1:]))
        borders = sorted({0, ends[-1], *(end for end in shard_ends if end in ends)})
        self._shards = tuple(map(Span, borders, borders[1:]))
        self._partial = partial

    def chunks(self) -> tuple[Span, ...]:
        return self._spans

    def shards(self) -> tuple[Span, ...]:
        return self._shards

    def has_partial_reads(self) -> bool:
        return self._partial

    def read_bytes(self, span: Span) -> int:
        return 10 * len(span)


class TestWorkSpans:
    @given(
        chunk_rows=st.lists(st.integers(1, 50), min_size=1, max_size=30),
        shard_ends=st.sets(st.integers(1, 300)),
        partial=st.booleans(),
        target_rows=st.integers(1, 120),
        max_bytes=st.integers(1, 1500),
    )
    def test_laws(
        self, chunk_rows: list[int], shard_ends: set[int], partial: bool, target_rows: int, max_bytes: int
    ) -> None:
        source = FakeSource(chunk_rows, shard_ends, partial)
        spans = work_spans(source, target_rows, max_bytes)
        assert [row for span in spans for row in range(*span)] == list(range(source.n_rows))
        chunks = set(source.chunks())
        fits = [len(span) <= target_rows and 10 * len(span) <= max_bytes for span in spans]
        assert {shard.start for shard in source.shards()} <= {span.start for span in spans}
        if partial:
            assert all(ok or len(span) == 1 for ok, span in zip(fits, spans, strict=True))
        else:
            assert all(ok or span in chunks for ok, span in zip(fits, spans, strict=True))
            assert {edge for span in spans for edge in span} <= {edge for chunk in chunks for edge in chunk}
        inner = {shard.start for shard in source.shards()}
        for left, right in pairwise(spans):  # nothing that could be joined was left apart
            if right.start in inner or partial:
                continue
            joined = next(chunk.stop for chunk in chunks if chunk.start == right.start) - left.start
            assert joined > target_rows or 10 * joined > max_bytes

    def test_small_ones_are_joined_and_large_ones_split_where_that_helps(self) -> None:
        assert work_spans(FakeSource([10] * 6, set(), False), 25, 10**6) == ((0, 20), (20, 40), (40, 60))
        assert work_spans(FakeSource([10] * 6, {30}, False), 25, 10**6) == ((0, 20), (20, 30), (30, 50), (50, 60))
        assert work_spans(FakeSource([100], set(), False), 25, 10**6) == ((0, 100),)
        assert work_spans(FakeSource([100], set(), True), 30, 10**6) == ((0, 25), (25, 50), (50, 75), (75, 100))
        assert work_spans(FakeSource([100], set(), True), 1000, 500) == ((0, 50), (50, 100))

    @pytest.mark.parametrize("limits", [(0, 1), (1, 0)])
    def test_limits_are_positive(self, limits: tuple[int, int]) -> None:
        with pytest.raises(InputError, match="at least 1"):
            work_spans(FakeSource([1], set(), False), *limits)


class TestReadAhead:
    def reader(self, chunk_rows: int, row_bytes: int = 8, n_rows: int = 10**6) -> tuple[ReadAhead, list[Span]]:
        fetched: list[Span] = []

        def fetch(span: Span) -> np.ndarray:
            fetched.append(span)
            return np.arange(span.start, span.stop)

        return ReadAhead(fetch, n_rows, chunk_rows, row_bytes), fetched

    def test_in_order_it_fetches_long_runs_of_whole_chunks(self) -> None:
        ahead, fetched = self.reader(1000)
        for start in range(0, 10**6, 700):
            assert ahead.read(Span(start, min(start + 700, 10**6)))[0] == start
        assert len(fetched) <= 5
        assert all(span.start % 1000 == 0 for span in fetched)

    def test_out_of_order_it_fetches_only_what_is_touched(self) -> None:
        ahead, fetched = self.reader(1000)
        for start in (500_000, 20_500, 900_000):
            assert ahead.read(Span(start, start + 1000)).tolist() == list(range(start, start + 1000))
        assert fetched == [Span(500_000, 501_000), Span(20_000, 22_000), Span(900_000, 901_000)]

    def test_a_long_chunk_is_decoded_once(self) -> None:
        ahead, fetched = self.reader(10**6, row_bytes=10**6)
        for start in (0, 500_000, 200_000):
            ahead.read(Span(start, start + 10))
        assert fetched == [Span(0, 10**6)]
        assert ahead.kept_bytes(Span(0, 1)) == 2 * 10**12


# -- row groups that are read in parts


@pytest.fixture
def large_group(tmp_path, monkeypatch):
    """One row group of 1,000 rows, of which 37 make a piece."""
    from streamrf.data.readers import columns

    rng = np.random.default_rng(0)
    table = pa.table({"a": rng.random(1000), "c": rng.choice(["x", "y", "z"], 1000), "y": rng.random(1000)})
    pq.write_table(table, tmp_path / "t.parquet")
    whole = open_source(tmp_path / "t.parquet", target="y", columns=Handling())
    assert len(whole.chunks()) == 1
    monkeypatch.setattr(columns, "PIECE_BYTES", 37 * 4 * 8)
    monkeypatch.setattr(columns, "BATCH_BYTES", 50 * 144)
    return whole, open_source(tmp_path / "t.parquet", target="y", columns=Handling())


@pytest.mark.parametrize("order", ["forward", "backward", "any", "threads"])
def test_parts_of_a_row_group_are_its_rows_in_any_order(large_group, order):
    whole, source = large_group
    wanted, chunks = whole.read(Span(0, 1000)), list(source.chunks())
    assert max(map(len, chunks)) <= 37
    places = {"backward": range(len(chunks))[::-1], "any": np.random.default_rng(1).permutation(len(chunks))}
    spans = [chunks[i] for i in places.get(order, range(len(chunks)))]
    with ThreadPoolExecutor(4 if order == "threads" else 1) as pool:
        blocks = list(pool.map(source.read, spans))
    for span, block in zip(spans, blocks, strict=True):
        assert np.array_equal(block.X, wanted.X[span.start : span.stop])
        assert np.array_equal(block.y, wanted.y[span.start : span.stop])
        assert block.index.tolist() == list(range(span.start, span.stop))


def test_parts_in_order_are_decoded_once(large_group, monkeypatch):
    _, source = large_group
    opened = []
    plain = ParquetFiles._opened

    def counted(self, path, footer=None):
        opened.append(path)
        return plain(self, path, footer)

    monkeypatch.setattr(ParquetFiles, "_opened", counted)
    for span in source.chunks():
        source.read(span)
    assert len(opened) == 1
    for start in range(0, 900, 10):  # as many as are left open, and no more
        source.read(Span(start, start + 1))
        source.read(Span(0, 1))
    assert len(source._files._left) <= 4
