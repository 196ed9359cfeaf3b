"""The pilot's sample: random, the same for any chunking, and no row twice."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrf.data.readers.memory import ArraySource
from streamrf.data.screening import draw_sample, random_runs
from streamrf.support.errors import DataError, StorageError

N = 10_000
X = np.arange(N, dtype=np.float64)[:, None]


@pytest.mark.parametrize("chunk", [1, 7, 333, 10_000])
def test_the_sample_does_not_depend_on_the_chunks(chunk):
    one, other = (draw_sample(ArraySource(X, X[:, 0], chunk_rows=c), 1000, 3, "error") for c in (500, chunk))
    assert np.array_equal(one.index, other.index)
    assert np.array_equal(one.X[:, 0], one.index)


def test_rows_come_from_all_over_the_table_in_random_order():
    sample = draw_sample(ArraySource(X, X[:, 0], chunk_rows=100), 1000, 0, "error")
    assert len(set(sample.index.tolist())) == len(sample) == pytest.approx(1000, abs=64)
    assert np.histogram(sample.index, bins=10, range=(0, N))[0].min() > 50
    assert not np.array_equal(np.sort(sample.index), sample.index)


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(0, 5))
def test_runs_are_disjoint_in_order_and_within_the_table(n_rows, rows, seed):
    runs = random_runs(n_rows, rows, np.random.default_rng(seed))
    assert all(a.stop <= b.start for a, b in pairwise(runs))
    assert runs[0].start >= 0
    assert runs[-1].stop <= n_rows
    assert min(n_rows, rows) >= sum(map(len, runs)) > min(n_rows, rows) / 2


class FailsOnce(ArraySource):
    """Each span cannot be read at first."""

    def read(self, span):
        self.seen = getattr(self, "seen", set())
        if span not in self.seen:
            self.seen.add(span)
            raise StorageError("the network is away")
        return super().read(span)


def test_a_read_that_fails_for_a_moment_is_tried_again(monkeypatch):
    monkeypatch.setattr("streamrf.data.locations.WAITS", (0.0,))
    one, other = (draw_sample(kind(X, X[:, 0], chunk_rows=500), 1000, 3, "error") for kind in (ArraySource, FailsOnce))
    assert np.array_equal(one.index, other.index)


def test_a_sample_without_usable_rows_says_so():
    with pytest.raises(DataError, match="no usable rows in a sample of 50"):
        draw_sample(ArraySource(np.full((50, 2), np.nan), np.zeros(50)), 100, 0, "drop")
