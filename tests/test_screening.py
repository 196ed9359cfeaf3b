"""NaN, infinities and missing labels are found, named or dropped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sources_conformance import NAMES, ROWS, make_X, make_y, write_parquet

from streamrf.data.open import open_source
from streamrf.data.readers.memory import ArraySource
from streamrf.data.screening import is_clean, missing_rows, screen
from streamrf.data.source import Block, Source, Span
from streamrf.support.errors import DataError, InputError


class TestScreening:
    @pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("at", [0, 70_001, 99_999])
    def test_one_bad_value_anywhere_is_found(self, dtype: str, bad: float, at: int) -> None:
        values = np.random.default_rng(0).normal(size=100_000).astype(dtype)
        values[5:8] = [np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal, -0.0]
        assert is_clean(values.reshape(-1, 10))
        values[at] = bad
        assert not is_clean(values.reshape(-1, 10))
        assert np.flatnonzero(missing_rows(values.reshape(-1, 10))).tolist() == [at // 10]

    @pytest.mark.parametrize("values", [np.arange(6), np.array([True]), np.array(["nan"]), np.empty((0, 3), "f4")])
    def test_what_cannot_be_bad_is_clean(self, values: np.ndarray) -> None:
        assert is_clean(values)
        assert not missing_rows(values).any()

    def source(self, X: np.ndarray, y: np.ndarray | None = None, names: tuple[str, ...] | None = None) -> Source:
        return ArraySource(X, y, chunk_rows=40, feature_names=names)

    def test_error_names_chunk_row_and_column(self) -> None:
        X = make_X()
        X[[57, 90], [3, 0]] = [np.inf, np.nan]
        source = self.source(X, names=NAMES)
        with pytest.raises(
            DataError, match=r"inf in column 3 'd' of X in row 57 \(chunk of rows 40:80\).*`nan='drop'`"
        ):
            screen(source.read(Span(10, 97)), "error", source)

    def test_gaps_can_be_filled_in_parquet_alone(self, tmp_path: Path) -> None:
        X = np.abs(make_X())
        X[57, 3] = np.nan
        stored = write_parquet(tmp_path / "t.parquet", X, make_y("int"), 40)
        for source, helps in (
            (self.source(X, names=NAMES), False),
            (open_source(**stored), True),
            (open_source(stored["data"], target="y0", sample_weight="a"), True),
            (open_source([stored["data"], stored["data"]], target="y0"), True),
        ):
            with pytest.raises(DataError) as caught:
                screen(source.read(Span(10, 97)), "error", source)
            assert ("`missing='median'`" in str(caught.value)) == helps

    def test_error_in_targets(self) -> None:
        y = make_y("two")
        y[8, 1] = np.nan
        source = self.source(make_X(), y)
        with pytest.raises(DataError, match=r"nan in y \(output 1\) in row 8 "):
            screen(source.read(Span(0, ROWS)), "error", source)
        labels = make_y("text").astype(object)
        labels[3] = None
        source = self.source(make_X(), labels)
        with pytest.raises(DataError, match="missing label in y in row 3 "):
            screen(source.read(Span(0, ROWS)), "error", source)

    def test_drop_keeps_the_numbers_of_the_rest(self) -> None:
        X, y = make_X(), make_y("float")
        X[[4, 9], 2] = np.nan
        y[[9, 30]] = np.inf
        source = self.source(X, y)
        block, dropped = screen(source.read(Span(2, 50)), "drop", source)
        kept = [row for row in range(2, 50) if row not in (4, 9, 30)]
        assert dropped == 3
        assert block.index.tolist() == kept
        assert np.array_equal(block.X, X[kept])
        assert block.y is not None
        assert np.array_equal(block.y, y[kept])

    def test_drop_of_missing_labels_leaves_plain_strings(self) -> None:
        labels = np.array(["a", None, "bb"], dtype=object)
        source = self.source(make_X()[:3], labels)
        block, dropped = screen(source.read(Span(0, 3)), "drop", source)
        assert dropped == 1
        assert block.y is not None
        assert block.y.dtype.kind == "U"
        assert block.y.tolist() == ["a", "bb"]

    def test_a_clean_block_is_the_same_block(self) -> None:
        source = self.source(make_X(), make_y("int"))
        block = source.read(Span(0, 9))
        assert screen(block, "drop", source) == (block, 0)
        with pytest.raises(InputError, match="error, drop"):
            screen(block, "ignore", source)

    def test_nothing_may_be_left(self) -> None:
        source = self.source(np.full((4, 2), np.nan))
        block, dropped = screen(source.read(Span(0, 4)), "drop", source)
        assert (len(block), dropped) == (0, 4)
        assert isinstance(block, Block)
