"""Rows that are remembered without their inputs stand in for those that are read."""

import numpy as np
import pytest
from tables import smooth

from streamrf.data.readers.memory import ArraySource
from streamrf.data.screening import RowCache
from streamrf.data.source import Span
from streamrf.data.split import NONE_HELD
from streamrf.support.errors import DataError


class Reads(ArraySource):
    """Counts how often rows are read."""

    times = 0

    def read(self, span):
        self.times += 1
        return super().read(span)


def test_rows_are_read_once_and_then_come_without_inputs():
    X, y = smooth(100)
    source, done = Reads(X, y, chunk_rows=50), []
    rows = RowCache(source, "error", NONE_HELD, lambda: bool(done))
    first = rows.read(Span(0, 50))
    assert np.array_equal(first.X, X[:50])
    assert np.array_equal(rows.read(Span(0, 50)).X, X[:50])  # inputs are needed still, so they are read again
    done.append(True)
    again = rows.read(Span(0, 50))
    assert again.X.shape == (50, 0)
    assert np.array_equal(again.y, first.y)
    assert np.array_equal(again.index, first.index)
    assert source.times == 2
    other = rows.read(Span(25, 75))  # a span that was never read is, and comes like the others all the same
    assert other.X.shape == (50, 0)
    assert np.array_equal(other.y, y[25:75])
    assert source.times == 3


def test_what_is_remembered_holds_no_inputs_alive():
    X, y = smooth(100)
    rows = RowCache(ArraySource(X, y), "error", NONE_HELD, lambda: True)
    block = rows.read(Span(0, 100))
    assert all(array.base is None for array in (block.y, block.index))
    assert block.X.nbytes == 0


def test_rows_that_cannot_be_used_are_left_out_or_refused():
    X, y = smooth(20)
    X[7, 1] = np.nan
    rows = RowCache(ArraySource(X, y), "drop", NONE_HELD, lambda: True)
    assert np.array_equal(rows.read(Span(0, 20)).index, np.delete(np.arange(20), 7))
    with pytest.raises(DataError, match="row 7"):
        RowCache(ArraySource(X, y), "error", NONE_HELD, lambda: True).read(Span(0, 20))


def test_it_is_the_source_in_all_else():
    source = ArraySource(*smooth(100), chunk_rows=30)
    rows = RowCache(source, "error", NONE_HELD, lambda: False)
    assert (rows.n_rows, rows.n_features, rows.chunks()) == (source.n_rows, source.n_features, source.chunks())
    assert rows.fingerprint() == source.fingerprint()
    assert rows.members() == source.members()
